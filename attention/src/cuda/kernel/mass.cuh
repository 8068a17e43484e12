// Sums, for each query head and each key, the weights of the queries of its sequence, once attend and combine have their
// largest scores and the sums of their weights.
//
// A unit is a piece of a sequence's keys, for one key head. A thread has one key of each block of 64 and every fourth
// query head of those that use the key head. It alone writes their sums: query after query, whatever else is in the
// batch.
#pragma once

#include "combine.cuh"

// Adds the weights of a tile's rows for the block of keys that starts at t.
template <class T1>
__device__ __forceinline__ void add_weights(const AttentionParameters& p, const Unit& unit, i64 t, u8* sums) {
    const u32 key = threadIdx.x % KEYS;
    const u32 heads = p.heads_per_key;
    if (t + key >= unit.end) {
        return;
    }
#pragma unroll 1
    for (u32 head = threadIdx.x / KEYS; head < heads; head += BLOCK / KEYS) {
        u32 r = (head + heads - static_cast<u32>(unit.first_row % heads)) % heads;
        u8* at = sums + (head * p.tokens.rows + t + key) * sizeof(float);
        float sum = r < unit.rows ? read_written<float>(at) : 0.0f;
#pragma unroll 1
        for (; r < unit.rows; r += heads) {
            const float x = score<T1>(p, 0, r, t, key);
            if (x != negative_infinity()) {
                sum = __fadd_rn(sum, __fdiv_rn(exponential(__fadd_rn(x, -tile.maximum[r])), tile.sum[r]));
            }
            if (r + heads >= unit.rows) {
                write(at, sum);
            }
        }
    }
}

// The sums of a unit: all of its sequence's query rows, tile after tile.
template <class T1, class T2, class T3, bool WIDE>
__device__ __forceinline__ void mass_of_piece(const AttentionParameters& p, const Sequence& own, u32 h, i64 first) {
    const i64 end = min64(own.keys, first + PIECE);
    u8* sums = p.mass + (h * p.heads_per_key * p.tokens.rows + own.first_key) * sizeof(float);
#pragma unroll 1
    for (u32 head = threadIdx.x / KEYS; head < p.heads_per_key; head += BLOCK / KEYS) {
#pragma unroll 1
        for (i64 t = first + threadIdx.x % KEYS; t < end; t += KEYS) {
            write(sums + (head * p.tokens.rows + t) * sizeof(float), 0.0f);
        }
    }
#pragma unroll 1
    for (i64 first_row = 0; first_row < own.rows(p); first_row += TILE) {
        // The tile before may still be in use.
        __syncthreads();
        if (threadIdx.x == 0) {
            Unit& unit = tile.unit;
            unit.sequence = own;
            unit.h = h;
            unit.first_row = first_row;
            unit.rows = own.rows(p) - first_row < TILE ? own.rows(p) - first_row : TILE;
            unit.set_keys(p, first, end, own.hidden(p, first_row / p.heads_per_key));
        }
        __syncthreads();
        if (tile.unit.end <= tile.unit.begin) {
            continue;
        }
        read_queries<T1, T3>(p, tile.unit, Shares(p.tokens.head_dim));
        if (threadIdx.x < tile.unit.rows) {
            const u32 r = threadIdx.x;
            const u8* totals = p.totals + 2 * tile.output_at[r] * sizeof(float);
            tile.maximum[r] = read<float>(totals);
            tile.sum[r] = read<float>(totals + sizeof(float));
        }
#pragma unroll 1
        for (i64 t = tile.unit.begin; t < tile.unit.end; t += KEYS) {
            find_rows<T2, T3>(p, tile.unit, 0, t);
            __syncthreads();
            multiply_keys<T1, T2, T3, WIDE>(p, tile.unit.rows, 0, t, tile.unit.end);
            __syncthreads();
            cap_products(p, tile.unit.rows, 0);
            add_weights<T1>(p, tile.unit, t, sums);
            __syncthreads();
        }
    }
}

template <class T1, class T2, class T3, bool WIDE>
__device__ __forceinline__ void mass(const AttentionParameters& p) {
    if (!read_all_lengths(p)) {
        return;
    }
#pragma unroll 1
    for (u64 number = blockIdx.x; number < p.step_units / p.tiles_per_step; number += gridDim.x) {
        const i64 slot = number / p.num_kv_heads;
        const Sequence own = sequence_of_piece(p, slot);
        const i64 first = (slot - own.first_slot(p)) * PIECE;
        if (first < own.keys) {
            mass_of_piece<T1, T2, T3, WIDE>(p, own, number - slot * p.num_kv_heads, first);
        }
    }
}

// With the accesses of attend_wide.
template <class T1, class T2, class T3>
__device__ __forceinline__ void mass_wide(const AttentionParameters& p) {
    mass<T1, T2, T3, true>(p);
}

// With the accesses of attend_narrow.
template <class T1, class T2, class T3>
__device__ __forceinline__ void mass_narrow(const AttentionParameters& p) {
    mass<T1, T2, T3, false>(p);
}
