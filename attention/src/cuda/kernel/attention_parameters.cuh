// The parameter of the attention kernels, passed by value. parameters.rs declares the same and documents each field;
// launch.rs fills it.
#pragma once

#include "parameters.cuh"

struct AttentionParameters {
    Parameters tokens;    // all tokens: lengths, slots and strides; of its tensors only the indices are used
    const u8* rows[2];    // T2, the first key and the first value
    const u8* scales[2];  // T3, of the first key and of the first value
    const u8* query;      // T1 (query_rows, Hq, Dh)
    const u8* mask;       // T1, null if there is none
    const u8* sinks;      // T1 (Hq), null if there are none
    u8* output;           // T1 (query_rows, Hq, Dh)
    u8* scratch;          // float32 (step_units, rows_per_tile, 2 + Dh)
    u8* totals;           // float32 (query_rows, Hq, 2), null without a mass
    u8* mass;             // float32 (Hq, tokens.rows), null without
    const i64* seqstarts;  // (B + 1)
    i64 query_rows;
    i64 mask_width;
    i64 mask_plane;
    i64 decoding_batches;
    i64 window;
    u64 step_units;
    u64 units;
    u32 heads_per_key;
    u32 num_heads;
    u32 num_kv_heads;
    u32 most_step_rows;
    u32 tiles_per_step;
    u32 rows_per_tile;
    u32 window_pieces;
    float factor;
    float scale;
    float softcap;
    u32 is_causal;
    u32 alibi_heads;
    u32 packed;
};

static_assert(sizeof(AttentionParameters) == 432, "as in parameters.rs");
