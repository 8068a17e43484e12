//! Errors: one variant for each reason to refuse, with its numbers.

use kvcache_op::Shape;
use kvcache_schema::ElementType;
use thiserror::Error;

use crate::seq_id::SeqId;

/// What a memory says when it cannot do what it is asked.
pub type MemoryError = Box<dyn std::error::Error + Send + Sync>;

/// An operation that was refused. Nothing has changed, neither the manager's state nor a live row; but after
/// [`Error::Memory`], cached pages that a copy was to write may have left the prefix index and be free, with any bytes.
///
/// [`Error::kind`] is a stable name for programs.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// A number of the specification outside its range.
    #[error("{name} is {got}, expected {min} to {max}")]
    SpecRange {
        /// The number's name.
        name: &'static str,
        /// Its value.
        got: usize,
        /// The smallest legal value.
        min: usize,
        /// The largest legal value.
        max: usize,
    },

    /// Types that the operator does not have.
    #[error("no quant_bit has cache {cache} with scale {}", .scale.map_or("none", ElementType::name))]
    Types {
        /// The type of `cache`.
        cache: ElementType,
        /// The type of `scale`, with quantization.
        scale: Option<ElementType>,
    },

    /// Groups that do not divide a head, or that share bytes.
    #[error("quant_group is {group}, expected a divisor of head_dim {head_dim}, even for int4")]
    QuantGroup {
        /// The attribute `quant_group`.
        group: usize,
        /// Elements of a head.
        head_dim: usize,
    },

    /// A tensor, or the two together, whose bytes cannot be counted.
    #[error("the size of {tensor} with shape {shape:?} overflows")]
    SizeOverflow {
        /// `cache` or `scale`.
        tensor: &'static str,
        /// The tensor's shape.
        shape: [usize; 5],
    },

    /// Metadata of a cache, or a step's `cachestarts`, that the system has no memory for.
    #[error("no memory for {len} numbers of {size} bytes")]
    OutOfMemory {
        /// How many numbers: one for each page, for each slot, or for each element of `cachestarts`.
        len: usize,
        /// The bytes of one.
        size: usize,
    },

    /// An id that no sequence has: that of a freed sequence, or the null id, which no sequence ever has.
    #[error("no sequence has the id {seq:?}: {}", absence(*.seq))]
    UnknownSeq {
        /// The id.
        seq: SeqId,
    },

    /// A change while a step is open.
    #[error("a step is open: commit it or roll it back first")]
    StepOpen,

    /// An append of no tokens.
    #[error("append {append} has no tokens")]
    EmptyAppend {
        /// Its index in the step.
        append: usize,
    },

    /// A sequence that is appended to twice in one step.
    #[error("append {append} is to the same sequence as append {other}")]
    DuplicateSeq {
        /// Its index in the step.
        append: usize,
        /// The index of the earlier append.
        other: usize,
    },

    /// A position that is not behind those of the sequence.
    #[error("append {append} begins at position {got}, expected {min} or a later one")]
    PositionOrder {
        /// Its index in the step.
        append: usize,
        /// Its first position.
        got: i64,
        /// The smallest legal one.
        min: i64,
    },

    /// Positions past the largest one.
    #[error("append {append} has {n} positions from {first}, expected none above {max}")]
    PositionOverflow {
        /// Its index in the step.
        append: usize,
        /// Its first position.
        first: i64,
        /// The number of its tokens.
        n: usize,
        /// The largest position.
        max: i64,
    },

    /// A sequence that would need more pages than a row of `cachestarts` has.
    #[error("append {append} makes {kvlen} rows, which are {need} pages of {page_size}, expected at most {max_pages}")]
    TooManyPages {
        /// Its index in the step.
        append: usize,
        /// The sequence's rows with it.
        kvlen: usize,
        /// Rows of a page.
        page_size: usize,
        /// The pages for that many rows.
        need: usize,
        /// The specification's `max_pages`.
        max_pages: usize,
    },

    /// Too few free pages for a step.
    #[error("the step needs {need} pages, {free} are free")]
    OutOfPages {
        /// The pages that the step has to take. Appends behind the one that did not fit are counted without the pages
        /// that they would share with it.
        need: usize,
        /// The pages that it could take: free ones, and cached ones that it does not read.
        free: usize,
    },

    /// A memory that failed to move bytes. The step is rolled back; sequences and live rows are as before it.
    #[error("the memory failed: {source}")]
    Memory {
        /// What it said.
        source: MemoryError,
    },

    /// An invariant that does not hold: an error of this crate.
    #[error("invariant broken: {what} ({at})")]
    Broken {
        /// What should be true and is not.
        what: &'static str,
        /// The page, the row or the number of the sequence where it is not.
        at: usize,
    },

    /// A tensor of another type than the specification's.
    #[error("{input} is of type {got}, expected {expected}")]
    TensorType {
        /// `cache` or `scale`.
        input: &'static str,
        /// The type that it should have.
        expected: ElementType,
        /// The type that it has.
        got: ElementType,
    },

    /// A tensor of another shape than the specification's.
    #[error("{input} has shape {got}, expected {expected:?}")]
    TensorShape {
        /// `cache` or `scale`.
        input: &'static str,
        /// The shape that it should have, in elements.
        expected: [usize; 5],
        /// The shape that it has.
        got: Shape,
    },

    /// A quantized cache without scales.
    #[error("scale is absent, expected a tensor of {expected} with shape {shape:?}")]
    ScaleMissing {
        /// The type that it should have.
        expected: ElementType,
        /// The shape that it should have.
        shape: [usize; 5],
    },

    /// Scales of a cache that is not quantized.
    #[error("scale is given ({got}, shape {shape}), expected none for a cache without quantization")]
    ScaleUnexpected {
        /// The type that it has.
        got: ElementType,
        /// The shape that it has.
        shape: Shape,
    },

    /// A tensor that is not contiguous, not aligned, or of other than the bytes of its shape.
    #[error(transparent)]
    Tensor(#[from] kvcache_op::Error),
}

/// Why no sequence has an id.
fn absence(seq: SeqId) -> &'static str {
    if seq == SeqId::default() { "it is the null id" } else { "it was freed" }
}

impl Error {
    /// The variant's name in snake case.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::SpecRange { .. } => "spec_range",
            Self::Types { .. } => "types",
            Self::QuantGroup { .. } => "quant_group",
            Self::SizeOverflow { .. } => "size_overflow",
            Self::OutOfMemory { .. } => "out_of_memory",
            Self::UnknownSeq { .. } => "unknown_seq",
            Self::StepOpen => "step_open",
            Self::EmptyAppend { .. } => "empty_append",
            Self::DuplicateSeq { .. } => "duplicate_seq",
            Self::PositionOrder { .. } => "position_order",
            Self::PositionOverflow { .. } => "position_overflow",
            Self::TooManyPages { .. } => "too_many_pages",
            Self::OutOfPages { .. } => "out_of_pages",
            Self::Memory { .. } => "memory",
            Self::Broken { .. } => "broken",
            Self::TensorType { .. } => "tensor_type",
            Self::TensorShape { .. } => "tensor_shape",
            Self::ScaleMissing { .. } => "scale_missing",
            Self::ScaleUnexpected { .. } => "scale_unexpected",
            Self::Tensor(error) => error.kind(),
        }
    }
}
