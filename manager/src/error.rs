//! Errors: one variant for each reason to refuse, with its numbers.

use kvcache_kernels::RopeError;
use kvcache_op::Shape;
use kvcache_schema::ElementType;
use strum::IntoStaticStr;
use thiserror::Error;

use crate::infllm::error::InfLlmError;
use crate::seq_id::SeqId;
use crate::session::error::SessionError;

/// What a memory says when it cannot do what it is asked.
pub type MemoryError = Box<dyn std::error::Error + Send + Sync>;

/// An operation that was refused. Nothing has changed, neither the manager's state nor a live row; but after
/// [`Error::Memory`], cached pages that a copy was to write may have left the prefix index and be free, with any bytes.
///
/// [`Error::kind`] is a stable name for programs.
#[derive(Debug, Error, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
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

    /// A threshold that is no number to compare with.
    #[error("defrag_threshold is {got}, expected a finite number")]
    SpecThreshold {
        /// The threshold.
        got: f64,
    },

    /// A rope that heads cannot be rotated by.
    #[error(transparent)]
    Rope(#[from] RopeError),

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
    #[error("no sequence has the id {seq}: {}", .seq.absence())]
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

    /// Positions that would fall along the rows of a sequence.
    #[error("{}position {got} would follow {}, expected {min} or a later one", of(*.append), .min - 1)]
    PositionOrder {
        /// The index of the append in the step, if it is one that begins too early.
        append: Option<usize>,
        /// The position that comes too early.
        got: i64,
        /// The smallest legal one.
        min: i64,
    },

    /// Positions past the largest one.
    #[error("{}{n} positions from {first}, expected none above {max}", of(*.append))]
    PositionOverflow {
        /// The index of the append in the step, if it is one.
        append: Option<usize>,
        /// The first position.
        first: i64,
        /// How many there are.
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

    /// Too few free pages.
    #[error("{need} pages are needed, {free} are free")]
    OutOfPages {
        /// The pages that have to be taken. Appends behind the one that did not fit are counted without the pages that
        /// they would share with it.
        need: usize,
        /// The pages that could be taken: free ones, and cached ones that the step does not read.
        free: usize,
    },

    /// Too few neighboring free cells, in the modes `runs` and `cells`.
    #[error("{need} neighboring cells are needed, {free} are free, {largest} of them in a row")]
    NoSlot {
        /// The cells that have to be taken.
        need: usize,
        /// The longest run of free cells.
        largest: usize,
        /// The free cells.
        free: usize,
    },

    /// A copy to a sequence that has rows.
    #[error("the sequence has {len} rows, expected none")]
    NotEmpty {
        /// Its rows.
        len: usize,
    },

    /// A number outside its range.
    #[error("{name} is {got}, expected {min} to {max}")]
    Range {
        /// The number's name.
        name: &'static str,
        /// Its value.
        got: i64,
        /// The smallest legal value.
        min: i64,
        /// The largest legal value.
        max: i64,
    },

    /// A context shift that would remove nothing.
    #[error("nothing can be discarded: n_past {n_past}, n_keep {n_keep}")]
    NoProgress {
        /// The position behind the last one.
        n_past: i64,
        /// The positions to keep.
        n_keep: i64,
    },

    /// Groups of positions that do not divide the width that is grouped at once.
    #[error("ga_w is {ga_w}, expected a multiple of ga_n = {ga_n}")]
    GroupWidth {
        /// Positions that become one.
        ga_n: i64,
        /// Positions that are grouped at once.
        ga_w: i64,
    },

    /// A recurrent state of which only some tokens would be removed.
    #[error("positions {p0} to {p1} are a part of a state at position {pos}, expected all of it or none")]
    PartialState {
        /// The position of the state's last token.
        pos: i64,
        /// The first position that was to be removed.
        p0: i64,
        /// The first one behind them.
        p1: i64,
    },

    /// An id that another state has.
    #[error("sequence {seq} has a state already")]
    KnownSeq {
        /// The id.
        seq: SeqId,
    },

    /// A sequence cut back to where its window has lost rows.
    #[error(
        "position {p0} sees back to {}, and the window has removed position {gone}: slack keeps rows for cutting back",
        .p0 - .window + 1
    )]
    WindowLost {
        /// The first position that was to be removed.
        p0: i64,
        /// The window.
        window: i64,
        /// The last position that the window has removed.
        gone: i64,
    },

    /// Keys that cannot be rotated to other positions.
    #[error("positions cannot change: {why}")]
    NotShiftable {
        /// What the cache lacks.
        why: &'static str,
    },

    /// A sequence whose rows were rotated too often: the errors of quantization add up.
    #[error("{shifts} updates have rotated rows of the sequence, expected at most {limit}")]
    ShiftLimit {
        /// The updates that have.
        shifts: u32,
        /// The specification's `shift_limit`.
        limit: u32,
    },

    /// A sequence whose rows were damaged when a memory failed. It can only be freed.
    #[error("rows of sequence {seq} were lost when the memory failed: it can only be freed")]
    Lost {
        /// The sequence.
        seq: SeqId,
    },

    /// A sequence whose rows are not in the cache: [`Manager::swap_in`](crate::Manager::swap_in) brings them back.
    #[error("sequence {seq} is swapped out")]
    Swapped {
        /// The sequence.
        seq: SeqId,
    },

    /// Rows of a sequence that is swapped out that cannot be had. It stays swapped out; where they will not come any
    /// more, free it, and append its tokens to a new one.
    #[error("sequence {seq}: {missing} of {rows} rows cannot be had ({reason})")]
    RowsMissing {
        /// The sequence.
        seq: SeqId,
        /// Its rows behind the last that can be had.
        missing: usize,
        /// Its rows.
        rows: usize,
        /// Why the first of them cannot: `absent`, or the name of an error of the store or of a block.
        reason: &'static str,
    },

    /// An operation of tiers, of a manager without a store.
    #[error("the manager has no tiers")]
    NoTiers,

    /// No random bytes from the operating system.
    #[error("no random bytes: {0}")]
    Random(#[from] getrandom::Error),

    /// Rows that a memory has still to move or to rotate.
    #[error("{copies} copies and the keys of {sequences} sequences wait for an update")]
    UpdatePending {
        /// Copies that are queued.
        copies: usize,
        /// Sequences with rows to rotate.
        sequences: usize,
    },

    /// A memory that failed to move bytes. A step is rolled back; sequences and live rows are as before it, but for
    /// those that are [lost](Error::Lost) since the memory failed in an update.
    #[error("the memory failed: {source}")]
    Memory {
        /// What it said.
        source: MemoryError,
    },

    /// A session that was not saved or not loaded.
    #[error(transparent)]
    Session(#[from] SessionError),

    /// What InfLLM refuses.
    #[error(transparent)]
    InfLlm(#[from] InfLlmError),

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

    /// A mask of another length than the step's.
    #[error("the mask has {got} elements, expected {expected} for {shape:?}")]
    MaskLength {
        /// Planes, rows and columns.
        shape: [usize; 3],
        /// Their product.
        expected: usize,
        /// The length that the mask has.
        got: usize,
    },
}

/// Names an append in front of what is wrong with it.
fn of(append: Option<usize>) -> String {
    append.map_or_else(String::new, |append| format!("append {append}: "))
}

impl Error {
    /// The variant's name in snake case.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Session(error) => error.kind(),
            Self::InfLlm(error) => error.kind(),
            Self::Tensor(error) => error.kind(),
            error => error.into(),
        }
    }
}
