// Moves rows, and rotates keys.
#pragma once

#include "access.cuh"
#include "call.cuh"
#include "hadamard.cuh"
#include "quantize.cuh"
#include "row_parameters.cuh"
#include "store.cuh"

// The address of a slot's head.
__device__ __forceinline__ u8* head_of(const RowPlace& place, i64 slot, u32 layer, u32 kv, u32 head) {
    return place.base + slot * place.token + layer * place.layer + kv * place.kv + head * place.head;
}

// Makes the moves one after the other, each as memmove does. A thread moves the same word of every row of its part, so no
// two threads access one byte, and the order of a thread's own accesses is all the order there is.
template <class Word>
__device__ __forceinline__ void move(const MoveParameters& p) {
    // Words in flight: all are read before the first is written.
    constexpr u32 N = 4;
    const u32 part = blockIdx.x % p.parts;
    const u64 word = static_cast<u64>(blockIdx.x / p.parts) * BLOCK + threadIdx.x;
    if (word >= p.words) {
        return;
    }
    // The part's rows, among those of all moves.
    i64 rows = 0;
    for (u32 i = 0; i < p.count; ++i) {
        rows += p.moves[i].len;
    }
    const i64 begin = rows * part / p.parts;
    const i64 end = rows * (part + 1) / p.parts;
    const u32 outer = static_cast<u32>(word / p.words_per_head);
    const u32 head = outer % p.num_heads;
    const u32 kv = outer / p.num_heads % 2;
    const u32 layer = outer / p.num_heads / 2;
    const i64 at = static_cast<i64>(word % p.words_per_head * sizeof(Word));
    const u8* from = head_of(p.from, 0, layer, kv, head) + at;
    u8* to = head_of(p.to, 0, layer, kv, head) + at;
    i64 before = 0;
    for (u32 i = 0; i < p.count; ++i) {
        const Move move = p.moves[i];
        const i64 skipped = begin > before ? begin - before : 0;
        const i64 count = min64(end - before, move.len) - skipped;
        before += move.len;
        // From the last row on where rows move up.
        const bool up = move.to > move.from;
        const i64 first = skipped + (up ? count - 1 : 0);
        const u8* source = from + (move.from + first) * p.from.token;
        u8* target = to + (move.to + first) * p.to.token;
        const i64 next_source = up ? -p.from.token : p.from.token;
        const i64 next_target = up ? -p.to.token : p.to.token;
        for (i64 left = count; left > 0; left -= N) {
            Word words[N];
#pragma unroll
            for (u32 j = 0; j < N; ++j) {
                if (j < left) {
                    words[j] = read_written<Word>(source);
                    source += next_source;
                }
            }
#pragma unroll
            for (u32 j = 0; j < N; ++j) {
                if (j < left) {
                    write(target, words[j]);
                    target += next_target;
                }
            }
        }
    }
}

// What pairs are turned by. Lanes read different ones, which takes a read each of the parameters.
__shared__ float cosines[MOST_PAIRS];
__shared__ float sines[MOST_PAIRS];

// Turns pair i of values that `get` reads and `set` writes. Products and sums are rounded each, as on the host.
template <class Get, class Set>
__device__ __forceinline__ void turn(const RotateParameters& p, u32 i, Get get, Set set) {
    const u32 first = i * p.stride;
    const u32 second = first + p.step;
    const float a = get(first);
    const float b = get(second);
    const float c = cosines[i];
    const float s = sines[i];
    set(first, __fadd_rn(__fmul_rn(a, c), -__fmul_rn(b, s)));
    set(second, __fadd_rn(__fmul_rn(a, s), __fmul_rn(b, c)));
}

// A warp's head of float32.
__shared__ float heads[BLOCK / WARP][MOST_HEAD_DIM];

// Dequantizes a head, turns it, and quantizes it with new scales.
template <class T2, class T3>
__device__ __forceinline__ void rotate_codes(const RotateParameters& p, u8* cache, u8* scale, float* values) {
    const u32 lane = threadIdx.x % WARP;
    constexpr u32 PER_BYTE = 8 / T2::BITS;
    for (u32 d = lane; d < p.head_dim; d += WARP) {
        const auto factor = read_written<typename T3::Bits>(scale + bytes_of_elements<T3>(d / p.group));
        const float code = code_in<T2>(read_written<u8>(cache + d / PER_BYTE), d % PER_BYTE);
        values[d] = __uint_as_float(is_non_finite<T3>(factor)
                                        ? value_at_non_finite_scale<F32, T3>(code, factor, nan_of<F32, T3>(factor))
                                        : value_of_code<F32, T3>(code, factor));
    }
    const auto value = [&](u32 d) -> float& { return values[d]; };
    hadamard(p.head_dim, p.order, value);
    for (u32 i = lane; i < p.pairs; i += WARP) {
        turn(p, i, [&](u32 d) { return values[d]; }, [&](u32 d, float x) { values[d] = x; });
    }
    hadamard(p.head_dim, p.order, value);
    for (u32 group = lane; group < p.head_dim / p.group; group += WARP) {
        const float* first = values + group * p.group;
        u8* codes = cache + group * p.group / PER_BYTE;
        store_group<F32, T2, T3>(
            p.group, [&](u32 d) { return __float_as_uint(first[d]); }, codes, scale + bytes_of_elements<T3>(group));
    }
    // The next head's values come into the same memory.
    __syncwarp();
}

// Turns the keys of slots, which are in one turn at most each: a warp has a head.
template <class T2, class T3>
__device__ __forceinline__ void rotate(const RotateParameters& p) {
    const u32 warp = threadIdx.x / WARP;
    for (u32 pair = threadIdx.x; pair < p.pairs; pair += BLOCK) {
        cosines[pair] = p.cos[pair];
        sines[pair] = p.sin[pair];
    }
    __syncthreads();
    for (u64 i = static_cast<u64>(blockIdx.x) * (BLOCK / WARP) + warp; i < p.heads;
         i += static_cast<u64>(gridDim.x) * (BLOCK / WARP)) {
        const u32 head = static_cast<u32>(i % p.num_heads);
        const u32 layer = static_cast<u32>(i / p.num_heads % p.num_layer);
        const u64 nth = i / p.num_heads / p.num_layer;
        // The last turn that starts at the slot or before it.
        u32 last = 0;
        for (u32 n = p.count; n > 1;) {
            const u32 half = n / 2;
            if (p.turns[last + half].before <= nth) {
                last += half;
            }
            n -= half;
        }
        const i64 slot = p.turns[last].slot + static_cast<i64>(nth - p.turns[last].before);
        u8* cache = head_of(p.cache, slot, layer, 0, head);
        if constexpr (SAME<T3, None>) {
            for (u32 pair = threadIdx.x % WARP; pair < p.pairs; pair += WARP) {
                turn(
                    p, pair,
                    [&](u32 d) {
                        const auto bits = read_written<typename T2::Bits>(cache + bytes_of_elements<T2>(d));
                        return __uint_as_float(convert<F32, T2>(bits));
                    },
                    [&](u32 d, float x) {
                        write(cache + bytes_of_elements<T2>(d), convert<T2, F32>(__float_as_uint(x)));
                    });
            }
        } else {
            rotate_codes<T2, T3>(p, cache, head_of(p.scale, slot, layer, 0, head), heads[warp]);
        }
    }
}
