// Attends with one tile of query rows over the keys of a piece, or of all pieces.
//
// The order of all sums is fixed by the position of the keys in their sequence:
// - A score is the sum of partial sums, one for each 16 bytes of T1 among 64 elements, added as a tree.
// - Keys are taken in blocks of 64. The weights of a block are added as a tree over its keys, then to those of the
//   earlier blocks of the piece. Where a block has a larger score, the earlier sums are multiplied for it first.
// - The threads that share an element of the output have equal parts of each block (as many as head_dim allows), and
//   their sums are added at the end of the piece.
// - A head's sink is added at the end, after the last piece.
// Keys that a query does not see are not part of its sums in any way.
#pragma once

#include "hadamard.cuh"
#include "tile.cuh"

// Writes element d of a query row, whose sums are complete but for its sink. Keeps what the mass needs of the row: its
// largest score, and the sum of its weights.
template <class T1>
__device__ __forceinline__ void write_output(const AttentionParameters& p, i64 token_and_head, u32 d, float sink,
                                             float maximum, float sum, float total) {
    total = __fmul_rn(total, merge_sink(maximum, sum, sink));
    const float x = sum == 0.0f ? 0.0f : __fdiv_rn(total, sum);
    write(p.output + bytes_of_elements<T1>(token_and_head * p.tokens.head_dim + d), bits_of<T1>(x));
    if (d == 0 && p.totals != nullptr) {
        write(p.totals + 2 * token_and_head * sizeof(float), maximum);
        write(p.totals + (2 * token_and_head + 1) * sizeof(float), sum);
    }
}

// Where the sums of a row of a unit are: the largest score, the sum of weights, then those of weighted values.
__device__ __forceinline__ u8* scratch_of(const AttentionParameters& p, u64 unit, u32 r) {
    return p.scratch + (unit * p.rows_per_tile + r) * (2 + p.tokens.head_dim) * sizeof(float);
}

__device__ __forceinline__ float shuffle_xor(float x, u32 distance) {
    return __uint_as_float(__shfl_xor_sync(ALL_LANES, __float_as_uint(x), distance));
}

// What each row must know, and its query, multiplied as the keys were, which those of a quantized cache alone are.
template <class T1, class T3>
__device__ __forceinline__ void read_queries(const AttentionParameters& p, const Unit& unit, const Shares& shares) {
    const u32 head_dim = p.tokens.head_dim;
    const u32 heads = p.heads_per_key;
    const auto token_and_head = [&](u32 r, i64& i, u32& head) {
        i = (unit.first_row + r) / heads;
        head = unit.h * heads + (unit.first_row + r - i * heads);
        return unit.sequence.first_query + i;
    };
    if (threadIdx.x < unit.rows) {
        const u32 r = threadIdx.x;
        i64 i;
        u32 head;
        const i64 token = token_and_head(r, i, head);
        tile.maximum[r] = negative_infinity();
        tile.sum[r] = 0.0f;
        tile.hidden[r] = unit.sequence.hidden(p, i);
        tile.visible[r] = unit.sequence.visible(i);
        tile.position[r] = unit.sequence.keys + i - unit.sequence.queries;
        tile.mask_at[r] = head * p.mask_plane + token * p.mask_width + unit.sequence.first_key;
        tile.output_at[r] = token * p.num_heads + head;
        tile.slope[r] = p.alibi_heads == 0 ? 0.0f : alibi_slope(head, p.alibi_heads);
        tile.sink[r] = sink_of<T1>(p, head);
    }
    const u32 padded = (head_dim + PACK<T1> - 1) / PACK<T1> * PACK<T1>;
#pragma unroll 1
    for (u32 e = threadIdx.x; e < unit.rows * shares.row(); e += BLOCK) {
        const u32 r = e >> (shares.shift + 1);
        const u32 d = e & (shares.row() - 1);
        if (d < padded) {
            i64 i;
            u32 head;
            const i64 at = (token_and_head(r, i, head) * p.num_heads + head) * head_dim + d;
            const u8* query = p.query + bytes_of_elements<T1>(at);
            tile.q[r][query_place<T1>(d)] = d < head_dim ? value_of<T1>(read<typename T1::Bits>(query)) : 0.0f;
            tile.totals[r][d] = 0.0f;
        }
    }
    if constexpr (!SAME<T3, None>) {
        const u32 order = p.tokens.rotation_order;
        if (order > 1) {
            __syncthreads();
            for (u32 r = threadIdx.x / WARP; r < unit.rows; r += BLOCK / WARP) {
                hadamard(head_dim, order, [&](u32 d) -> float& { return tile.q[r][query_place<T1>(d)]; });
            }
        }
    }
}

