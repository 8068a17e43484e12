// Rows of keys and values: elements as float32, each what KeyValueCache gives of it, rounded to T1.
#pragma once

#include "access.cuh"
#include "attention_parameters.cuh"
#include "call.cuh"
#include "quantize.cuh"

// Elements that a lane reads of a key at once: 16 bytes of T1.
template <class T1>
constexpr u32 PACK = 128 / T1::BITS;

// The value of element i of a word of the cache; `scale` is ignored without quantization.
template <class T1, class T2, class T3>
__device__ __forceinline__ float value_of_cell(u32 word, u32 i, typename T3::Bits scale) {
    if constexpr (SAME<T3, None>) {
        const auto bits = static_cast<typename T2::Bits>(word >> i * T2::BITS % 32);
        return value_of<T1>(convert<T1, T2>(bits));
    } else {
        return value_of<T1>(value_of_code<T1, T3>(code_in<T2>(word, i), scale));
    }
}

// A row of a key head or of a value head.
template <class T1, class T2, class T3>
struct HeadRow {
    const u8* cells;
    const u8* scales;
    u32 head_dim;
    const Divisor& group;

    // Row `slot` of keys (0) or values (1).
    __device__ __forceinline__ HeadRow(const AttentionParameters& p, u32 kv, i64 slot, u32 h)
        : cells(p.rows[kv] + bytes_of_elements<T2>(slot * p.tokens.cache_strides.token +
                                                   h * p.tokens.cache_strides.head)),
          scales(nullptr),
          head_dim(p.tokens.head_dim),
          group(p.tokens.units_per_group) {
        if constexpr (!SAME<T3, None>) {
            const i64 at = slot * p.tokens.scale_strides.token + h * p.tokens.scale_strides.head;
            scales = p.scales[kv] + bytes_of_elements<T3>(at);
        }
    }

    // The scale of element d.
    __device__ __forceinline__ typename T3::Bits scale_of_element(u32 d) const {
        if constexpr (SAME<T3, None>) {
            return 0;
        } else {
            return read<typename T3::Bits>(scales + bytes_of_elements<T3>(divide(d, group)));
        }
    }

    // Element d, read by itself; 0 behind the end of the row.
    __device__ __forceinline__ float element(u32 d) const {
        if (d >= head_dim) {
            return 0.0f;
        }
        const u32 cell = read<typename T2::Bits>(cells + bytes_of_elements<T2>(d));
        return value_of_cell<T1, T2, T3>(cell, SAME<T2, I4> ? d % 2 : 0, scale_of_element(d));
    }

    // N elements from d on, a multiple of N. A wide read is one of all, which are inside the row, aligned to their size
    // and of one group.
    template <bool WIDE, u32 N>
    __device__ __forceinline__ void elements(u32 d, float (&values)[N]) const {
        if constexpr (WIDE) {
            constexpr u32 BYTES = N * T2::BITS / 8;
            const typename T3::Bits scale = scale_of_element(d);
            const u8* at = cells + bytes_of_elements<T2>(d);
            if constexpr (BYTES == 1) {
                const u32 word = read<u8>(at);
#pragma unroll
                for (u32 i = 0; i < N; ++i) {
                    values[i] = value_of_cell<T1, T2, T3>(word, i, scale);
                }
            } else {
                constexpr u32 PER_WORD = 32 / T2::BITS;
                const Words<BYTES> words = read_words<BYTES>(at);
#pragma unroll
                for (u32 i = 0; i < N; ++i) {
                    values[i] = value_of_cell<T1, T2, T3>(words.word[i / PER_WORD], i % PER_WORD, scale);
                }
            }
        } else {
#pragma unroll
            for (u32 i = 0; i < N; ++i) {
                values[i] = element(d + i);
            }
        }
    }
};
