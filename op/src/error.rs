//! Errors: one variant for each rule that a call can break, with what was expected and what it got.

use kvcache_schema::multi_head_attention::T1;
use kvcache_schema::{ElementType, TypeCombination};
use strum::IntoStaticStr;
use thiserror::Error;

use crate::tensor::Shape;
use crate::validate::legal_types;

/// A call that was refused. Nothing has been written to cache, scale or outputs.
///
/// The text is one line that names the input, the sequence as `batch b` where there is one, what the call has and what
/// is expected. [`Error::kind`] is a stable name for programs.
#[derive(Debug, Clone, PartialEq, Eq, Error, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum Error {
    /// An attribute outside its range.
    #[error("attribute {name} is {got}, expected {expected}")]
    AttributeOutOfRange {
        /// The attribute's name.
        name: &'static str,
        /// Its value.
        got: i64,
        /// Its legal values, in words.
        expected: String,
    },

    /// A combination of types that the table of types does not have.
    #[error(
        "illegal types for quant_bit {} and quant_type {quant_type}: current_key (T1) is {}, cache (T2) is {}, \
         scale (T3) is {}; expected one of {}",
        got.quant_bit,
        got.t1,
        got.t2,
        got.t3.map_or("absent", ElementType::name),
        legal_types(got.quant_bit, *quant_type, t1s)
    )]
    IllegalTypes {
        /// The types of `current_key`, of `cache` and, if it is given, of `scale`, and the attribute `quant_bit`.
        got: TypeCombination,
        /// The attribute `quant_type`.
        quant_type: i64,
        /// The types that the operator has for `current_key`.
        t1s: &'static [ElementType],
    },

    /// A quantized cache without scales.
    #[error(
        "scale is absent or has no elements, expected a tensor of float32 or float16 because quant_bit is {quant_bit}"
    )]
    ScaleMissing {
        /// The attribute `quant_bit`.
        quant_bit: i64,
    },

    /// A tensor of another type than it must have.
    #[error("{input} is of type {got}, expected {expected}")]
    TypeMismatch {
        /// The tensor's name.
        input: &'static str,
        /// Its type.
        got: ElementType,
        /// The type it must have.
        expected: ElementType,
    },

    /// A graph exported before pages existed.
    #[error(
        "cachestarts has rank 1 (shape {shape}) although cache_mode is 1: this is the per-token table of exports from \
         before paged caches existed, which is not supported; expected rank 2, a row of page starts for each sequence"
    )]
    LegacyPageTable {
        /// The shape of `cachestarts`.
        shape: Shape,
    },

    /// A tensor of another rank than it must have.
    #[error("{input} has rank {} (shape {shape}), expected rank {expected}", shape.len())]
    RankMismatch {
        /// The tensor's name.
        input: &'static str,
        /// Its shape.
        shape: Shape,
        /// The rank it must have.
        expected: usize,
    },

    /// A tensor whose shape does not agree with the attributes and the other tensors.
    #[error("{input} has {got} in axis {axis} (shape {shape}), expected {expected}, {reason}")]
    ShapeMismatch {
        /// The tensor's name.
        input: &'static str,
        /// Its shape.
        shape: Shape,
        /// The axis that differs.
        axis: usize,
        /// Its length.
        got: usize,
        /// The length it must have.
        expected: usize,
        /// What decides the expected length.
        reason: &'static str,
    },

    /// A `head_dim` that is not a multiple of `quant_group`.
    #[error(
        "head_dim is {head_dim} (the last axis of current_key), expected a multiple of quant_group = {quant_group}"
    )]
    HeadDimNotDivisible {
        /// The last axis of `current_key`.
        head_dim: usize,
        /// The attribute `quant_group`.
        quant_group: usize,
    },

    /// `seqstarts` or `kvstarts` that do not begin with 0.
    #[error("{input} begins with {got} (batch 0), expected 0")]
    StartsNotZero {
        /// `seqstarts` or `kvstarts`.
        input: &'static str,
        /// Its first entry.
        got: i64,
    },

    /// `seqstarts` or `kvstarts` that decrease.
    #[error("{input} decreases from {before} to {got} at batch {b}, expected at least {before}")]
    StartsDecrease {
        /// `seqstarts` or `kvstarts`.
        input: &'static str,
        /// The sequence whose length would be negative.
        b: usize,
        /// Where it starts.
        before: i64,
        /// Where it ends.
        got: i64,
    },

    /// `seqstarts` or `kvstarts` that do not end with the number of rows that they cut into sequences.
    #[error("{input} ends with {got}, expected {expected}, the number of tokens in {of}")]
    StartsTotal {
        /// `seqstarts` or `kvstarts`.
        input: &'static str,
        /// The tensor that has the rows.
        of: &'static str,
        /// Its last entry.
        got: i64,
        /// The number of tokens.
        expected: usize,
    },

    /// A negative `start_pos`.
    #[error("start_pos is {got}{}, expected at least 0", at_batch(*b))]
    StartPosNegative {
        /// The sequence; none in static batching, where it is that of all.
        b: Option<usize>,
        /// Its entry.
        got: i64,
    },

    /// Static batching: more sequences than the cache has room for.
    #[error("current_key has {batch} sequences, expected at most MaxB = {max_b}, those of cache")]
    BatchTooLarge {
        /// The sequences of the call (B).
        batch: usize,
        /// The sequences of the cache (MaxB).
        max_b: usize,
    },

    /// Static batching: tokens behind the last position of the cache.
    #[error(
        "start_pos is {start_pos} with {seqlen} tokens in current_key, expected start_pos + S <= MaxS = {max_s}, the \
         positions of cache"
    )]
    PositionRange {
        /// The input.
        start_pos: usize,
        /// The current tokens of each sequence (S).
        seqlen: usize,
        /// The positions of each sequence in the cache (MaxS).
        max_s: usize,
    },

    /// A sequence whose kvlen is not start_pos + seqlen.
    #[error(
        "kvstarts gives batch {b} kvlen {kvlen}, expected start_pos + seqlen = {start_pos} + {seqlen} = {}",
        i128::from(*start_pos) + i128::from(*seqlen)
    )]
    KvlenMismatch {
        /// The sequence.
        b: usize,
        /// Its tokens by `kvstarts`.
        kvlen: i64,
        /// Its entry of `start_pos`.
        start_pos: i64,
        /// Its tokens by `seqstarts`.
        seqlen: i64,
    },

    /// A `max_seqlen` or `max_kvlen` below the longest sequence.
    #[error("{input} is {got}, expected at least {expected}, the length of the longest sequence{}", at_batch(*b))]
    MaxTooSmall {
        /// `max_seqlen` or `max_kvlen`.
        input: &'static str,
        /// Its value.
        got: i64,
        /// The true maximum.
        expected: i64,
        /// The sequence that is the longest, if there is any.
        b: Option<usize>,
    },

    /// Offset mode: a sequence whose slots are not all in the cache.
    #[error(
        "cachestarts is {start} at batch {b} with kvlen {kvlen}, which is outside of the cache; expected \
         0 <= cachestarts and cachestarts + kvlen <= MaxT = {max_t}"
    )]
    CacheRange {
        /// The sequence.
        b: usize,
        /// Its entry of `cachestarts`.
        start: i64,
        /// Its tokens.
        kvlen: usize,
        /// The cache's slots (MaxT).
        max_t: usize,
    },

    /// Paged mode: a sequence that needs more pages than the page table has columns.
    #[error(
        "cachestarts has {max_p} pages for batch {b}, expected at least {needed} for kvlen {kvlen} with page_size \
         {page_size}"
    )]
    TooManyPages {
        /// The sequence.
        b: usize,
        /// Its tokens.
        kvlen: usize,
        /// The attribute `page_size`.
        page_size: usize,
        /// The pages that it needs.
        needed: usize,
        /// The entries of a row of `cachestarts` (MaxP).
        max_p: usize,
    },

    /// Paged mode: a page whose used slots are not all in the cache.
    #[error(
        "cachestarts is {start} at batch {b}, page {page}, of which {used} slots are used: outside of the cache; \
         expected 0 <= cachestarts and cachestarts + {used} <= MaxT = {max_t}"
    )]
    PageRange {
        /// The sequence.
        b: usize,
        /// The page's column in `cachestarts`.
        page: usize,
        /// The page's entry.
        start: i64,
        /// The slots of the page that the sequence uses.
        used: usize,
        /// The cache's slots (MaxT).
        max_t: usize,
    },

    /// Two current tokens with the same slot.
    #[error(
        "cachestarts makes batch {b} and batch {other} both write slot {slot} in this call, expected at most one token \
         to write a slot"
    )]
    WriteConflict {
        /// The sequence of one token.
        b: usize,
        /// The sequence of the other; the same one if its page table names a slot twice.
        other: usize,
        /// The slot.
        slot: usize,
    },

    /// A type of keys, values and queries that has no scores.
    #[error("{input} is of type {got}, expected {}: attention has no other T1", T1.map(ElementType::name).join(", "))]
    AttentionType {
        /// The tensor whose type is T1.
        input: &'static str,
        /// Its type.
        got: ElementType,
    },

    /// An `attn_mask` without a column for every key.
    #[error("attn_mask has {got} columns (shape {shape}), expected at least {expected}, the last entry of kvstarts")]
    MaskTooSmall {
        /// Its shape.
        shape: Shape,
        /// Its columns (W).
        got: usize,
        /// The keys of all sequences.
        expected: usize,
    },

    /// A negative `decoding_batches`.
    #[error("decoding_batches is {got}, expected at least 0")]
    DecodingBatchesNegative {
        /// Its value.
        got: i64,
    },

    /// A size that does not fit in 64 bits.
    #[error("the size of {input} (shape {shape}) does not fit in 64 bits")]
    SizeOverflow {
        /// The tensor's name.
        input: &'static str,
        /// Its shape.
        shape: Shape,
    },

    /// An output of a `run_alloc` for which there is no memory.
    #[error("out of memory for {output} (shape {shape})")]
    OutOfMemory {
        /// The output's name.
        output: &'static str,
        /// Its shape.
        shape: Shape,
    },

    /// A tensor that is not contiguous in row-major order.
    #[error("{input} is not contiguous (shape {shape}), expected row-major order without gaps")]
    NotContiguous {
        /// The tensor's name.
        input: &'static str,
        /// Its shape.
        shape: Shape,
    },

    /// A tensor that is not aligned to the size of its elements.
    #[error("{input} is at address {address:#x}, expected a multiple of {expected}, the size of its elements")]
    Misaligned {
        /// The tensor's name.
        input: &'static str,
        /// Its address.
        address: usize,
        /// The alignment of its type.
        expected: usize,
    },

    /// A tensor of codes, as of packed int4, with other than the bytes of its shape.
    #[error("{input} has {got} bytes of packed elements, expected {expected} for shape {shape}")]
    PackedLength {
        /// The tensor's name.
        input: &'static str,
        /// Its logical shape.
        shape: Shape,
        /// Its bytes.
        got: usize,
        /// The bytes of the shape.
        expected: usize,
    },

    /// A slice of device memory with other than the bytes of its shape.
    #[error("{input} is a slice of {got} bytes, expected {expected} for shape {shape}")]
    SliceLength {
        /// The tensor's name.
        input: &'static str,
        /// Its shape.
        shape: Shape,
        /// The slice's bytes.
        got: usize,
        /// The bytes of the shape.
        expected: usize,
    },

    /// A tensor of another framework that none of the operator's can be made of.
    #[cfg(feature = "dlpack")]
    #[error(transparent)]
    Dlpack(#[from] crate::dlpack::DlpackError),

    /// A tensor that is written and overlaps another one.
    #[error("{input} shares memory with {other}, expected no overlap because it is written")]
    OperandsOverlap {
        /// The tensor that is written.
        input: &'static str,
        /// The other one.
        other: &'static str,
    },
}

impl Error {
    /// A stable name of the rule that is broken, as the golden cases use it.
    pub fn kind(&self) -> &'static str {
        match self {
            #[cfg(feature = "dlpack")]
            Self::Dlpack(error) => error.into(),
            error => error.into(),
        }
    }
}

fn at_batch(b: Option<usize>) -> String {
    b.map_or(String::new(), |b| format!(" (batch {b})"))
}