// Looks up the slots of a block of keys that starts at t.
__device__ __forceinline__ void read_slots(const AttentionParameters& p, const Unit& unit, u32 buffer, i64 t) {
    if (threadIdx.x < KEYS) {
        t += threadIdx.x;
        tile.slots[buffer][threadIdx.x] = t < unit.end ? slot_at(p.tokens, unit.sequence.b, t) : -1;
    }
}

// The inner products of all rows with a block of keys that starts at t.
template <class T1, class T2, class T3, bool WIDE>
__device__ __forceinline__ void multiply_keys(const AttentionParameters& p, const Unit& unit, u32 buffer, i64 t,
                                              i64 end) {
    constexpr u32 WIDTH = LANES<T1>;
    constexpr u32 MOST = MAX_HEAD_DIM / WIDTH / PACK<T1>;
    const u32 lane = threadIdx.x % WIDTH;
    const u32 packs = (p.tokens.head_dim + PACK<T1> - 1) / PACK<T1>;
#pragma unroll 1
    for (u32 first = 0; first < KEYS; first += BLOCK / WIDTH) {
        // The same for all lanes of a warp, which shuffle.
        if (t + first + threadIdx.x / WARP * (WARP / WIDTH) >= end) {
            break;
        }
        const u32 key = first + threadIdx.x / WIDTH;
        const i64 slot = tile.slots[buffer][key];
        const HeadRow<T1, T2, T3> row(p, 0, slot, unit.h);
        float k[MOST][PACK<T1>] = {};
#pragma unroll
        for (u32 i = 0; i < MOST; ++i) {
            if (slot >= 0 && lane + i * WIDTH < packs) {
                row.template elements<WIDE>((lane + i * WIDTH) * PACK<T1>, k[i]);
            }
        }
#pragma unroll 1
        for (u32 r = 0; r < unit.rows; ++r) {
            float sum = 0.0f;
#pragma unroll
            for (u32 i = 0; i < MOST; ++i) {
                if (lane + i * WIDTH < packs) {
#pragma unroll
                    for (u32 j = 0; j < PACK<T1>; j += 4) {
                        const float* q = &tile.q[r][((i * (PACK<T1> / 4) + j / 4) * WIDTH + lane) * 4];
#pragma unroll
                        for (u32 e = 0; e < 4; ++e) {
                            sum = __fmaf_rn(q[e], k[i][j + e], sum);
                        }
                    }
                }
            }
#pragma unroll
            for (u32 distance = WIDTH / 2; distance > 0; distance /= 2) {
                sum = __fadd_rn(sum, shuffle_xor(sum, distance));
            }
            if (lane == r % WIDTH) {
                tile.weights[buffer][r][key] = sum;
            }
        }
    }
}

// Caps the inner products of all rows with a block of keys, where there is a soft cap.
__device__ __forceinline__ void cap_products(const AttentionParameters& p, const Unit& unit, u32 buffer) {
    if (p.softcap == 0.0f) {
        return;
    }
#pragma unroll 1
    for (u32 e = threadIdx.x; e < unit.rows * KEYS; e += BLOCK) {
        if (tile.slots[buffer][e % KEYS] >= 0) {
            float& product = tile.weights[buffer][e / KEYS][e % KEYS];
            product = __fmul_rn(p.softcap, hyperbolic_tangent(__fdiv_rn(__fmul_rn(product, p.scale), p.softcap)));
        }
    }
    __syncthreads();
}

// The score of row r and the key at t; minus infinity if the row does not see it.
template <class T1>
__device__ __forceinline__ float score(const AttentionParameters& p, u32 r, i64 t, i64 slot, float product) {
    if (slot < 0 || t < tile.hidden[r] || t >= tile.visible[r]) {
        return negative_infinity();
    }
    float bias = 0.0f;
    if (p.mask != nullptr) {
        bias = value_of<T1>(read<typename T1::Bits>(p.mask + bytes_of_elements<T1>(tile.mask_at[r] + t)));
    }
    if (p.alibi_heads != 0) {
        bias = __fadd_rn(bias, __fmul_rn(tile.slope[r], static_cast<float>(t - tile.position[r])));
    }
    // Whatever the product: NaN does not reach whom a mask hides it from.
    return bias == negative_infinity() ? bias : __fadd_rn(__fmul_rn(product, p.factor), bias);
}

