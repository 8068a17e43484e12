// What the attention kernels go over: sequences, and the tiles of their query rows.
//
// A query row is one query head of one token. A sequence's rows that use the same key head are numbered token by
// token; a tile is up to 16 of them, which a block attends for at once, so that it reads each key and value once.
//
// The keys of a sequence are cut into pieces of 512 by their position. The sums of a piece are made alone, then added
// piece after piece, always in this order. A sequence with few query rows (a decoding step) has a unit of work for each
// piece, and its pieces meet in scratch memory. Any other has one for each tile, in which a block adds them itself. So
// the bits do not depend on which it is. What is before the windows of all rows of a tile changes no sum, and is not
// read: a tile begins with the block of 64 keys that the first row's window begins in.
#pragma once

#include "attention_parameters.cuh"
#include "call.cuh"

constexpr u32 MAX_HEAD_DIM = 256;
constexpr u32 TILE = 16;
constexpr u32 PIECE = 512;

// The number of keys of sequence b, for lengths that have been checked.
__device__ __forceinline__ i64 keys_of(const AttentionParameters& p, u32 b) {
    return p.packed ? rows_of<PACKED>(p.tokens, b) : rows_of<LOAD>(p.tokens, b);
}

// Checks all lengths and fills `batch`, in every block alike. False if a length is wrong.
__device__ __forceinline__ bool read_all_lengths(const AttentionParameters& p) {
    if (!(p.packed ? read_lengths<PACKED>(p.tokens) : read_lengths<LOAD>(p.tokens))) {
        return false;
    }
    // Over packed keys and values these are other lengths than those just checked.
    const u32 sequences = p.tokens.batch;
    bool bad = false;
#pragma unroll 1
    for (u32 b = threadIdx.x; b < sequences; b += BLOCK) {
        const i64 start = __ldg(p.seqstarts + b);
        if (__ldg(p.seqstarts + b + 1) < start || (b == 0 && start != 0)) {
            report(p.tokens.status, SEQSTARTS, b, 0);
            bad = true;
        }
    }
    if (__syncthreads_or(bad)) {
        return false;
    }
    const i64 queries = __ldg(p.seqstarts + sequences);
    if (threadIdx.x == 0 && queries > p.query_rows) {
        report(p.tokens.status, TOO_MANY_TOKENS, sequences, 0);
    }
    if (threadIdx.x == 0 && queries < p.query_rows && p.tokens.exact_rows) {
        report(p.tokens.status, TOO_FEW_TOKENS, sequences, 0);
    }
    return queries <= p.query_rows;
}

// One sequence. It has no padding: a copy of padding would read what nobody has written.
struct Sequence {
    u32 b;
    u32 is_causal;
    i64 first_query;
    i64 queries;
    // Its first column of the mask, and its number of keys.
    i64 first_key;
    i64 keys;

    // Query rows that use the same key head.
    __device__ __forceinline__ i64 rows(const AttentionParameters& p) const { return queries * p.heads_per_key; }

    // Whether each of its pieces is a unit of work.
    __device__ __forceinline__ bool is_step(const AttentionParameters& p) const { return rows(p) <= p.most_step_rows; }

    // At least one, so that queries without keys have a unit of work, too.
    __device__ __forceinline__ i64 pieces() const { return keys <= PIECE ? 1 : (keys + PIECE - 1) / PIECE; }

    // How many keys are before the window of query i.
    __device__ __forceinline__ i64 hidden(const AttentionParameters& p, i64 i) const {
        const i64 before = keys + i + 1 - queries - p.window;
        return before < 0 ? 0 : before;
    }

    // The slot of its piece 0, or where that would be. The slots of two sequences are different, since a sequence with k
    // keys has at most k / PIECE + 1 pieces, rounded down, and a decoding step at most window_pieces from the first that
    // it sees.
    __device__ __forceinline__ i64 first_slot(const AttentionParameters& p) const {
        return p.window_pieces == 0 ? first_key / PIECE + b
                                    : static_cast<i64>(b) * p.window_pieces - hidden(p, 0) / PIECE;
    }

