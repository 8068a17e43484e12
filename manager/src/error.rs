//! Errors: one variant for each reason to refuse, with its numbers.

use std::fmt::Display;
use std::ops::Deref;

use kvcache_kernels::RopeError;
use kvcache_op::Shape;
use kvcache_schema::ElementType;
use serde::{Serialize, Serializer};
use strum::IntoStaticStr;
use thiserror::Error;

use crate::infllm::plan::Lost;
use crate::memory::store::StoreError;
use crate::sequences::SeqId;
use crate::session::error::SessionError;

/// The error of a memory that fails.
pub type MemoryError = Box<dyn std::error::Error + Send + Sync>;

/// An operation that was refused. Nothing has changed, neither the manager's state nor a live row; but after
/// [`Error::Memory`], cached pages that a copy was to write may have left the prefix index and be free, with any bytes.
///
/// [`Error::kind`] is a stable name for programs; what is serialized are the variant's fields by their names.
#[derive(Debug, Error, IntoStaticStr, Serialize)]
#[strum(serialize_all = "snake_case")]
#[serde(untagged)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the texts say what the fields are")]
pub enum Error {
    /// A number of the specification outside its range.
    #[error("{name} is {got}, expected {min} to {max}")]
    SpecRange { name: &'static str, got: usize, min: usize, max: usize },

    /// A threshold that is no number to compare with.
    #[error("defrag_threshold is {got}, expected a finite number")]
    SpecThreshold { got: f64 },

    /// A rope that heads cannot be rotated by.
    #[error(transparent)]
    Rope(
        #[from]
        #[serde(serialize_with = "source")]
        RopeError,
    ),

    /// Types that the operator does not have.
    #[error("no quant_bit has cache {cache} with scale {}", .scale.map_or("none", ElementType::name))]
    Types {
        #[serde(serialize_with = "text")]
        cache: ElementType,
        #[serde(serialize_with = "some_text")]
        scale: Option<ElementType>,
    },

    /// Groups that do not divide a head, or that share bytes.
    #[error("quant_group is {group}, expected a divisor of head_dim {head_dim}, even for int4")]
    QuantGroup { group: usize, head_dim: usize },

    /// A tensor, or the two together, whose bytes cannot be counted.
    #[error("the size of {tensor} with shape {shape:?} overflows")]
    SizeOverflow { tensor: &'static str, shape: [usize; 5] },

    /// Metadata of a cache, or a step's `cachestarts`, that the system has no memory for.
    #[error("no memory for {len} numbers of {size} bytes")]
    OutOfMemory { len: usize, size: usize },

    /// An id that no sequence has: its sequence was freed, or it is the null id.
    #[error("no sequence has the id {seq}: {}", .seq.absence())]
    UnknownSeq { seq: SeqId },

    /// A change while a step is open.
    #[error("a step is open: commit it or roll it back first")]
    StepOpen,

    /// An append of no tokens.
    #[error("append {append} has no tokens")]
    EmptyAppend { append: usize },

    /// A sequence that is appended to twice in one step.
    #[error("append {append} is to the same sequence as append {other}")]
    DuplicateSeq { append: usize, other: usize },

    /// Positions that would fall along the rows of a sequence.
    #[error("{}position {got} would follow {}, expected {min} or a later one", of(*.append), .min - 1)]
    PositionOrder { append: Option<usize>, got: i64, min: i64 },

    /// Positions past the largest one.
    #[error("{}{n} positions from {first}, expected none above {max}", of(*.append))]
    PositionOverflow { append: Option<usize>, first: i64, n: usize, max: i64 },

    /// A sequence that would need more pages than a row of `cachestarts` has.
    #[error("append {append} makes {kvlen} rows, which are {need} pages of {page_size}, expected at most {max_pages}")]
    TooManyPages { append: usize, kvlen: usize, page_size: usize, need: usize, max_pages: usize },

    /// Too few free pages, cached ones that the step does not read among them. Appends after the one that did not fit
    /// are counted without the pages that they would share with it.
    #[error("{need} pages are needed, {free} are free")]
    OutOfPages { need: usize, free: usize },

    /// Too few neighboring free cells, in the modes `runs` and `cells`.
    #[error("{need} neighboring cells are needed, {free} are free, {largest} of them in a row")]
    NoSlot { need: usize, largest: usize, free: usize },

    /// A copy to a sequence that has rows.
    #[error("the sequence has {len} rows, expected none")]
    NotEmpty { len: usize },

    /// A number outside its range.
    #[error("{name} is {got}, expected {min} to {max}")]
    Range { name: &'static str, got: i64, min: i64, max: i64 },

    /// A context shift that would remove nothing.
    #[error("nothing can be discarded: n_past {n_past}, n_keep {n_keep}")]
    NoProgress { n_past: i64, n_keep: i64 },

    /// Groups of positions that do not divide the width that is grouped at once.
    #[error("ga_w is {ga_w}, expected a multiple of ga_n = {ga_n}")]
    GroupWidth { ga_n: i64, ga_w: i64 },

    /// Removing some tokens of a recurrent state, which goes as a whole.
    #[error("positions {p0} to {p1} are a part of a state at position {pos}, expected all of it or none")]
    PartialState { pos: i64, p0: i64, p1: i64 },

    /// An id that another state has.
    #[error("sequence {seq} has a state already")]
    KnownSeq { seq: SeqId },

    /// A sequence cut back to where its window has lost rows.
    #[error(
        "position {p0} sees back to {}, and the window has removed position {gone}: slack keeps rows for cutting back",
        .p0 - .window + 1
    )]
    WindowLost { p0: i64, window: i64, gone: i64 },

    /// Keys that cannot be rotated to other positions.
    #[error("positions cannot change: {why}")]
    NotShiftable { why: &'static str },

    /// A sequence whose rows were rotated too often: the errors of quantization add up.
    #[error("{shifts} updates have rotated rows of the sequence, expected at most {limit}")]
    ShiftLimit { shifts: u32, limit: u32 },

    /// A sequence whose rows were damaged when a memory failed. It can only be freed.
    #[error("rows of sequence {seq} were lost when the memory failed: it can only be freed")]
    Lost { seq: SeqId },

    /// A sequence whose rows are not in the cache: [`Manager::swap_in`](crate::Manager::swap_in) brings them back.
    #[error("sequence {seq} is swapped out")]
    Swapped { seq: SeqId },

    /// Rows of a sequence that is swapped out that cannot be had. It stays swapped out; where they will not come any
    /// more, free it, and append its tokens to a new one. The reason is `absent`, or the name of an error of the store
    /// or of a block.
    #[error("sequence {seq}: {missing} of {rows} rows cannot be had ({reason})")]
    RowsMissing { seq: SeqId, missing: usize, rows: usize, reason: &'static str },

    /// Rows of sequences that were swapped out before that the store does not take, for this reason: they are in memory
    /// still, and no further sequence is swapped out. The reason is the name of an error of the store.
    #[error("{nbytes} bytes of swapped rows are still in memory: the tiers do not take them ({reason})")]
    TiersFull { nbytes: u64, reason: &'static str },

    /// An operation of tiers, of a manager without a store.
    #[error("the manager has no tiers")]
    NoTiers,

    /// No random bytes from the operating system.
    #[error("no random bytes: {0}")]
    Random(
        #[from]
        #[serde(serialize_with = "source")]
        getrandom::Error,
    ),

    /// Rows that a memory has still to move or to rotate.
    #[error("{copies} copies and the keys of {sequences} sequences wait for an update")]
    UpdatePending { copies: usize, sequences: usize },

    /// A memory that failed to move bytes. A step is rolled back; sequences and live rows are as before it, but for
    /// those that are [lost](Error::Lost) since the memory failed in an update.
    #[error("the memory failed: {source}")]
    Memory {
        #[serde(serialize_with = "text")]
        source: MemoryError,
    },

    /// A session that was not saved or not loaded.
    #[error(transparent)]
    Session(#[from] SessionError),

    /// An invariant that does not hold: an error of this crate.
    #[error("invariant broken: {what} ({at})")]
    Broken { what: &'static str, at: usize },

    /// A tensor of another type than the specification's.
    #[error("{input} is of type {got}, expected {expected}")]
    TensorType {
        input: &'static str,
        #[serde(serialize_with = "text")]
        expected: ElementType,
        #[serde(serialize_with = "text")]
        got: ElementType,
    },

    /// A tensor of another shape than the specification's.
    #[error("{input} has shape {got}, expected {expected:?}")]
    TensorShape {
        input: &'static str,
        expected: [usize; 5],
        #[serde(serialize_with = "numbers")]
        got: Shape,
    },

    /// A quantized cache without scales.
    #[error("scale is absent, expected a tensor of {expected} with shape {shape:?}")]
    ScaleMissing {
        #[serde(serialize_with = "text")]
        expected: ElementType,
        shape: [usize; 5],
    },

    /// Scales of a cache that is not quantized.
    #[error("scale is given ({got}, shape {shape}), expected none: the cache has no scales by slot")]
    ScaleUnexpected {
        #[serde(serialize_with = "text")]
        got: ElementType,
        #[serde(serialize_with = "numbers")]
        shape: Shape,
    },

    /// A tensor that is not contiguous, not aligned, or of other than the bytes of its shape.
    #[error(transparent)]
    Tensor(
        #[from]
        #[serde(serialize_with = "source")]
        kvcache_op::Error,
    ),

    /// A mask of another length than the step's.
    #[error("the mask has {got} elements, expected {expected} for {shape:?}")]
    MaskLength { shape: [usize; 3], expected: usize, got: usize },

    /// A cache without pages.
    #[error("the cache has another mode, expected paged")]
    NotPaged,

    /// Blocks that are scored by their keys, in a cache whose keys' scales the manager does not have.
    #[error("blocks are scored by keys, which are float8e4m3fn with static scales")]
    StaticScales,

    /// A number of tokens that is no whole number of pages.
    #[error("{name} is {got}, expected a multiple of the page size {page_size}")]
    Multiple { name: &'static str, got: usize, page_size: usize },

    /// A number that is no part of a whole.
    #[error("{name} is {got}, expected a number from 0 to 1, and above 0 if it is alpha")]
    Fraction { name: &'static str, got: f64 },

    /// Far rows at a constant distance, in a cache whose keys are stored at their positions.
    #[error("far_constant needs keys that are stored before rotary embedding (raw), got roped")]
    RotatedKeys,

    /// A block that is named twice in a list of different ones.
    #[error("{name} has block {block} twice")]
    DuplicateBlock { name: &'static str, block: u32 },

    /// A layer that the cache does not have.
    #[error("layer is {layer}, expected one of {num_layer}")]
    Layer { layer: usize, num_layer: usize },

    /// An array of another shape.
    #[error("{name} has shape {got:?}, expected {expected:?}")]
    Shape {
        name: &'static str,
        #[serde(serialize_with = "numbers")]
        expected: Vec<usize>,
        #[serde(serialize_with = "numbers")]
        got: Vec<usize>,
    },

    /// Attention mass that is no mass.
    #[error("scores of layer {layer} have {got} at {index}, expected finite numbers from 0 on")]
    Mass { layer: usize, index: usize, got: f64 },

    /// Attention mass of a layer that the open step has already.
    #[error("layer {layer} was observed in this step already")]
    ObservedTwice { layer: usize },

    /// A commit of a step that lacks the attention mass of a layer.
    #[error("layer {layer} was not observed: representatives and decayed masses need the scores of every layer")]
    NotObserved { layer: usize },

    /// A second selection of a layer since the last step.
    #[error("layer {layer} has selected since the last step already")]
    SelectedTwice { layer: usize },

    /// There are more blocks than attention sees, and none was selected.
    #[error("sequence {seq} has {blocks} blocks, more than topk = {topk}, and layer {layer} has never selected")]
    NotSelected { seq: SeqId, layer: usize, blocks: usize, topk: usize },

    /// A selected block that the store does not return. The sequence can continue with others, which layers may select
    /// again, or be computed again.
    #[error("block {block} of sequence {seq} is lost: {why}")]
    BlockLost {
        seq: SeqId,
        block: u32,
        #[serde(serialize_with = "text")]
        why: Lost,
    },

    /// InfLLM's store that failed.
    #[error("the store failed: {0}")]
    Store(
        #[from]
        #[serde(serialize_with = "source")]
        StoreError,
    ),
}

/// The append, in front of its error.
fn of(append: Option<usize>) -> String {
    append.map_or_else(String::new, |append| format!("append {append}: "))
}

impl Error {
    pub(crate) fn memory(source: impl Into<MemoryError>) -> Self {
        Self::Memory { source: source.into() }
    }

    pub(crate) fn check_spec(name: &'static str, got: usize, min: usize, max: usize) -> Result<(), Self> {
        if (min..=max).contains(&got) { Ok(()) } else { Err(Self::SpecRange { name, got, min, max }) }
    }

    pub(crate) fn check_range(name: &'static str, got: i64, min: i64, max: i64) -> Result<(), Self> {
        if (min..=max).contains(&got) { Ok(()) } else { Err(Self::Range { name, got, min, max }) }
    }

    /// The variant's name in snake case.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Session(error) => error.kind(),
            Self::Tensor(error) => error.kind(),
            error => error.into(),
        }
    }
}

/// A field as its text.
pub(crate) fn text<S: Serializer>(value: &impl Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

fn some_text<S: Serializer>(value: &Option<impl Display>, serializer: S) -> Result<S::Ok, S::Error> {
    value.as_ref().map(ToString::to_string).serialize(serializer)
}

/// Several numbers, as an array of them is: a tuple.
fn numbers<S: Serializer>(numbers: &impl Deref<Target = [usize]>, serializer: S) -> Result<S::Ok, S::Error> {
    use serde::ser::SerializeTuple;
    let mut tuple = serializer.serialize_tuple(numbers.len())?;
    numbers.iter().try_for_each(|number| tuple.serialize_element(number))?;
    tuple.end()
}

/// The text of another crate's error.
fn source<S: Serializer>(error: &impl Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map([("source", error.to_string())])
}
