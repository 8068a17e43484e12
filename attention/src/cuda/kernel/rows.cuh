// Rows of keys and values: elements as float32, each what KeyValueCache gives of it, rounded to T1.
#pragma once

#include "access.cuh"
#include "attention_parameters.cuh"
#include "call.cuh"
#include "quantize.cuh"

// Elements that a lane reads of a key at once: 16 bytes of T1.
template <class T1>
constexpr u32 PACK = 128 / T1::BITS;

// Where a row of a key head is: addresses of its cells and of its scales. 0 if there is none.
struct Row {
    u64 cells;
    u64 scales;
};

// The row of a key head in a slot; -1 is no slot.
template <class T2, class T3>
__device__ __forceinline__ Row row_at(const AttentionParameters& p, i64 slot, u32 h) {
    if (slot < 0) {
        return {0, 0};
    }
    const Strides& cells = p.tokens.cache_strides;
    const Strides& scales = p.tokens.scale_strides;
    return {reinterpret_cast<u64>(p.rows[0] + bytes_of_elements<T2>(slot * cells.token + h * cells.head)),
            reinterpret_cast<u64>(p.scales[0] + bytes_of_elements<T3>(slot * scales.token + h * scales.head))};
}

// N neighboring cells of a row that are of one group, as they are in memory, and their scale.
template <class T2, class T3, u32 N>
struct Cells {
    Words<N * T2::BITS / 8> words;
    // Its bits.
    u32 scale;
};

// Two of N codes as the float16 halves of a word: codes 2 * i and 2 * i + 1 or, for int4, codes i and N / 2 + i.
template <class T2, u32 N>
__device__ __forceinline__ u32 pair_of_codes_in(const u32* words, u32 i) {
    if constexpr (SAME<T2, F8>) {
        const u32 codes = __byte_perm(words[i / 2], 0, i % 2 == 0 ? 0x1404 : 0x3424);
        const u32 magnitudes = codes & 0x7f007f00;
        // NaN: sets the exponent's bits, and 0x38 more.
        const u32 nan = (magnitudes + 0x01000100) & 0x80008000;
        const u32 bits = (codes & 0x80008000) | magnitudes >> 1 | (nan - (nan >> 5));
        // Now 1/256 of the codes' values.
        return multiply_halves(bits, 0x5c005c00);
    } else {
        // As float16, 1024 + n is 1024 with n in its lowest bits; n is the code with its sign bit flipped.
        if constexpr (SAME<T2, I8>) {
            const u32 flipped = words[i / 2] ^ 0x80808080;
            return add_halves(__byte_perm(flipped, 0x64646464, i % 2 == 0 ? 0x4140 : 0x4342), 0xe480e480);
        } else {
            const u32 word = words[0];
            const u32 apart = N == 8 ? word : N == 4 ? __byte_perm(word, 0, 0x4140) : word | word << 12;
            return add_halves((apart >> 4 * i & 0x000f000f) ^ 0x64086408, 0xe408e408);
        }
    }
}

// The values of cells.
template <class T1, class T2, class T3, u32 N>
__device__ __forceinline__ void values_of(const Cells<T2, T3, N>& cells, float (&values)[N]) {
    const u32* words = cells.words.word;
    if constexpr (SAME<T3, None>) {
        constexpr u32 PER_WORD = 32 / T2::BITS;
#pragma unroll
        for (u32 i = 0; i < N; ++i) {
            const u32 bits = words[i / PER_WORD] >> i % PER_WORD * T2::BITS;
            values[i] = value_of<T2>(static_cast<typename T2::Bits>(bits));
            if constexpr (!SAME<T1, F32> && !SAME<T1, T2>) {
                values[i] = rounded<T1>(values[i]);
            }
        }
        if constexpr (SAME<T2, F16> && N > 1) {
#pragma unroll
            for (u32 i = 0; i < N; i += 2) {
                halves_to_floats(words[i / 2], values[i], values[i + 1]);
            }
        }
    } else {
#pragma unroll
        for (u32 i = 0; i < (N + 1) / 2; ++i) {
            u32 pair = pair_of_codes_in<T2, N>(words, i);
            if constexpr (SAME<T3, F16>) {
                // As value_of_code: the product in float32 is exact, and thus rounded once.
                pair = multiply_halves(pair, __byte_perm(cells.scale, 0, 0x1010));
            }
            float both[2];
            halves_to_floats(pair, both[0], both[1]);
#pragma unroll
            for (u32 j = 0; j < 2 && j < N; ++j) {
                float& value = values[SAME<T2, I4> ? i + j * N / 2 : 2 * i + j];
                value = SAME<T3, F16> ? both[j] : __fmul_rn(both[j], __uint_as_float(cells.scale));
                if constexpr (SAME<T1, BF16> || !SAME<T3, F16>) {
                    value = SAME<T1, F32> ? value : rounded<T1>(value);
                }
            }
        }
    }
}

// Elements from d on, of keys (0) or values (1): bytes behind the address of a key's row.
template <class T1, class T2, class T3>
struct Column {
    u64 cells;
    u64 scales;

    __device__ __forceinline__ Column(const AttentionParameters& p, u32 kv, u32 d)
        : cells(p.rows[kv] - p.rows[0] + bytes_of_elements<T2>(d)), scales(0) {
        if constexpr (!SAME<T3, None>) {
            scales = p.scales[kv] - p.scales[0] + bytes_of_elements<T3>(divide(d, p.tokens.units_per_group));
        }
    }

    // N elements of a row, which are inside of it, aligned to their size and of one group.
    template <u32 N>
    __device__ __forceinline__ Cells<T2, T3, N> read(const Row& row) const {
        Cells<T2, T3, N> found;
        found.words = read_words<N * T2::BITS / 8>(reinterpret_cast<const u8*>(row.cells + cells));
        found.scale = 0;
        if constexpr (!SAME<T3, None>) {
            found.scale = read_words<T3::BITS / 8>(reinterpret_cast<const u8*>(row.scales + scales)).word[0];
        }
        return found;
    }
};

// N elements of a row from d on, read one by one; 0 behind its end.
template <class T1, class T2, class T3, u32 N>
__device__ __forceinline__ void read_elements(const AttentionParameters& p, u32 kv, const Row& row, u32 d,
                                              float (&values)[N]) {
#pragma unroll
    for (u32 i = 0; i < N; ++i) {
        values[i] = 0.0f;
        if (d + i < p.tokens.head_dim) {
            constexpr u32 PER_CELL = SAME<T2, I4> ? 2 : 1;
            const u32 at = (d + i) % PER_CELL;
            Cells<T2, T3, PER_CELL> cells = Column<T1, T2, T3>(p, kv, d + i - at).template read<PER_CELL>(row);
            float both[PER_CELL];
            values_of<T1>(cells, both);
            values[i] = both[at];
        }
    }
}