// Makes weights of a block's inner products, for the rows of this warp.
template <class T1>
__device__ __forceinline__ void weigh(const AttentionParameters& p, const Unit& unit, u32 buffer, i64 t,
                                      float (&maximum)[TILE * WARP / BLOCK], float (&sum)[TILE * WARP / BLOCK]) {
    const u32 lane = threadIdx.x % WARP;
#pragma unroll
    for (u32 i = 0; i < TILE * WARP / BLOCK; ++i) {
        const u32 r = threadIdx.x / WARP + i * (BLOCK / WARP);
        if (r >= unit.rows) {
            break;
        }
        float scores[KEYS / WARP];
        float largest = maximum[i];
#pragma unroll
        for (u32 j = 0; j < KEYS / WARP; ++j) {
            const u32 key = j * WARP + lane;
            scores[j] = score<T1>(p, r, t + key, tile.slots[buffer][key], tile.weights[buffer][r][key]);
            largest = larger(largest, scores[j]);
        }
#pragma unroll
        for (u32 distance = WARP / 2; distance > 0; distance /= 2) {
            largest = larger(largest, shuffle_xor(largest, distance));
        }
        float weights = 0.0f;
#pragma unroll
        for (u32 j = 0; j < KEYS / WARP; ++j) {
            float weight = HIDDEN;
            if (scores[j] != negative_infinity()) {
                weight = exponential(__fadd_rn(scores[j], -largest));
                weights = __fadd_rn(weights, weight);
            }
            tile.weights[buffer][r][j * WARP + lane] = weight;
        }
#pragma unroll
        for (u32 distance = WARP / 2; distance > 0; distance /= 2) {
            weights = __fadd_rn(weights, shuffle_xor(weights, distance));
        }
        const float rescale = maximum[i] == largest ? 1.0f : exponential(__fadd_rn(maximum[i], -largest));
        maximum[i] = largest;
        sum[i] = __fadd_rn(__fmul_rn(sum[i], rescale), weights);
        if (lane == 0) {
            tile.rescale[r] = rescale;
        }
    }
}

// Adds the weighted values of a block of keys that starts at t: of this thread's two elements and its keys.
template <class T1, class T2, class T3, bool WIDE>
__device__ __forceinline__ void add_values(const AttentionParameters& p, const Unit& unit, const Shares& shares,
                                           u32 buffer, i64 t, i64 end, float (&sums)[TILE][2]) {
    // Values whose reads are in flight.
    constexpr u32 N = 4;
    const u32 d = 2 * (threadIdx.x & (shares.threads() - 1));
    const u32 share = KEYS / (BLOCK / shares.threads());
    const u32 first = (threadIdx.x >> shares.shift) * share;
#pragma unroll
    for (u32 r = 0; r < TILE; ++r) {
        if (r < unit.rows) {
            sums[r][0] = __fmul_rn(sums[r][0], tile.rescale[r]);
            sums[r][1] = __fmul_rn(sums[r][1], tile.rescale[r]);
        }
    }
#pragma unroll 1
    for (u32 key = first; key < first + share && t + key < end; key += N) {
        float v[N][2] = {};
#pragma unroll
        for (u32 j = 0; j < N; ++j) {
            const i64 slot = tile.slots[buffer][key + j];
            if (slot >= 0 && d < p.tokens.head_dim) {
                HeadRow<T1, T2, T3>(p, 1, slot, unit.h).template elements<WIDE>(d, v[j]);
            }
        }
#pragma unroll
        for (u32 r = 0; r < TILE; ++r) {
            if (r < unit.rows) {
#pragma unroll
                for (u32 j = 0; j < N; ++j) {
                    const float weight = tile.weights[buffer][r][key + j];
                    // A NaN is added.
                    if (!(weight < 0.0f)) {
                        sums[r][0] = __fmaf_rn(weight, v[j][0], sums[r][0]);
                        sums[r][1] = __fmaf_rn(weight, v[j][1], sums[r][1]);
                    }
                }
            }
        }
    }
}

