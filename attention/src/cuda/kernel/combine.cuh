// Adds the sums of the pieces of each sequence whose pieces are units of work, and writes its output.
#pragma once

#include "attend.cuh"

// A unit is a tile of such a sequence. Each thread goes over the pieces for its own elements, and makes the sums of
// weights for itself: the same order as in a block that adds all pieces.
template <class T1, class T2, class T3>
__device__ __forceinline__ void combine(const AttentionParameters& p) {
    if (!read_all_lengths(p)) {
        return;
    }
    const u32 head_dim = p.tokens.head_dim;
    const Shares shares(head_dim);
    const u32 heads = p.heads_per_key;
    const u64 per_sequence = static_cast<u64>(p.num_kv_heads) * p.tiles_per_step;
#pragma unroll 1
    for (u64 number = blockIdx.x; number < p.tokens.batch * per_sequence; number += gridDim.x) {
        const u32 b = number / per_sequence;
        const u32 rest = number - b * per_sequence;
        const Sequence own = sequence(p, b);
        const i64 first_row = static_cast<i64>(rest % p.tiles_per_step) * TILE;
        const i64 first_piece = own.hidden(p, first_row / heads) / PIECE;
        if (!own.is_step(p) || first_piece + 1 == own.pieces() || first_row >= own.rows(p)) {
            continue;
        }
        const u32 rows = own.rows(p) - first_row < TILE ? own.rows(p) - first_row : TILE;
#pragma unroll 1
        for (u32 e = threadIdx.x; e < rows * shares.row(); e += BLOCK) {
            const u32 r = e >> (shares.shift + 1);
            const u32 d = e & (shares.row() - 1);
            if (d >= head_dim) {
                continue;
            }
            float maximum = negative_infinity();
            float sum = 0.0f;
            float total = 0.0f;
#pragma unroll 1
            for (i64 piece = first_piece; piece < own.pieces(); ++piece) {
                const u64 unit = (own.first_slot(p) + piece) * per_sequence + rest;
                const u8* scratch = scratch_of(p, unit, r);
                const float piece_maximum = read_written<float>(scratch);
                const float piece_sum = read_written<float>(scratch + sizeof(float));
                const Merge merge = merge_piece(maximum, sum, piece_maximum, piece_sum);
                if (!(merge.added < 0.0f)) {
                    total = merged(merge, total, read_written<float>(scratch + (2 + d) * sizeof(float)));
                }
            }
            const i64 i = (first_row + r) / heads;
            const u32 head = rest / p.tiles_per_step * heads + (first_row + r - i * heads);
            const i64 at = (own.first_query + i) * p.num_heads + head;
            write_output<T1>(p, at, d, sink_of<T1>(p, head), maximum, sum, total);
        }
    }
}
