// A unit of work, the memory that the threads of a block share for it, and the merging of its pieces.
#pragma once

#include "exponential.cuh"
#include "rows.cuh"
#include "work.cuh"

// Keys of a block.
constexpr u32 KEYS = 64;
// Lanes that share a key's inner products: together they read 64 elements at once.
template <class T1>
constexpr u32 LANES = 64 / PACK<T1>;
// Rows whose sums the threads exchange at a time, with two elements of each from every thread.
constexpr u32 ROWS_AT_ONCE = 4;
constexpr u32 EXCHANGED = 2 * BLOCK;
// From a row's weights to the next row's: 4 rows of 8 keys are in different banks.
constexpr u32 WEIGHTS = KEYS + 8;
// The weight of a key that is not seen.
constexpr float HIDDEN = -1.0f;

// A unit of work: the rows of a tile, and the pieces that they attend over. It has no padding.
struct Unit {
    u64 number;
    Sequence sequence;
    u32 h;
    u32 rows;
    i64 first_row;
    // The first block of keys in which a row of the tile may see one in these pieces, and one past the last such key.
    i64 begin;
    i64 end;
    // Whether these are all pieces, so that the sums are the output's.
    u32 is_whole;
    u32 is_empty;

    // Sets the keys, among these, which begin at a block; so many are before the windows of all rows.
    __device__ __forceinline__ void set_keys(const AttentionParameters& p, i64 first, i64 last, i64 hidden) {
        hidden = hidden / KEYS * KEYS;
        begin = hidden > first ? hidden : first;
        end = min64(last, sequence.visible((first_row + rows - 1) / p.heads_per_key));
    }
};

// Unit `number`: a piece of a decoding step, or a tile.
__device__ __forceinline__ Unit unit_at(const AttentionParameters& p, u64 number) {
    Unit unit;
    unit.number = number;
    i64 first_piece = 0;
    i64 end_piece;
    if (number < p.step_units) {
        const u64 head = number / p.tiles_per_step;
        const i64 slot = head / p.num_kv_heads;
        unit.sequence = sequence_of_piece(p, slot);
        unit.h = head - slot * p.num_kv_heads;
        unit.first_row = static_cast<i64>(number - head * p.tiles_per_step) * TILE;
        first_piece = slot - unit.sequence.first_slot(p);
        end_piece = p.scratch == nullptr ? unit.sequence.pieces() : first_piece + 1;
        unit.is_empty = !unit.sequence.is_step(p) || first_piece >= unit.sequence.pieces();
    } else {
        const u64 rest = number - p.step_units;
        const i64 slot = rest / p.num_kv_heads;
        unit.sequence = sequence_of_tile(p, slot);
        unit.h = rest - slot * p.num_kv_heads;
        unit.first_row = (slot - first_tile(p, unit.sequence.b)) * TILE;
        end_piece = unit.sequence.pieces();
        unit.is_empty = unit.sequence.is_step(p);
    }
    const i64 hidden = unit.sequence.hidden(p, unit.first_row / p.heads_per_key);
    const i64 left = unit.sequence.rows(p) - unit.first_row;
    const i64 first_seen = hidden / PIECE;
    unit.is_empty = unit.is_empty || left <= 0 || end_piece <= first_seen;
    unit.is_whole = number >= p.step_units || first_seen + 1 == unit.sequence.pieces();
    if (p.scratch == nullptr && number < p.step_units) {
        // The caller knows of no sequence with two pieces. Where there is one its first unit attends over all.
        unit.is_empty = unit.is_empty || first_piece != first_seen;
        unit.is_whole = true;
    }
    unit.rows = left < TILE ? left : TILE;
    unit.set_keys(p, first_piece * PIECE, end_piece * PIECE, hidden);
    return unit;
}

