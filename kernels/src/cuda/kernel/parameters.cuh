// The parameters of the kernels, passed by value. parameters.rs declares the same and documents each field; launch.rs
// fills it.
#pragma once

using i8 = signed char;
using u8 = unsigned char;
using u16 = unsigned short;
using i32 = int;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;

// Division of n < 2^31 by `value`.
struct Divisor {
    u32 value;
    u32 magic;
    u32 shift;
};

// In elements.
struct Strides {
    i64 token;
    i64 kv;
    i64 head;
};

struct Parameters {
    const u8* current[2];    // T1 (rows of the store, H, Dh)
    u8* outputs[2];          // T1 (rows of the load, H * num_repeat, Dh)
    u8* cache;               // T2, the layer's first element
    u8* scale;               // T3, the layer's first element
    const i64* seqstarts;    // (B + 1)
    const i64* start_pos;    // (B)
    const i64* cachestarts;  // (B) or (B, max_p)
    u64* status;             // (1)
    i64 rows;
    i64 max_t;
    i64 max_p;
    i64 page_size;
    Strides cache_strides;
    Strides scale_strides;  // static scales have 0 from slot to slot
    u32 batch;
    u32 head_dim;
    u32 num_repeat;
    u32 group;
    u32 round;
    u32 exact_rows;
    Divisor units_per_token;
    Divisor units_per_head;
    Divisor units_per_group;
    u32 rotation_order;
};

struct IndexParameters {
    u8* seqstarts;    // int64 (B + 1), written
    u8* start_pos;    // int64 (B), written
    u8* cachestarts;  // int64 (B), written
    u64 batch;
    i64 seqlen;
    i64 past;
    i64 stride;
};

static_assert(sizeof(Parameters) == 224, "as in parameters.rs");
static_assert(sizeof(IndexParameters) == 56, "as in parameters.rs");