    // How many keys query i may see, the mask aside.
    __device__ __forceinline__ i64 visible(i64 i) const {
        const i64 seen = keys + i + 1 - queries;
        return !is_causal ? keys : seen < 0 ? 0 : seen;
    }
};

// Whether a sequence is more than a decoding step: else no tile has a row, though there may be units for them.
__device__ __forceinline__ bool has_tiles(const AttentionParameters& p) {
    if (p.units == p.step_units) {
        return false;
    }
    bool any = false;
#pragma unroll 1
    for (u32 b = threadIdx.x; b < p.tokens.batch; b += BLOCK) {
        const i64 queries = __ldg(p.seqstarts + b + 1) - __ldg(p.seqstarts + b);
        any = any || queries * p.heads_per_key > p.most_step_rows;
    }
    return __syncthreads_or(any);
}

// Sequence b, whose first key comes after so many.
__device__ __forceinline__ Sequence sequence_at(const AttentionParameters& p, u32 b, i64 first_key) {
    Sequence sequence;
    sequence.b = b;
    sequence.first_query = __ldg(p.seqstarts + b);
    sequence.queries = __ldg(p.seqstarts + b + 1) - sequence.first_query;
    sequence.first_key = first_key;
    sequence.keys = keys_of(p, b);
    const bool causal = p.is_causal && sequence.queries > 1 && b >= p.decoding_batches;
    sequence.is_causal = causal || p.alibi_heads != 0;
    return sequence;
}

// Sequence b: the number of keys of all before it is a sum over its chunk.
__device__ __forceinline__ Sequence sequence(const AttentionParameters& p, u32 b) {
    const u32 len = chunk_len(p.tokens);
    const u32 chunk = b / len;
    i64 first_key = batch.starts[chunk];
#pragma unroll 1
    for (u32 before = chunk * len; before < b; ++before) {
        first_key += keys_of(p, before);
    }
    return sequence_at(p, b, first_key);
}

// The last sequence whose pieces start at this slot or before it.
__device__ __forceinline__ Sequence sequence_of_piece(const AttentionParameters& p, i64 slot) {
    if (p.window_pieces != 0) {
        return sequence(p, slot / p.window_pieces);
    }
    const u32 len = chunk_len(p.tokens);
    u32 chunk = 0;
#pragma unroll 1
    for (u32 n = (p.tokens.batch + len - 1) / len; n > 1;) {
        const u32 half = n / 2;
        if (batch.starts[chunk + half] / PIECE + (chunk + half) * len <= slot) {
            chunk += half;
        }
        n -= half;
    }
    u32 b = chunk * len;
    i64 first_key = batch.starts[chunk];
#pragma unroll 1
    while (b + 1 < p.tokens.batch) {
        const i64 next = first_key + keys_of(p, b);
        if (next / PIECE + b + 1 > slot) {
            break;
        }
        first_key = next;
        ++b;
    }
    return sequence_at(p, b, first_key);
}

// The slot of sequence b's first tile, among tiles of one key head.
__device__ __forceinline__ i64 first_tile(const AttentionParameters& p, u32 b) {
    return __ldg(p.seqstarts + b) * p.heads_per_key / TILE + b;
}

// The last sequence whose tiles start at this slot or before it.
__device__ __forceinline__ Sequence sequence_of_tile(const AttentionParameters& p, i64 slot) {
    u32 b = 0;
#pragma unroll 1
    for (u32 n = p.tokens.batch; n > 1;) {
        const u32 half = n / 2;
        if (first_tile(p, b + half) <= slot) {
            b += half;
        }
        n -= half;
    }
    return sequence(p, b);
}

// The sum of some weights relative to the largest score, and how the sums of two sets of keys become one.
struct Merge {
    // What the earlier sums and those that are added are multiplied by; negative if nothing is added.
    float earlier;
    float added;
};

__device__ __forceinline__ float negative_infinity() { return __uint_as_float(0xff800000); }

// The larger of two numbers. A second number that is NaN does not count.
__device__ __forceinline__ float larger(float a, float b) { return fmaxf(a, b); }