// Aligned for reads of 16 bytes.
struct alignas(16) Tile {
    // Queries, in the order in which lanes read them, with zeros behind their end.
    float q[TILE][MAX_HEAD_DIM];
    union {
        // Of two blocks of keys: inner products, then weights.
        float weights[2][TILE][WEIGHTS];
        float exchange[ROWS_AT_ONCE][EXCHANGED];
    };
    // The rows of two blocks of keys.
    u64 cells[2][KEYS];
    u64 scales[2][KEYS];
    Unit unit;
    // What a row's sums are multiplied by before the block's weights are added.
    float rescale[TILE];
    // The largest score and the sum of weights of a piece, and of all pieces so far.
    float piece_maximum[TILE];
    float piece_sum[TILE];
    float maximum[TILE];
    float sum[TILE];
    Merge merge[TILE];
    // The sums of weighted values of all pieces so far.
    float totals[TILE][MAX_HEAD_DIM];
    // For each row: the keys before its window, the end of those that it may see, the position behind which keys are, and
    // the element of the mask that belongs to the first key.
    i64 hidden[TILE];
    i64 visible[TILE];
    i64 position[TILE];
    i64 mask_at[TILE];
    i64 output_at[TILE];
    float slope[TILE];
    float sink[TILE];
};

__shared__ Tile tile;

// How the threads of a block share the elements of a value.
struct Shares {
    u32 shift;

    __device__ __forceinline__ explicit Shares(u32 head_dim) : shift(head_dim <= 64 ? 5 : head_dim <= 128 ? 6 : 7) {}

    // Threads for a key: each has two neighboring elements.
    __device__ __forceinline__ u32 threads() const { return 1 << shift; }

    // Elements of a row, rounded up.
    __device__ __forceinline__ u32 row() const { return 2 << shift; }
};

// The place of element d of a query. Lanes read four elements at a time; neighboring lanes read neighboring fours.
template <class T1>
__device__ __forceinline__ u32 query_place(u32 d) {
    const u32 pack = d / PACK<T1>;
    const u32 i = d % PACK<T1>;
    return ((pack / LANES<T1> * (PACK<T1> / 4) + i / 4) * LANES<T1> + pack % LANES<T1>) * 4 + i % 4;
}

// Merges a piece into the sums of earlier pieces: gives the two factors to multiply by. A piece without a visible key
// changes nothing.
__device__ __forceinline__ Merge merge_piece(float& maximum, float& sum, float piece_maximum, float piece_sum) {
    if (piece_sum == 0.0f) {
        return {1.0f, HIDDEN};
    }
    const float largest = larger(maximum, piece_maximum);
    Merge merge;
    merge.earlier = maximum == largest ? 1.0f : exponential(__fadd_rn(maximum, -largest));
    merge.added = piece_maximum == largest ? 1.0f : exponential(__fadd_rn(piece_maximum, -largest));
    sum = __fadd_rn(__fmul_rn(sum, merge.earlier), __fmul_rn(piece_sum, merge.added));
    maximum = largest;
    return merge;
}

// The sink of a query head; minus infinity if there is none.
template <class T1>
__device__ __forceinline__ float sink_of(const AttentionParameters& p, u32 head) {
    return p.sinks == nullptr ? negative_infinity()
                              : value_of<T1>(read<typename T1::Bits>(p.sinks + bytes_of_elements<T1>(head)));
}

// Adds the weight of a sink to the sums of a row that sees a key: what these are multiplied by.
__device__ __forceinline__ float merge_sink(float& maximum, float& sum, float sink) {
    if (sink == negative_infinity() || maximum == negative_infinity()) {
        return 1.0f;
    }
    const float largest = larger(maximum, sink);
    const float earlier = exponential(__fadd_rn(maximum, -largest));
    sum = __fadd_rn(__fmul_rn(sum, earlier), exponential(__fadd_rn(sink, -largest)));
    maximum = largest;
    return earlier;
}

__device__ __forceinline__ float merged(const Merge& merge, float earlier, float added) {
    return __fadd_rn(__fmul_rn(earlier, merge.earlier), __fmul_rn(added, merge.added));
}