// Attends with the rows of a unit over its pieces.
template <class T1, class T2, class T3, bool WIDE>
__device__ __forceinline__ void attend_tile(const AttentionParameters& p, const Unit& unit) {
    constexpr u32 ROUNDS = TILE / ROWS_AT_ONCE;
    const u32 thread = threadIdx.x;
    const Shares shares(p.tokens.head_dim);
    i64 t = unit.begin;
    u32 buffer = 0;
    read_queries<T1, T3>(p, unit, shares);
    read_slots(p, unit, buffer, t);
    __syncthreads();

    // One piece at least, which may be empty.
    do {
        const i64 piece_end = min64(unit.end, (t / PIECE + 1) * PIECE);
        float maxima[TILE * WARP / BLOCK];
        float weights[TILE * WARP / BLOCK];
#pragma unroll
        for (u32 i = 0; i < TILE * WARP / BLOCK; ++i) {
            maxima[i] = negative_infinity();
            weights[i] = 0.0f;
        }
        float sums[TILE][2] = {};
#pragma unroll 1
        for (; t < piece_end; t += KEYS) {
            multiply_keys<T1, T2, T3, WIDE>(p, unit, buffer, t, piece_end);
            __syncthreads();
            cap_products(p, unit, buffer);
            weigh<T1>(p, unit, buffer, t, maxima, weights);
            read_slots(p, unit, buffer ^ 1, t + KEYS);
            __syncthreads();
            add_values<T1, T2, T3, WIDE>(p, unit, shares, buffer, t, piece_end, sums);
            buffer ^= 1;
        }
#pragma unroll
        for (u32 i = 0; i < TILE * WARP / BLOCK; ++i) {
            const u32 r = thread / WARP + i * (BLOCK / WARP);
            if (thread % WARP == 0 && r < unit.rows) {
                tile.piece_maximum[r] = maxima[i];
                tile.piece_sum[r] = weights[i];
            }
        }
        __syncthreads();
        if (thread < unit.rows) {
            if (unit.is_whole) {
                tile.merge[thread] = merge_piece(tile.maximum[thread], tile.sum[thread], tile.piece_maximum[thread],
                                                 tile.piece_sum[thread]);
            } else {
                u8* scratch = scratch_of(p, unit.number, thread);
                write(scratch, tile.piece_maximum[thread]);
                write(scratch + sizeof(float), tile.piece_sum[thread]);
            }
        }
#pragma unroll
        for (u32 round = 0; round < ROUNDS; ++round) {
            if (round * ROWS_AT_ONCE < unit.rows) {
#pragma unroll
                for (u32 i = 0; i < ROWS_AT_ONCE; ++i) {
                    tile.exchange[i][2 * thread] = sums[round * ROWS_AT_ONCE + i][0];
                    tile.exchange[i][2 * thread + 1] = sums[round * ROWS_AT_ONCE + i][1];
                }
                __syncthreads();
#pragma unroll 1
                for (u32 e = thread; e < ROWS_AT_ONCE * shares.row(); e += BLOCK) {
                    const u32 i = e >> (shares.shift + 1);
                    const u32 d = e & (shares.row() - 1);
                    const u32 r = round * ROWS_AT_ONCE + i;
                    if (r >= unit.rows || d >= p.tokens.head_dim) {
                        continue;
                    }
                    float added = tile.exchange[i][d];
#pragma unroll 1
                    for (u32 at = d + shares.row(); at < EXCHANGED; at += shares.row()) {
                        added = __fadd_rn(added, tile.exchange[i][at]);
                    }
                    float& total = tile.totals[r][d];
                    if (!unit.is_whole) {
                        write(scratch_of(p, unit.number, r) + (2 + d) * sizeof(float), added);
                    } else if (!(tile.merge[r].added < 0.0f)) {
                        total = merged(tile.merge[r], total, added);
                    }
                }
                __syncthreads();
            }
        }
    } while (t < unit.end);
    if (!unit.is_whole) {
        return;
    }
#pragma unroll 1
    for (u32 e = thread; e < unit.rows * shares.row(); e += BLOCK) {
        const u32 r = e >> (shares.shift + 1);
        const u32 d = e & (shares.row() - 1);
        if (d < p.tokens.head_dim) {
            write_output<T1>(p, tile.output_at[r], d, tile.sink[r], tile.maximum[r], tile.sum[r], tile.totals[r][d]);
        }
    }
}

template <class T1, class T2, class T3, bool WIDE>
__device__ __forceinline__ void attend(const AttentionParameters& p) {
    if (!read_all_lengths(p)) {
        return;
    }
#pragma unroll 1
    for (u64 number = blockIdx.x; number < p.units; number += gridDim.x) {
        // The unit before may still be in use.
        __syncthreads();
        if (threadIdx.x == 0) {
            tile.unit = unit_at(p, number);
        }
        __syncthreads();
        if (!tile.unit.is_empty) {
            attend_tile<T1, T2, T3, WIDE>(p, tile.unit);
        }
    }
}

// 16-byte accesses, of T1's elements, to keys.
template <class T1, class T2, class T3>
__device__ __forceinline__ void attend_wide(const AttentionParameters& p) {
    attend<T1, T2, T3, true>(p);
}

// Accesses to one element, or for int4 a byte, of keys and values: any alignment, head and group.
template <class T1, class T2, class T3>
__device__ __forceinline__ void attend_narrow(const AttentionParameters& p) {
    attend<T1, T2, T3, false>(p);
}
