//! The row functions of one call: of an instruction set, for the call's types and groups.

use super::block::{Blocks, Heads, Rows, StridedCopy};

/// Copies rows of bytes.
///
/// # Safety
/// The instruction set is supported. Every row is valid for reads, its copies are valid for writes, and these do not
/// overlap. A streaming function writes whole lines to whole lines; a narrow one to multiples of 16 bytes.
pub(crate) type CopyFunction = unsafe fn(&StridedCopy);

/// Moves rows between values and the cache.
///
/// # Safety
/// The instruction set is supported. The rows are valid for the types that the function was chosen for, and aligned for
/// them; what is written overlaps nothing else. A streaming function writes rows of whole registers to whole
/// lines; a narrow one to multiples of 16 bytes.
pub(crate) type RowsFunction = unsafe fn(&Rows);

/// Rotates heads of float32.
///
/// # Safety
/// The instruction set is supported. The first `2 * pairs` elements of every head are valid for reads and writes, and
/// aligned; they are no part of another head, nor of `pairs` cosines and sines, which are valid for reads.
pub(crate) type RotateFunction = unsafe fn(&Heads);

/// Multiplies the heads of rows by a Hadamard matrix.
///
/// # Safety
/// The instruction set is supported. The rows are valid for the type that the function was chosen for, and aligned for
/// it: `from` for reads, `to` for writes; they are the same rows, or do not overlap.
pub(crate) type HadamardFunction = unsafe fn(&Blocks);

/// A row function that writes plain stores, and one that writes non-temporal stores.
#[derive(Clone, Copy)]
pub(crate) struct Stores<F> {
    pub(crate) plain: F,
    pub(crate) stream: F,
}

impl<F: Copy> Stores<F> {
    /// One function for both.
    pub(crate) fn same(function: F) -> Self {
        Self { plain: function, stream: function }
    }
}

/// How a cache holds values of another type.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CacheFormat {
    /// As floats.
    Float,
    /// As codes, with a scale for each group.
    Quantized,
    /// As codes, by scales that are only read. A row has one.
    StaticScales,
}

/// The functions between values and a cache of another type.
#[derive(Clone, Copy)]
pub(crate) struct Conversion {
    pub(crate) format: CacheFormat,
    /// Values to the cache.
    pub(crate) store: Stores<RowsFunction>,
    /// The cache to values.
    pub(crate) load: Stores<RowsFunction>,
    /// `load.stream` by non-temporal stores of 16 bytes, to addresses that are multiples of 16; none where joining
    /// lines in a staging buffer takes less time.
    pub(crate) load_narrow: Option<RowsFunction>,
}

/// The row functions of a call.
#[derive(Clone, Copy)]
pub(crate) struct RowFunctions {
    /// Copies of bytes; streaming, to whole lines.
    pub(crate) copy: Stores<CopyFunction>,
    /// `copy.stream` by non-temporal stores of 16 bytes, to addresses that are multiples of 16.
    pub(crate) copy_narrow: CopyFunction,
    /// Copies of bytes, one of each row, to any address, by non-temporal stores where there are any.
    pub(crate) stream_any: CopyFunction,
    /// The conversion of values on their way; none where the cache holds them as they are.
    pub(crate) conversion: Option<Conversion>,
    /// Rotates heads of float32.
    pub(crate) rotate: RotateFunction,
    /// Multiplies heads of T1 by a Hadamard matrix, where T1 is a float type; else heads of float32.
    pub(crate) hadamard: HadamardFunction,
    /// Whether the instruction set has non-temporal stores.
    pub(crate) streams: bool,
    /// Orders what a thread has streamed before whatever it writes next.
    pub(crate) fence: fn(),
}
