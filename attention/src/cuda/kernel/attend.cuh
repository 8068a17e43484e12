// Attends with one tile of query rows over the keys of a piece, or of all pieces.
//
// The order of all sums is fixed by the position of the keys in their sequence:
// - A score is the sum of partial sums, one for each 16 bytes of T1 among 64 elements, added as a tree.
// - Keys are taken in blocks of 64. The weights of a block are added as a tree over its keys, and that sum is added to
//   the sum of the piece's earlier blocks, which is rescaled first where the block has a larger score.
// - The threads that share an element of the output have equal parts of each block (as many as head_dim allows), and
//   their sums are added at the end of the piece.
// - A head's sink is added at the end, after the last piece.
// Keys that a query does not see are not part of its sums in any way.
#pragma once

#include "hadamard.cuh"
#include "tile.cuh"

// Writes element d of a query row, from sums that lack the sink alone. Keeps the row's largest score and the sum of its
// weights for the mass.
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

// Where the sums of a unit's row are: the largest score, the sum of weights, then head_dim sums of weighted values.
__device__ __forceinline__ u8* scratch_of(const AttentionParameters& p, u64 unit, u32 r) {
    return p.scratch + (unit * p.rows_per_tile + r) * (2 + p.tokens.head_dim) * sizeof(float);
}

// Joins a number of each lane of a warp, as a tree: all get the same.
template <u32 DISTANCE = WARP / 2, class Join>
__device__ __forceinline__ float of_all_lanes(float x, Join join) {
    if constexpr (DISTANCE == 0) {
        return x;
    } else {
        return of_all_lanes<DISTANCE / 2>(join(x, shuffle_xor<DISTANCE>(x)), join);
    }
}

