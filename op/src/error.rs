//! Errors: one variant for each rule that a call can break, with what was expected and what it got.

use kvcache_schema::multi_head_attention::T1;
use kvcache_schema::{ElementType, TypeCombination};
use strum::IntoStaticStr;
use thiserror::Error;

use crate::tensor::Shape;

/// A call that was refused. Nothing has been written to cache, scale or outputs.
///
/// The text is one line that names the input, the sequence as `batch b` where there is one, what the call has and what
/// is expected. [`Error::kind`] is a stable name for programs.
#[derive(Debug, Clone, PartialEq, Eq, Error, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
#[expect(missing_docs, reason = "the texts say what the fields are")]
pub enum Error {
    /// An attribute outside its range.
    #[error("attribute {name} is {got}, expected {expected}")]
    AttributeOutOfRange { name: &'static str, got: i64, expected: String },

    /// A float attribute outside its range; `got` is the number as text.
    #[error("attribute {name} is {got}, expected {expected}")]
    #[strum(serialize = "attribute_out_of_range")]
    FloatOutOfRange { name: &'static str, got: String, expected: String },

    /// A combination of types that the table of types does not have for one of `t1s`, the operator's types of
    /// `current_key`.
    #[error(
        "illegal types for quant_bit {} and quant_type {quant_type}: current_key (T1) is {}, cache (T2) is {}, \
         scale (T3) is {}; expected one of {}",
        got.quant_bit,
        got.t1,
        got.t2,
        got.t3.map_or("absent", ElementType::name),
        TypeCombination::legal_types(got.quant_bit, *quant_type, t1s)
    )]
    IllegalTypes { got: TypeCombination, quant_type: i64, t1s: &'static [ElementType] },

    /// A quantized cache without scales.
    #[error(
        "scale is absent or has no elements, expected a tensor of float32 or float16 because quant_bit is {quant_bit}"
    )]
    ScaleMissing { quant_bit: i64 },

    /// An input that the operator needs, and the call does not have.
    #[error("{input} is absent, expected a tensor")]
    InputMissing { input: &'static str },

    /// Another number of inputs or outputs than the operator has.
    #[error("the call has {got} {what}, expected {expected}")]
    OperandCount { what: &'static str, got: usize, expected: String },

    /// A tensor that is not where the call needs it: on its device, or on the host.
    #[error("{input} is in memory of {got}, expected memory of {expected}")]
    Place { input: &'static str, got: &'static str, expected: &'static str },

    /// A tensor that is written, given as one to be read.
    #[error("{input} is read-only, expected a tensor that can be written")]
    ReadOnly { input: &'static str },

    /// A tensor of another type than it must have.
    #[error("{input} is of type {got}, expected {expected}")]
    TypeMismatch { input: &'static str, got: ElementType, expected: ElementType },

    /// A graph exported before pages existed.
    #[error(
        "cachestarts has rank 1 (shape {shape}) although cache_mode is 1: this is the per-token table of exports from \
         before paged caches existed, which is not supported; expected rank 2, a row of page starts for each sequence"
    )]
    LegacyPageTable { shape: Shape },

    /// A tensor of another rank than it must have.
    #[error("{input} has rank {} (shape {shape}), expected rank {expected}", shape.len())]
    RankMismatch { input: &'static str, shape: Shape, expected: usize },

    /// A tensor whose shape does not agree with the attributes and the other tensors.
    #[error("{input} has {got} in axis {axis} (shape {shape}), expected {expected}, {reason}")]
    ShapeMismatch { input: &'static str, shape: Shape, axis: usize, got: usize, expected: usize, reason: &'static str },

    /// A `head_dim` that is not a multiple of `quant_group`.
    #[error(
        "head_dim is {head_dim} (the last axis of current_key), expected a multiple of quant_group = {quant_group}"
    )]
    HeadDimNotDivisible { head_dim: usize, quant_group: usize },

    /// `seqstarts` or `kvstarts` that do not begin with 0.
    #[error("{input} begins with {got} (batch 0), expected 0")]
    StartsNotZero { input: &'static str, got: i64 },

    /// `seqstarts` or `kvstarts` that decrease, so that the length of sequence `b` would be negative.
    #[error("{input} decreases from {before} to {got} at batch {b}, expected at least {before}")]
    StartsDecrease { input: &'static str, b: usize, before: i64, got: i64 },

    /// `seqstarts` or `kvstarts` that do not end with the number of rows that they cut into sequences.
    #[error("{input} ends with {got}, expected {expected}, the number of tokens in {of}")]
    StartsTotal { input: &'static str, of: &'static str, got: i64, expected: usize },

    /// A negative `start_pos`; in static batching all sequences have the same one, and there is no `b`.
    #[error("start_pos is {got}{}, expected at least 0", at_batch(*b))]
    StartPosNegative { b: Option<usize>, got: i64 },

    /// Static batching: more sequences than the cache has room for.
    #[error("current_key has {batch} sequences, expected at most MaxB = {max_b}, those of cache")]
    BatchTooLarge { batch: usize, max_b: usize },

    /// Static batching: tokens after the last position of the cache.
    #[error(
        "start_pos is {start_pos} with {seqlen} tokens in current_key, expected start_pos + S <= MaxS = {max_s}, the \
         positions of cache"
    )]
    PositionRange { start_pos: usize, seqlen: usize, max_s: usize },

    /// A sequence whose kvlen is not start_pos + seqlen.
    #[error(
        "kvstarts gives batch {b} kvlen {kvlen}, expected start_pos + seqlen = {start_pos} + {seqlen} = {}",
        i128::from(*start_pos) + i128::from(*seqlen)
    )]
    KvlenMismatch { b: usize, kvlen: i64, start_pos: i64, seqlen: i64 },

    /// A `max_seqlen` or `max_kvlen` below the longest sequence, which is `b`.
    #[error("{input} is {got}, expected at least {expected}, the length of the longest sequence{}", at_batch(*b))]
    MaxTooSmall { input: &'static str, got: i64, expected: i64, b: Option<usize> },

    /// Offset mode: a sequence whose slots are not all in the cache.
    #[error(
        "cachestarts is {start} at batch {b} with kvlen {kvlen}, which is outside of the cache; expected \
         0 <= cachestarts and cachestarts + kvlen <= MaxT = {max_t}"
    )]
    CacheRange { b: usize, start: i64, kvlen: usize, max_t: usize },

    /// Paged mode: a sequence that needs more pages than the page table has columns.
    #[error(
        "cachestarts has {max_p} pages for batch {b}, expected at least {needed} for kvlen {kvlen} with page_size \
         {page_size}"
    )]
    TooManyPages { b: usize, kvlen: usize, page_size: usize, needed: usize, max_p: usize },

    /// Paged mode: a page, by its column in `cachestarts`, whose used slots are not all in the cache.
    #[error(
        "cachestarts is {start} at batch {b}, page {page}, of which {used} slots are used: outside of the cache; \
         expected 0 <= cachestarts and cachestarts + {used} <= MaxT = {max_t}"
    )]
    PageRange { b: usize, page: usize, start: i64, used: usize, max_t: usize },

    /// Two current tokens with the same slot; of one sequence if its page table names a slot twice.
    #[error(
        "cachestarts makes batch {b} and batch {other} both write slot {slot} in this call, expected at most one token \
         to write a slot"
    )]
    WriteConflict { b: usize, other: usize, slot: usize },

    /// A type of keys, values and queries that has no scores.
    #[error("{input} is of type {got}, expected {}: attention has no other T1", T1.map(ElementType::name).join(", "))]
    AttentionType { input: &'static str, got: ElementType },

    /// An `attn_mask` without a column for every key.
    #[error("attn_mask has {got} columns (shape {shape}), expected at least {expected}, the last entry of kvstarts")]
    MaskTooSmall { shape: Shape, got: usize, expected: usize },

    /// A negative `decoding_batches`.
    #[error("decoding_batches is {got}, expected at least 0")]
    DecodingBatchesNegative { got: i64 },

    /// An index of a row that a quantized matrix does not have.
    #[error("indices is {got} at element {place}, expected 0 to N - 1 = {}", n - 1)]
    IndexRange { place: usize, got: i64, n: usize },

    /// A size that does not fit in 64 bits.
    #[error("the size of {input} (shape {shape}) does not fit in 64 bits")]
    SizeOverflow { input: &'static str, shape: Shape },

    /// An output of a `run_alloc` for which there is no memory.
    #[error("out of memory for {output} (shape {shape})")]
    OutOfMemory { output: &'static str, shape: Shape },

    /// A tensor that is not contiguous in row-major order.
    #[error("{input} is not contiguous (shape {shape}), expected row-major order without gaps")]
    NotContiguous { input: &'static str, shape: Shape },

    /// A tensor that is not aligned to the size of its elements.
    #[error("{input} is at address {address:#x}, expected a multiple of {expected}, the size of its elements")]
    Misaligned { input: &'static str, address: usize, expected: usize },

    /// A tensor of codes, as of packed int4, with other than the bytes of its shape.
    #[error("{input} has {got} bytes of packed elements, expected {expected} for shape {shape}")]
    PackedLength { input: &'static str, shape: Shape, got: usize, expected: usize },

    /// A slice of device memory with other than the bytes of its shape.
    #[error("{input} is a slice of {got} bytes, expected {expected} for shape {shape}")]
    SliceLength { input: &'static str, shape: Shape, got: usize, expected: usize },

    /// A tensor of another framework that none of the operator's can be made of.
    #[cfg(feature = "dlpack")]
    #[error(transparent)]
    Dlpack(#[from] DlpackError),

    /// A tensor that is written and overlaps another one.
    #[error("{input} shares memory with {other}, expected no overlap because it is written")]
    OperandsOverlap { input: &'static str, other: &'static str },
}

/// A tensor of another framework that none of the operator's can be made of.
#[cfg(feature = "dlpack")]
#[derive(Debug, Clone, PartialEq, Eq, Error, IntoStaticStr)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the texts say what the fields are")]
pub enum DlpackError {
    /// A tensor of another framework that is not in memory of the host.
    #[error("{input} is on device {device}, expected memory of the CPU")]
    #[strum(serialize = "device")]
    DeviceMemory { input: &'static str, device: String },

    /// A tensor of another framework with elements of a type that no input has.
    #[error(
        "{input} has elements of DLPack's type code {code} with {bits} bits and {lanes} lanes, expected float32, \
         float16, int8, int4 or int64"
    )]
    #[strum(serialize = "element_type")]
    UnknownElementType { input: &'static str, code: u8, bits: u8, lanes: u16 },

    /// A description of a tensor that describes none.
    #[error("{input} is not a tensor: {reason}")]
    #[strum(serialize = "invalid_dltensor")]
    InvalidDlTensor { input: &'static str, reason: String },
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
