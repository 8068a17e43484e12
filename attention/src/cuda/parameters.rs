//! The parameter of the attention kernels, passed by value; `attention_parameters.cuh` declares the same for the
//! device.

use kvcache_kernels::cuda::Parameters;

/// The one parameter of every attention kernel. `attention_parameters.cuh` mirrors it.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionParameters {
    /// All tokens of all sequences: their lengths, slots and strides. Over packed keys and values their `kvstarts` is
    /// both the `seqstarts` and the `cachestarts` here.
    pub tokens: Parameters,
    /// The first key and the first value that a slot, or a row, of 0 has: T2.
    pub rows: [u64; 2],
    /// Their scales: T3; not accessed without quantization.
    pub scales: [u64; 2],
    /// `query`: T1, shape (`query_rows`, Hq, Dh).
    pub query: u64,
    /// `attn_mask`: T1; 0 if there is none.
    pub mask: u64,
    /// `head_sink`: T1, shape (Hq); 0 if there is none.
    pub sinks: u64,
    /// `attn_output`: T1, shape (`query_rows`, Hq, Dh).
    pub output: u64,
    /// The sums of pieces: float32, shape (`step_units`, `rows_per_tile`, 2 + Dh); 0 where the
    /// caller knows of no sequence with two pieces.
    pub scratch: u64,
    /// The largest score of each query row and the sum of its weights: float32, shape (`query_rows`, Hq, 2); 0 without
    /// a mass.
    pub totals: u64,
    /// `attention_mass`: float32, shape (Hq, `tokens.rows`); 0 if it is not asked for.
    pub mass: u64,
    /// int64, shape (B + 1).
    pub seqstarts: u64,
    /// Rows of `query` and `attn_output`.
    pub query_rows: i64,
    /// Elements from one row of `attn_mask` to the next.
    pub mask_width: i64,
    /// Elements from one query head's plane to the next one's; 0 where all share one.
    pub mask_plane: i64,
    /// So many sequences, the first ones, have no causal mask.
    pub decoding_batches: i64,
    /// The keys that a query sees at most, those up to its own; more than there can be without a window.
    pub window: i64,
    /// Units of work of decoding steps: pieces of keys, for each key head and each tile.
    pub step_units: u64,
    /// Those, and then the tiles of all other sequences.
    pub units: u64,
    /// Query heads that use the same key head.
    pub heads_per_key: u32,
    /// Query heads (Hq).
    pub num_heads: u32,
    /// Key heads (Hk).
    pub num_kv_heads: u32,
    /// A sequence of at most so many query rows for each key head is a decoding step.
    pub most_step_rows: u32,
    /// Tiles of `most_step_rows`.
    pub tiles_per_step: u32,
    /// Rows in a tile of a decoding step.
    pub rows_per_tile: u32,
    /// Pieces that the windows of a decoding step touch at most, for which each sequence has slots; 0 where a sequence
    /// has one for each of its pieces.
    pub window_pieces: u32,
    /// What products are multiplied with: `scale`, or 1 where they have been capped.
    pub factor: f32,
    /// What they are multiplied with before they are capped.
    pub scale: f32,
    /// c of `c * tanh(s / c)`, which a scaled product s becomes; 0 is none.
    pub softcap: f32,
    /// Whether queries of one sequence do not see what is behind them.
    pub is_causal: u32,
    /// The largest power of two that is at most Hq, where scores have ALiBi's bias; else 0.
    pub alibi_heads: u32,
    /// Whether keys and values are packed, so that `tokens` has no `start_pos`.
    pub packed: u32,
}

const _: () = assert!(size_of::<AttentionParameters>() == 432);