// Reads each row's query and what the row must know. Where a quantized cache has rotated keys, rotates the query, too.
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
#pragma unroll 1
    for (u32 e = threadIdx.x; e < unit.rows * shares.row(); e += BLOCK) {
        const u32 r = e >> (shares.shift + 1);
        const u32 d = e & (shares.row() - 1);
        i64 i;
        u32 head;
        const i64 at = (token_and_head(r, i, head) * p.num_heads + head) * head_dim + d;
        const u8* query = p.query + bytes_of_elements<T1>(at);
        tile.q[r][query_place<T1>(d)] = d < head_dim ? value_of<T1>(read<typename T1::Bits>(query)) : 0.0f;
        tile.totals[r][d] = 0.0f;
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

// Finds the rows of a block of keys that starts at t.
template <class T2, class T3>
__device__ __forceinline__ void find_rows(const AttentionParameters& p, const Unit& unit, u32 buffer, i64 t) {
    if (threadIdx.x < KEYS) {
        t += threadIdx.x;
        const i64 slot = t < unit.end ? slot_at(p.tokens, unit.sequence.b, t) : -1;
        const Row row = row_at<T2, T3>(p, slot, unit.h);
        tile.cells[buffer][threadIdx.x] = row.cells;
        if constexpr (!SAME<T3, None>) {
            tile.scales[buffer][threadIdx.x] = row.scales;
        }
    }
}

// The rows of N keys, which have been found; `key` is a multiple of N.
template <class T3, u32 N>
__device__ __forceinline__ void read_rows(u32 buffer, u32 key, Row (&rows)[N]) {
    const u64* cells = &tile.cells[buffer][key];
    const u64* scales = &tile.scales[buffer][key];
#pragma unroll
    for (u32 i = 0; i < N; i += 2) {
        const auto of_pair = [i](const u64* at) {
            return N == 1 ? make_ulonglong2(*at, 0) : *reinterpret_cast<const ulonglong2*>(at + i);
        };
        const ulonglong2 pair = of_pair(cells);
        const ulonglong2 scales_of_pair = SAME<T3, None> ? make_ulonglong2(0, 0) : of_pair(scales);
        rows[i] = {pair.x, scales_of_pair.x};
        if constexpr (N > 1) {
            rows[i + 1] = {pair.y, scales_of_pair.y};
        }
    }
}

// Adds each of COUNT values, a power of two, over 2 * DISTANCE lanes: as a tree, the same for each. A lane gets the sum
// of value `lane * COUNT / (2 * DISTANCE)`.
template <u32 DISTANCE, u32 COUNT, u32 N>
__device__ __forceinline__ float sum_of_lanes(float (&values)[N]) {
    constexpr u32 HALF = COUNT / 2;
    if constexpr (DISTANCE == 0) {
        return values[0];
    } else if constexpr (HALF == 0) {
        values[0] = __fadd_rn(values[0], shuffle_xor<DISTANCE>(values[0]));
        return sum_of_lanes<DISTANCE / 2, COUNT>(values);
    } else {
        // Half of the values are another lane's from here on.
        const bool upper = (threadIdx.x & DISTANCE) != 0;
#pragma unroll
        for (u32 i = 0; i < HALF; ++i) {
            const float other = shuffle_xor<DISTANCE>(upper ? values[i] : values[i + HALF]);
            values[i] = __fadd_rn(upper ? values[i + HALF] : values[i], other);
        }
        return sum_of_lanes<DISTANCE / 2, HALF>(values);
    }
}

// The keys that a lane multiplies at once, up to CHUNKS times 64 elements of each: as many as fit in registers.
template <u32 CHUNKS>
constexpr u32 KEYS_AT_ONCE = 4 / CHUNKS;

// The inner products of ROWS rows from r on with a lane's keys, and where row 0 has them.
template <class T1, u32 ROWS, u32 CHUNKS>
__device__ __forceinline__ void multiply_rows(const float (&k)[KEYS_AT_ONCE<CHUNKS>][CHUNKS][PACK<T1>], u32 chunks,
                                              u32 r, float* products) {
    constexpr u32 WIDTH = LANES<T1>;
    constexpr u32 N = KEYS_AT_ONCE<CHUNKS>;
    const u32 lane = threadIdx.x % WIDTH;
    float sums[ROWS * N] = {};
#pragma unroll
    for (u32 i = 0; i < CHUNKS; ++i) {
        if (i >= chunks) {
            break;
        }
#pragma unroll
        for (u32 j = 0; j < PACK<T1>; j += 4) {
#pragma unroll
            for (u32 row = 0; row < ROWS; ++row) {
                const float* at = &tile.q[r + row][((i * (PACK<T1> / 4) + j / 4) * WIDTH + lane) * 4];
                const float4 q = *reinterpret_cast<const float4*>(at);
#pragma unroll
                for (u32 n = 0; n < N; ++n) {
                    float& sum = sums[row * N + n];
                    sum = __fmaf_rn(q.x, k[n][i][j], sum);
                    sum = __fmaf_rn(q.y, k[n][i][j + 1], sum);
                    sum = __fmaf_rn(q.z, k[n][i][j + 2], sum);
                    sum = __fmaf_rn(q.w, k[n][i][j + 3], sum);
                }
            }
        }
    }
    const float sum = sum_of_lanes<WIDTH / 2, ROWS * N>(sums);
    // Lanes with the same sum.
    constexpr u32 SAME_SUM = WIDTH / (ROWS * N);
    if (SAME_SUM == 1 || lane % SAME_SUM == 0) {
        const u32 i = lane / SAME_SUM;
        products[(r + i / N) * WEIGHTS + i % N] = sum;
    }
}

// The inner products of all rows with a block of keys that starts at t, for heads of up to CHUNKS times 64 elements.
template <class T1, class T2, class T3, bool WIDE, u32 CHUNKS>
__device__ __forceinline__ void multiply_chunks(const AttentionParameters& p, u32 rows, u32 buffer, i64 t, i64 end) {
    constexpr u32 WIDTH = LANES<T1>;
    constexpr u32 N = KEYS_AT_ONCE<CHUNKS>;
    // Keys of a warp, and those at once.
    constexpr u32 OF_WARP = KEYS * WARP / BLOCK;
    constexpr u32 STEP = N * (WARP / WIDTH);
    const u32 lane = threadIdx.x % WIDTH;
    const u32 packs = (p.tokens.head_dim + PACK<T1> - 1) / PACK<T1>;
    const u32 chunks = (packs + WIDTH - 1) / WIDTH;
#pragma unroll 1
    for (u32 done = 0; done < OF_WARP; done += STEP) {
        const u32 of_warp = threadIdx.x / WARP * OF_WARP + done;
        // The same for all lanes of a warp, which shuffle.
        if (t + of_warp >= end) {
            break;
        }
        const u32 key = of_warp + threadIdx.x % WARP / WIDTH * N;
        Row found[N];
        read_rows<T3>(buffer, key, found);
        bool all = true;
#pragma unroll
        for (u32 n = 0; n < N; ++n) {
            all = all && found[n].cells != 0;
        }
        float k[N][CHUNKS][PACK<T1>];
        if constexpr (WIDE) {
            // All are read before the first is converted.
            Cells<T2, T3, PACK<T1>> cells[N][CHUNKS];
#pragma unroll
            for (u32 i = 0; i < CHUNKS; ++i) {
                const Column<T1, T2, T3> column(p, 0, (lane + i * WIDTH) * PACK<T1>);
                const bool inside = lane + i * WIDTH < packs;
                if (all && inside) {
#pragma unroll
                    for (u32 n = 0; n < N; ++n) {
                        cells[n][i] = column.template read<PACK<T1>>(found[n]);
                    }
                } else {
#pragma unroll
                    for (u32 n = 0; n < N; ++n) {
                        cells[n][i] = {};
                        if (inside && found[n].cells != 0) {
                            cells[n][i] = column.template read<PACK<T1>>(found[n]);
                        }
                    }
                }
            }
#pragma unroll
            for (u32 i = 0; i < CHUNKS; ++i) {
#pragma unroll
                for (u32 n = 0; n < N; ++n) {
                    values_of<T1>(cells[n][i], k[n][i]);
                }
            }
        } else {
#pragma unroll
            for (u32 i = 0; i < CHUNKS; ++i) {
#pragma unroll
                for (u32 n = 0; n < N; ++n) {
#pragma unroll
                    for (float& element : k[n][i]) {
                        element = 0.0f;
                    }
                    if (found[n].cells != 0) {
                        read_elements<T1, T2, T3>(p, 0, found[n], (lane + i * WIDTH) * PACK<T1>, k[n][i]);
                    }
                }
            }
        }
        float* products = &tile.weights[buffer][0][key];
        u32 r = 0;
#pragma unroll 1
        for (; r + 2 <= rows; r += 2) {
            multiply_rows<T1, 2, CHUNKS>(k, chunks, r, products);
        }
        if (r < rows) {
            multiply_rows<T1, 1, CHUNKS>(k, chunks, r, products);
        }
    }
}

// The inner products of all rows with a block of keys that starts at t.
template <class T1, class T2, class T3, bool WIDE>
__device__ __forceinline__ void multiply_keys(const AttentionParameters& p, u32 rows, u32 buffer, i64 t, i64 end) {
    if constexpr (WIDE) {
        if (p.tokens.head_dim <= MAX_HEAD_DIM / 2) {
            multiply_chunks<T1, T2, T3, true, 2>(p, rows, buffer, t, end);
            return;
        }
    }
    multiply_chunks<T1, T2, T3, WIDE, 4>(p, rows, buffer, t, end);
}

// Caps the inner products of all rows with a block of keys, where there is a soft cap.
__device__ __forceinline__ void cap_products(const AttentionParameters& p, u32 rows, u32 buffer) {
    if (p.softcap == 0.0f) {
        return;
    }
#pragma unroll 1
    for (u32 e = threadIdx.x; e < rows * KEYS; e += BLOCK) {
        if (tile.cells[buffer][e % KEYS] != 0) {
            float& product = tile.weights[buffer][e / KEYS][e % KEYS];
            product = __fmul_rn(p.softcap, hyperbolic_tangent(__fdiv_rn(__fmul_rn(product, p.scale), p.softcap)));
        }
    }
    __syncthreads();
}

// The score of row r and key `key` of a block that starts at t; minus infinity if the row does not see it.
template <class T1>
__device__ __forceinline__ float score(const AttentionParameters& p, u32 buffer, u32 r, i64 t, u32 key) {
    t += key;
    if (tile.cells[buffer][key] == 0 || t < tile.hidden[r] || t >= tile.visible[r]) {
        return negative_infinity();
    }
    const float product = tile.weights[buffer][r][key];
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

// Makes weights of a block's inner products, for the rows of this warp. Whether one of them does not see a key.
template <class T1>
__device__ __forceinline__ bool weigh(const AttentionParameters& p, u32 rows, u32 buffer, i64 t) {
    const u32 lane = threadIdx.x % WARP;
    bool hides = false;
#pragma unroll 1
    for (u32 r = threadIdx.x / WARP; r < rows; r += BLOCK / WARP) {
        // Lane 0 alone accesses the sums so far.
        const float before = lane == 0 ? tile.piece_maximum[r] : negative_infinity();
        float scores[KEYS / WARP];
        float largest = before;
#pragma unroll
        for (u32 j = 0; j < KEYS / WARP; ++j) {
            scores[j] = score<T1>(p, buffer, r, t, j * WARP + lane);
            largest = larger(largest, scores[j]);
        }
        largest = of_all_lanes(largest, larger);
        float weights = 0.0f;
#pragma unroll
        for (u32 j = 0; j < KEYS / WARP; ++j) {
            float weight = HIDDEN;
            if (scores[j] != negative_infinity()) {
                weight = exponential(__fadd_rn(scores[j], -largest));
                weights = __fadd_rn(weights, weight);
            } else {
                hides = true;
            }
            tile.weights[buffer][r][j * WARP + lane] = weight;
        }
        weights = of_all_lanes(weights, [](float a, float b) { return __fadd_rn(a, b); });
        if (lane == 0) {
            const float rescale = before == largest ? 1.0f : exponential(__fadd_rn(before, -largest));
            tile.rescale[r] = rescale;
            tile.piece_maximum[r] = largest;
            tile.piece_sum[r] = __fadd_rn(__fmul_rn(tile.piece_sum[r], rescale), weights);
        }
    }
    return hides;
}

// Adds the weighted values of a block of keys that starts at t: of this thread's two elements and its keys. Where no
// row HIDES a key, all have values.
template <class T1, class T2, class T3, bool WIDE, bool HIDES>
__device__ __forceinline__ void add_values(const AttentionParameters& p, u32 rows, const Shares& shares, u32 buffer,
                                           i64 t, i64 end, float (&sums)[TILE][2]) {
    // Values whose reads are in flight.
    constexpr u32 N = HIDES ? 4 : 8;
    const u32 d = 2 * (threadIdx.x & (shares.threads() - 1));
    const u32 share = KEYS / (BLOCK / shares.threads());
    const u32 first = (threadIdx.x >> shares.shift) * share;
    const Column<T1, T2, T3> column(p, 1, d);
#pragma unroll
    for (u32 r = 0; r < TILE; ++r) {
        if (r >= rows) {
            break;
        }
        sums[r][0] = __fmul_rn(sums[r][0], tile.rescale[r]);
        sums[r][1] = __fmul_rn(sums[r][1], tile.rescale[r]);
    }
    if (d >= p.tokens.head_dim) {
        return;
    }
#pragma unroll 1
    for (u32 key = first; key < first + share && (!HIDES || t + key < end); key += N) {
        Row found[N];
        read_rows<T3>(buffer, key, found);
        float v[N][2];
        if constexpr (WIDE) {
            Cells<T2, T3, 2> cells[N];
#pragma unroll
            for (u32 j = 0; j < N; ++j) {
                if constexpr (HIDES) {
                    cells[j] = {};
                }
                if (!HIDES || found[j].cells != 0) {
                    cells[j] = column.template read<2>(found[j]);
                }
            }
#pragma unroll
            for (u32 j = 0; j < N; ++j) {
                values_of<T1>(cells[j], v[j]);
            }
        } else {
#pragma unroll
            for (u32 j = 0; j < N; ++j) {
                v[j][0] = v[j][1] = 0.0f;
                if (!HIDES || found[j].cells != 0) {
                    read_elements<T1, T2, T3>(p, 1, found[j], d, v[j]);
                }
            }
        }
        const float* first_weight = &tile.weights[buffer][0][key];
#pragma unroll
        for (u32 r = 0; r < TILE; ++r) {
            if (r >= rows) {
                break;
            }
#pragma unroll
            for (u32 j = 0; j < N; j += 4) {
                const float4 four = *reinterpret_cast<const float4*>(first_weight + r * WEIGHTS + j);
                const float weights[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
                for (u32 i = 0; i < 4; ++i) {
                    // A NaN is added.
                    if (!HIDES || !(weights[i] < 0.0f)) {
                        sums[r][0] = __fmaf_rn(weights[i], v[j + i][0], sums[r][0]);
                        sums[r][1] = __fmaf_rn(weights[i], v[j + i][1], sums[r][1]);
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
    const u32 rows = unit.rows;
    const Shares shares(p.tokens.head_dim);
    i64 t = unit.begin;
    u32 buffer = 0;
    read_queries<T1, T3>(p, unit, shares);
    find_rows<T2, T3>(p, unit, buffer, t);
    __syncthreads();

    // One piece at least, which may be empty.
    do {
        const i64 piece_end = min64(unit.end, (t / PIECE + 1) * PIECE);
        if (thread < rows) {
            tile.piece_maximum[thread] = negative_infinity();
            tile.piece_sum[thread] = 0.0f;
        }
        float sums[TILE][2] = {};
#pragma unroll 1
        for (; t < piece_end; t += KEYS) {
            multiply_keys<T1, T2, T3, WIDE>(p, rows, buffer, t, piece_end);
            __syncthreads();
            cap_products(p, rows, buffer);
            const bool hides = weigh<T1>(p, rows, buffer, t);
            find_rows<T2, T3>(p, unit, buffer ^ 1, t + KEYS);
            // The narrow kernel has one way for both, which is less to compile.
            if (__syncthreads_or(hides) || !WIDE) {
                add_values<T1, T2, T3, WIDE, true>(p, rows, shares, buffer, t, piece_end, sums);
            } else {
                add_values<T1, T2, T3, WIDE, false>(p, rows, shares, buffer, t, piece_end, sums);
            }
            buffer ^= 1;
        }
        // All have added the values of the last block, which the exchange overwrites.
        __syncthreads();
        if (thread < rows) {
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
    const u64 units = has_tiles(p) ? p.units : p.step_units;
#pragma unroll 1
    for (u64 number = blockIdx.x; number < units; number += gridDim.x) {
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
