//! What can be wrong with a call: one variant for each rule, with the numbers.

use kvcache_schema::{ElementType, TypeCombination};
use thiserror::Error;

use crate::tensor::Shape;

/// A call that was refused. Nothing has been written to cache, scale or outputs.
///
/// The text is one line that names the input, the sequence as `batch b` where there is one, what the call has and what is
/// expected. [`Error::kind`] is a stable name for programs.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
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

    /// Types that do not go together.
    #[error(
        "illegal types for quant_bit {quant_bit}: current_key (T1) is {t1}, cache (T2) is {t2}, scale (T3) is {}; \
         expected one of {}",
        t3.map_or("absent", ElementType::name),
        legal_types(*quant_bit)
    )]
    IllegalTypes {
        /// The type of `current_key`.
        t1: ElementType,
        /// The type of `cache`.
        t2: ElementType,
        /// The type of `scale`, if given.
        t3: Option<ElementType>,
        /// The attribute `quant_bit`.
        quant_bit: i64,
    },

    /// A quantized cache without scales.
    #[error("scale is absent, expected a tensor of float32 or float16 because quant_bit is {quant_bit}")]
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

    /// A graph from before pages existed.
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

    /// A tensor of another shape than the others ask for.
    #[error("{input} has {got} in axis {axis} (shape {shape}), expected {expected}, {reason}")]
    ShapeMismatch {
        /// The tensor's name.
        input: &'static str,
        /// Its shape.
        shape: Shape,
        /// The axis that is wrong.
        axis: usize,
        /// The axis' length.
        got: usize,
        /// The length it must have.
        expected: usize,
        /// Where the expected length comes from.
        reason: &'static str,
    },

    /// Heads that are not whole groups.
    #[error(
        "head_dim is {head_dim} (the last axis of current_key), expected a multiple of quant_group, which is {quant_group}"
    )]
    HeadDimNotDivisible {
        /// The last axis of `current_key`.
        head_dim: usize,
        /// The attribute `quant_group`.
        quant_group: usize,
    },

    /// Starts that do not begin with 0.
    #[error("{input} begins with {got} (batch 0), expected 0")]
    StartsNotZero {
        /// `seqstarts` or `kvstarts`.
        input: &'static str,
        /// Its first entry.
        got: i64,
    },

    /// Starts that fall.
    #[error("{input} falls from {before} to {got} at batch {b}, expected at least {before}")]
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

    /// Starts that do not end with the number of tokens.
    #[error("{input} ends with {got}, expected {expected}, the number of tokens in current_key")]
    StartsTotal {
        /// `seqstarts`.
        input: &'static str,
        /// Its last entry.
        got: i64,
        /// The number of tokens.
        expected: usize,
    },

    /// A sequence that starts before its first token.
    #[error("start_pos is {got} at batch {b}, expected at least 0")]
    StartPosNegative {
        /// The sequence.
        b: usize,
        /// Its entry.
        got: i64,
    },

    /// A sequence whose past and current tokens are not all its tokens.
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

    /// An upper bound that is none.
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

    /// Offset mode: a sequence outside the cache.
    #[error(
        "cachestarts is {start} at batch {b}, whose {kvlen} tokens would not lie in the cache's slots 0 to {max_t}; \
         expected 0 <= cachestarts and cachestarts + kvlen <= MaxT = {max_t}"
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

    /// Paged mode: a sequence with more pages than its row of the page table.
    #[error(
        "cachestarts has {max_p} pages for batch {b}, expected at least {needed} for kvlen {kvlen} with page_size {page_size}"
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

    /// Paged mode: a page outside the cache.
    #[error(
        "cachestarts is {start} at batch {b}, page {page}, whose {used} used slots would not lie in the cache's slots 0 to \
         {max_t}; expected 0 <= start and start + {used} <= MaxT = {max_t}"
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

    /// Two tokens that would be stored to one slot.
    #[error(
        "cachestarts makes batch {b} and batch {other} both write slot {slot} in this call, expected each slot written by one \
         token at most"
    )]
    WriteConflict {
        /// The sequence of one token.
        b: usize,
        /// The sequence of the other; the same one if its page table names a slot twice.
        other: usize,
        /// The slot.
        slot: usize,
    },

    /// A size that does not fit in 64 bits.
    #[error("the size of {input} (shape {shape}) does not fit in 64 bits")]
    SizeOverflow {
        /// The tensor's name.
        input: &'static str,
        /// Its shape.
        shape: Shape,
    },

    /// An output that this library was to allocate and that the system has no memory for.
    #[error("there is no memory for {output} (shape {shape})")]
    OutOfMemory {
        /// `key` or `value`.
        output: &'static str,
        /// Its shape.
        shape: Shape,
    },

    /// A tensor whose elements do not lie side by side in row-major order.
    #[error("{input} is not contiguous (shape {shape}), expected row-major memory without gaps")]
    NotContiguous {
        /// The tensor's name.
        input: &'static str,
        /// Its shape.
        shape: Shape,
    },

    /// A tensor at an address that its type must not have.
    #[error("{input} lies at address {address:#x}, expected a multiple of {expected}, the size of its elements")]
    Misaligned {
        /// The tensor's name.
        input: &'static str,
        /// Its address.
        address: usize,
        /// The alignment of its type.
        expected: usize,
    },

    /// A packed int4 tensor whose bytes are not as many as its shape asks for.
    #[error("{input} has {got} bytes of packed elements, expected {expected} for shape {shape}")]
    PackedLength {
        /// The tensor's name.
        input: &'static str,
        /// Its logical shape.
        shape: Shape,
        /// Its bytes.
        got: usize,
        /// The bytes that the shape asks for.
        expected: usize,
    },

    /// A slice of a device whose bytes are not as many as its shape asks for.
    #[cfg(feature = "cuda")]
    #[error("{input} is a slice of {got} bytes, expected {expected} for shape {shape}")]
    SliceLength {
        /// The tensor's name.
        input: &'static str,
        /// Its shape.
        shape: Shape,
        /// The slice's bytes.
        got: usize,
        /// The bytes that the shape asks for.
        expected: usize,
    },

    /// Two tensors of which one is written and that share memory.
    #[error("{input} shares memory with {other}, expected memory of its own because it is written")]
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
            Self::AttributeOutOfRange { .. } => "attribute_out_of_range",
            Self::IllegalTypes { .. } => "illegal_types",
            Self::ScaleMissing { .. } => "scale_missing",
            Self::TypeMismatch { .. } => "type_mismatch",
            Self::LegacyPageTable { .. } => "legacy_page_table",
            Self::RankMismatch { .. } => "rank_mismatch",
            Self::ShapeMismatch { .. } => "shape_mismatch",
            Self::HeadDimNotDivisible { .. } => "head_dim_not_divisible",
            Self::StartsNotZero { .. } => "starts_not_zero",
            Self::StartsDecrease { .. } => "starts_decrease",
            Self::StartsTotal { .. } => "starts_total",
            Self::StartPosNegative { .. } => "start_pos_negative",
            Self::KvlenMismatch { .. } => "kvlen_mismatch",
            Self::MaxTooSmall { .. } => "max_too_small",
            Self::CacheRange { .. } => "cache_range",
            Self::TooManyPages { .. } => "too_many_pages",
            Self::PageRange { .. } => "page_range",
            Self::WriteConflict { .. } => "write_conflict",
            Self::SizeOverflow { .. } => "size_overflow",
            Self::OutOfMemory { .. } => "out_of_memory",
            Self::NotContiguous { .. } => "not_contiguous",
            Self::Misaligned { .. } => "misaligned",
            Self::PackedLength { .. } => "packed_length",
            #[cfg(feature = "cuda")]
            Self::SliceLength { .. } => "slice_length",
            Self::OperandsOverlap { .. } => "operands_overlap",
        }
    }
}

/// The rows of the table of types for a `quant_bit`, in words.
fn legal_types(quant_bit: i64) -> String {
    let rows = TypeCombination::LEGAL.into_iter().filter(|row| row.quant_bit == quant_bit);
    let names = |row: TypeCombination| row.types().map(ElementType::name).collect::<Vec<_>>().join(" x ");
    rows.map(names).collect::<Vec<_>>().join(", ")
}

fn at_batch(b: Option<usize>) -> String {
    b.map_or(String::new(), |b| format!(" (batch {b})"))
}
