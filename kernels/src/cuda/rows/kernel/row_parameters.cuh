// The parameters of the kernels that move and rotate rows, passed by value. rows/parameters.rs declares the same and
// documents each field. A launch's parameters have 4096 bytes at most: a longer list is several launches.
#pragma once

#include "parameters.cuh"

constexpr u32 MOST_MOVES = 160;
constexpr u32 MOST_ROTATIONS = 64;
constexpr u32 MOST_PAIRS = 256;
constexpr u32 MOST_HEAD_DIM = 512;

// Strides in bytes.
struct RowPlace {
    u8* base;
    i64 token;
    i64 layer;
    i64 kv;
    i64 head;
};

struct Move {
    i64 from;
    i64 to;
    i64 len;
};

struct MoveParameters {
    RowPlace from;
    RowPlace to;
    u64 words;           // of a row
    u32 words_per_head;
    u32 num_heads;
    u32 count;
    u32 parts;           // that rows are cut into, of any block each; 1 where rows are read and written
    Move moves[MOST_MOVES];
};

struct Turn {
    i64 slot;
    u64 before;          // slots of the list before this one
};

struct RotateParameters {
    RowPlace cache;
    RowPlace scale;
    u64 heads;           // in all slots, layers and heads
    u32 num_layer;
    u32 num_heads;
    u32 head_dim;
    u32 group;
    u32 pairs;
    u32 step;            // from a pair's first element to its second
    u32 stride;          // from a pair to the next
    u32 count;
    u32 order;           // of the Hadamard matrix that keys were multiplied by; 1 where they were not
    u32 unused;
    float cos[MOST_PAIRS];
    float sin[MOST_PAIRS];
    Turn turns[MOST_ROTATIONS];
};

static_assert(sizeof(MoveParameters) == 3944, "as in rows/parameters.rs");
static_assert(sizeof(RotateParameters) == 3200, "as in rows/parameters.rs");
