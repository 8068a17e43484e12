//! What can be wrong with a call: one variant for each rule, with the numbers.

use kvcache_schema::ElementType;
use thiserror::Error;

use crate::tensor::Shape;

/// A call that was refused. Nothing has been written to cache, scale or outputs.
///
/// The text is one line that names the input, the sequence as `batch b` where there is one, the value found and the value
/// wanted. [`Error::kind`] is a stable name for programs.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// An attribute outside its range.
    #[error("attribute {name} is {found}, wanted {wanted}")]
    AttributeOutOfRange {
        /// The attribute's name.
        name: &'static str,
        /// Its value.
        found: i64,
        /// Its legal values, in words.
        wanted: String,
    },

    /// Types that do not go together.
    #[error(
        "illegal types for quant_bit {quant_bit}: current_key (T1) is {t1}, cache (T2) is {t2}, scale (T3) is {}; \
         wanted {}",
        t3.map_or("absent", ElementType::name),
        wanted_types(*quant_bit)
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
    #[error("scale is absent, wanted a tensor of float32 or float16 because quant_bit is {quant_bit}")]
    ScaleMissing {
        /// The attribute `quant_bit`.
        quant_bit: i64,
    },

    /// A tensor of another type than it must have.
    #[error("{input} is of type {found}, wanted {wanted}")]
    TypeMismatch {
        /// The tensor's name.
        input: &'static str,
        /// Its type.
        found: ElementType,
        /// The type it must have.
        wanted: ElementType,
    },

    /// A graph from before pages existed.
    #[error(
        "cachestarts has rank 1 (shape {shape}) although cache_mode is 1: this is the per-token table of exports from \
         before paged caches existed, which is not supported; wanted rank 2, a row of page starts for each sequence"
    )]
    LegacyPageTable {
        /// The shape of `cachestarts`.
        shape: Shape,
    },

    /// A tensor of another rank than it must have.
    #[error("{input} has rank {} (shape {shape}), wanted rank {wanted}", shape.len())]
    RankMismatch {
        /// The tensor's name.
        input: &'static str,
        /// Its shape.
        shape: Shape,
        /// The rank it must have.
        wanted: usize,
    },

    /// A tensor of another shape than the others ask for.
    #[error("{input} has {found} in axis {axis} (shape {shape}), wanted {wanted}, {reason}")]
    ShapeMismatch {
        /// The tensor's name.
        input: &'static str,
        /// Its shape.
        shape: Shape,
        /// The axis that is wrong.
        axis: usize,
        /// The axis' length.
        found: usize,
        /// The length it must have.
        wanted: usize,
        /// Where the wanted length comes from.
        reason: &'static str,
    },

    /// Heads that are not whole groups.
    #[error(
        "head_dim is {head_dim} (the last axis of current_key), wanted a multiple of quant_group, which is {quant_group}"
    )]
    HeadDimNotDivisible {
        /// The last axis of `current_key`.
        head_dim: usize,
        /// The attribute `quant_group`.
        quant_group: usize,
    },

    /// Starts that do not begin with 0.
    #[error("{input} begins with {found} (batch 0), wanted 0")]
    StartsNotZero {
        /// `seqstarts` or `kvstarts`.
        input: &'static str,
        /// Its first entry.
        found: i64,
    },

    /// Starts that fall.
    #[error("{input} falls from {before} to {found} at batch {b}, wanted at least {before}")]
    StartsDecrease {
        /// `seqstarts` or `kvstarts`.
        input: &'static str,
        /// The sequence whose length would be negative.
        b: usize,
        /// Where it starts.
        before: i64,
        /// Where it ends.
        found: i64,
    },

    /// Starts that do not end with the number of tokens.
    #[error("{input} ends with {found}, wanted {wanted}, the number of tokens in current_key")]
    StartsTotal {
        /// `seqstarts`.
        input: &'static str,
        /// Its last entry.
        found: i64,
        /// The number of tokens.
        wanted: usize,
    },

    /// A sequence that starts before its first token.
    #[error("start_pos is {found} at batch {b}, wanted at least 0")]
    StartPosNegative {
        /// The sequence.
        b: usize,
        /// Its entry.
        found: i64,
    },

    /// A sequence whose past and current tokens are not all its tokens.
    #[error(
        "kvstarts gives batch {b} kvlen {kvlen}, wanted start_pos + seqlen = {start_pos} + {seqlen} = {}",
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
    #[error("{input} is {found}, wanted at least {wanted}, the length of the longest sequence{}", at_batch(*b))]
    MaxTooSmall {
        /// `max_seqlen` or `max_kvlen`.
        input: &'static str,
        /// Its value.
        found: i64,
        /// The true maximum.
        wanted: i64,
        /// The sequence that is the longest, if there is any.
        b: Option<usize>,
    },

    /// Offset mode: a sequence outside the cache.
    #[error(
        "cachestarts is {start} at batch {b}, whose {kvlen} tokens would not lie in the cache's slots 0 to {max_t}; \
         wanted 0 <= cachestarts and cachestarts + kvlen <= MaxT = {max_t}"
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
        "cachestarts has {max_p} pages for batch {b}, wanted at least {needed} for kvlen {kvlen} with page_size {page_size}"
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
         {max_t}; wanted 0 <= start and start + {used} <= MaxT = {max_t}"
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
        "cachestarts makes batch {b} and batch {other} both write slot {slot} in this call, wanted each slot written by one \
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
    #[error("{input} is not contiguous (shape {shape}), wanted row-major memory without gaps")]
    NotContiguous {
        /// The tensor's name.
        input: &'static str,
        /// Its shape.
        shape: Shape,
    },

    /// A tensor at an address that its type must not have.
    #[error("{input} lies at address {address:#x}, wanted a multiple of {wanted}, the size of its elements")]
    Misaligned {
        /// The tensor's name.
        input: &'static str,
        /// Its address.
        address: usize,
        /// The alignment of its type.
        wanted: usize,
    },

    /// A packed int4 tensor whose bytes are not as many as its shape asks for.
    #[error("{input} has {found} bytes of packed elements, wanted {wanted} for shape {shape}")]
    PackedLength {
        /// The tensor's name.
        input: &'static str,
        /// Its logical shape.
        shape: Shape,
        /// Its bytes.
        found: usize,
        /// The bytes that the shape asks for.
        wanted: usize,
    },

    /// A slice of a device whose bytes are not as many as its shape asks for.
    #[cfg(feature = "cuda")]
    #[error("{input} is a slice of {found} bytes, wanted {wanted} for shape {shape}")]
    SliceLength {
        /// The tensor's name.
        input: &'static str,
        /// Its shape.
        shape: Shape,
        /// The slice's bytes.
        found: usize,
        /// The bytes that the shape asks for.
        wanted: usize,
    },

    /// Two tensors of which one is written and that share memory.
    #[error("{input} shares memory with {other}, wanted memory of its own because it is written")]
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

/// The legal types for a `quant_bit`, in words.
fn wanted_types(quant_bit: i64) -> &'static str {
    match quant_bit {
        0 => "float32 or float16 for T1 and T2, or int8 for both",
        4 => "float32 or float16 for T1, int4 for T2, float32 or float16 for T3",
        _ => "float32 or float16 for T1, int8 for T2, float32 or float16 for T3",
    }
}

fn at_batch(b: Option<usize>) -> String {
    b.map_or(String::new(), |b| format!(" (batch {b})"))
}
