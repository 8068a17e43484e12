//! What the row functions are given: rows of keys or of values, between a call's tensors and the cache.
//!
//! A [`Block`] is a tile of the cache, tokens by heads. It is moved as [`Rows`], which are converted or quantized, or
//! as [`Copies`], which keep their bytes. All strides and offsets are in bytes. [`Heads`] are rotated where they are.

use crate::rotary::RopeStyle;

/// The elements of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Row {
    /// How many there are.
    pub(crate) len: usize,
    /// Neighbors that share a scale: even for int4, 1 without quantization.
    pub(crate) group: usize,
    /// `len / group`: stored, since a division takes longer than a short row.
    pub(crate) groups: usize,
}

impl Row {
    /// A row of `len` elements in groups of `group`.
    pub(crate) fn new(len: usize, group: usize) -> Self {
        Self { len, group, groups: len / group }
    }

    /// `rows` rows that follow each other, as one.
    pub(crate) fn times(self, rows: usize) -> Self {
        Self { len: rows * self.len, groups: rows * self.groups, ..self }
    }

    /// Whether every register of up to 32 elements lies inside the row, and inside one group or over whole groups: what
    /// is computed in registers can then be written with non-temporal stores.
    pub(crate) fn is_whole_registers(self) -> bool {
        self.len.is_multiple_of(32) && (self.group.is_multiple_of(32) || 32 % self.group == 0)
    }
}

/// The memory of one operand of a tile: the first row, and the strides of the two loops over rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Operand {
    /// The first byte of the first row.
    pub(crate) data: *mut u8,
    /// From one row of the outer loop to the next.
    pub(crate) outer: usize,
    /// From one row of the inner loop to the next.
    pub(crate) inner: usize,
}

impl Operand {
    /// The first byte of a row.
    pub(crate) fn row(&self, outer: usize, inner: usize) -> *mut u8 {
        self.data.wrapping_add(outer * self.outer + inner * self.inner)
    }
}

/// A tile of keys or of values: `outer * inner` rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block {
    /// Rows of the outer loop.
    pub(crate) outer: usize,
    /// Rows of the inner loop.
    pub(crate) inner: usize,
    /// The elements of each row.
    pub(crate) row: Row,
    /// T1: read by a store, written by a load.
    pub(crate) values: Operand,
    /// Copies of each row that a load writes, one after the other (`num_repeat`).
    pub(crate) copies: usize,
    /// T2: written by a store, read by a load.
    pub(crate) cache: Operand,
    /// T3: as `cache`; any address without quantization.
    pub(crate) scale: Operand,
    /// From a row that is read to what is prefetched while it is read, at any address.
    pub(crate) prefetch: Option<Prefetch>,
}

impl Block {
    /// The steps of both loops.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let inner = self.inner;
        (0..self.outer).flat_map(move |outer| (0..inner).map(move |inner| (outer, inner)))
    }
}

/// The distance to what is prefetched, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Prefetch {
    /// From the row itself: of the cache in a load, of the values in a store.
    pub(crate) row: isize,
    /// From the row's scales, in a load.
    pub(crate) scale: isize,
}

/// Rows that are converted, quantized or dequantized.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows {
    /// The number of rows.
    pub(crate) count: usize,
    /// The elements of each.
    pub(crate) row: Row,
    /// T1: the first row.
    pub(crate) values: *mut u8,
    /// From one row of values to the next.
    pub(crate) values_step: usize,
    /// T2: the first row.
    pub(crate) cache: *mut u8,
    /// From one row in the cache to the next.
    pub(crate) cache_step: usize,
    /// T3: the first row's scales.
    pub(crate) scale: *mut u8,
    /// From the scales of one row to those of the next.
    pub(crate) scale_step: usize,
    /// What is prefetched while a row is read.
    pub(crate) prefetch: Option<Prefetch>,
}

/// Heads of float32 that are rotated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Heads {
    /// The first head.
    pub(crate) values: *mut f32,
    /// From one head to the next, in elements.
    pub(crate) step: usize,
    /// The number of heads.
    pub(crate) count: usize,
    /// Which elements are a pair.
    pub(crate) style: RopeStyle,
    /// The pairs of a head.
    pub(crate) pairs: usize,
    /// The cosine of each pair's angle.
    pub(crate) cos: *const f32,
    /// The sine of each pair's angle.
    pub(crate) sin: *const f32,
}

/// Rows of bytes that are copied.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Copies {
    /// The first row.
    pub(crate) from: *const u8,
    /// From one row to the next.
    pub(crate) from_step: usize,
    /// Where the first row's copies go, one after the other.
    pub(crate) to: *mut u8,
    /// From the copies of one row to those of the next.
    pub(crate) to_step: usize,
    /// Bytes of a row.
    pub(crate) len: usize,
    /// The number of rows.
    pub(crate) rows: usize,
    /// The number of copies of each.
    pub(crate) copies: usize,
    /// From a row to what is prefetched while it is read.
    pub(crate) prefetch: Option<isize>,
}

impl Copies {
    /// One copy of one row.
    pub(crate) fn one(from: *const u8, to: *mut u8, len: usize) -> Self {
        Self { from, from_step: 0, to, to_step: 0, len, rows: 1, copies: 1, prefetch: None }
    }
}
