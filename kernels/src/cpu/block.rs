//! Row functions and their arguments: rows of keys or of values, between a call's tensors and the cache.
//!
//! A [`Block`] is a tile of the cache, tokens by heads, in two loops:
//!
//! ```text
//! for outer in 0..block.outer            // block.outer_step bytes further in each tensor
//!     for inner in 0..block.rows.count   // one step further in each operand
//!         values row <-> cache row, scales row
//! ```
//!
//! The inner loop is one call of a row function: for [`Rows`], which are converted or quantized, or for a
//! [`StridedCopy`], which keeps the bytes. All steps and offsets are in bytes. [`Heads`] are rotated in place.

use kvcache_simd::LINE;

use crate::rotary::RopeStyle;

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

/// Multiplies the heads of rows by a Hadamard matrix.
///
/// # Safety
/// The instruction set is supported. The rows are valid for the type that the function was chosen for, and aligned for
/// it: `from` for reads, `to` for writes; they are the same rows, or do not overlap.
pub(crate) type HadamardFunction = unsafe fn(&Blocks);

/// Rotates heads of float32.
///
/// # Safety
/// The instruction set is supported. The first `2 * pairs` elements of every head are valid for reads and writes, and
/// aligned; they are no part of another head, nor of `pairs` cosines and sines, which are valid for reads.
pub(crate) type RotateFunction = unsafe fn(&Heads);

/// The elements of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Row {
    /// The number of elements.
    pub(crate) len: usize,
    /// Neighbors that share a scale: even for int4, 1 without quantization.
    pub(crate) group: usize,
    /// `len / group`: stored, since a division takes longer than a short row.
    pub(crate) groups: usize,
    /// The order of the Hadamard matrix that the row's heads are multiplied by; 1 where they are not.
    pub(crate) order: usize,
}

impl Row {
    /// A row of `len` elements in groups of `group`.
    pub(crate) fn new(len: usize, group: usize) -> Self {
        Self { len, group, groups: len / group, order: 1 }
    }

    /// `len` of the row's elements: whole groups, unless a group is longer.
    pub(crate) fn part(self, len: usize) -> Self {
        Self { len, groups: len / self.group, ..self }
    }

    /// `rows` rows that follow each other, as one.
    pub(crate) fn times(self, rows: usize) -> Self {
        Self { len: rows * self.len, groups: rows * self.groups, ..self }
    }

    /// Whether every register of up to 32 elements lies inside the row, and inside one group or over whole groups: the
    /// results of registers can then be written with non-temporal stores.
    pub(crate) fn is_whole_registers(self) -> bool {
        self.len.is_multiple_of(32) && (self.group.is_multiple_of(32) || 32 % self.group == 0)
    }

    /// The least part of the row that is whole blocks of the matrix and whole groups, in elements.
    pub(crate) fn unit(self) -> usize {
        // The order is a power of two.
        self.group * (self.order >> self.group.trailing_zeros().min(self.order.trailing_zeros()))
    }
}

/// A number for each operand of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PerOperand {
    /// The values' (T1).
    pub(crate) values: usize,
    /// The cache's (T2).
    pub(crate) cache: usize,
    /// The scales' (T3); 0 without quantization.
    pub(crate) scale: usize,
}

impl PerOperand {
    /// Nothing.
    pub(crate) const ZERO: Self = Self { values: 0, cache: 0, scale: 0 };
}

/// Rows of one operand at equal distances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Operand {
    /// The first byte of the first row.
    pub(crate) data: *mut u8,
    /// From one row to the next.
    pub(crate) step: usize,
}

impl Operand {
    /// The first byte of a row.
    #[inline(always)]
    pub(crate) fn row(&self, r: usize) -> *mut u8 {
        self.data.wrapping_add(r * self.step)
    }

    /// The rows after the first `bytes` bytes.
    pub(crate) fn skip(self, bytes: usize) -> Self {
        Self { data: self.data.wrapping_add(bytes), ..self }
    }

    /// Whether all rows begin at a multiple of `align` bytes, in every outer step.
    pub(crate) fn begins_each(&self, outer_step: usize, align: usize) -> bool {
        self.data.addr().is_multiple_of(align) && outer_step.is_multiple_of(align) && self.step.is_multiple_of(align)
    }

    /// Whether all rows of `len` bytes are whole lines, in every outer step.
    pub(crate) fn is_lines_each(&self, outer_step: usize, len: usize) -> bool {
        len.is_multiple_of(LINE) && self.begins_each(outer_step, LINE)
    }
}

/// Rows that are converted, quantized or dequantized.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows {
    /// The number of rows.
    pub(crate) count: usize,
    /// The elements of each row.
    pub(crate) row: Row,
    /// T1: read by a store, written by a load.
    pub(crate) values: Operand,
    /// T2: written by a store, read by a load.
    pub(crate) cache: Operand,
    /// T3: as `cache`; any address without quantization.
    pub(crate) scale: Operand,
    /// The prefetch distance while a row is read.
    pub(crate) prefetch: Option<Prefetch>,
}

impl Rows {
    /// The rows after the first `rows`.
    pub(crate) fn skip(&self, rows: usize) -> Self {
        let [values, cache, scale] =
            [self.values, self.cache, self.scale].map(|operand| operand.skip(rows * operand.step));
        Self { count: self.count - rows, values, cache, scale, ..*self }
    }
}

/// The distance to what is prefetched, in bytes; any address may be prefetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Prefetch {
    /// From the row itself: of the cache in a load, of the values in a store.
    pub(crate) row: isize,
    /// From the row's scales, in a load.
    pub(crate) scale: isize,
}

/// A tile of keys or of values: `outer * rows.count` rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block {
    /// Steps of the outer loop.
    pub(crate) outer: usize,
    /// From the rows of one outer step to the rows of the next.
    pub(crate) outer_step: PerOperand,
    /// The rows of the first outer step.
    pub(crate) rows: Rows,
    /// Copies of each row that a load writes, one after the other (`num_repeat`).
    pub(crate) copies: usize,
}

impl Block {
    /// The rows of an outer step from row `inner` on.
    pub(crate) fn rows_from(&self, outer: usize, inner: usize) -> Rows {
        let Self { outer_step, rows, .. } = self;
        Rows {
            values: rows.values.skip(outer * outer_step.values),
            cache: rows.cache.skip(outer * outer_step.cache),
            scale: rows.scale.skip(outer * outer_step.scale),
            ..*rows
        }
        .skip(inner)
    }

    /// The numbers of both loops, row by row.
    pub(crate) fn each_row(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let count = self.rows.count;
        (0..self.outer).flat_map(move |outer| (0..count).map(move |inner| (outer, inner)))
    }
}

/// Rows of bytes at equal distances that are copied to rows at other equal distances. Places are addresses, or offsets
/// in memory whose bounds are to be checked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StridedCopy<From = *const u8, To = *mut u8> {
    /// The first row.
    pub(crate) from: From,
    /// From one row to the next.
    pub(crate) from_step: usize,
    /// The place of the first row's copies, one after the other.
    pub(crate) to: To,
    /// From the copies of one row to the copies of the next.
    pub(crate) to_step: usize,
    /// Bytes of a row.
    pub(crate) len: usize,
    /// The number of rows.
    pub(crate) rows: usize,
    /// The number of copies of each row.
    pub(crate) copies: usize,
    /// From a row to what is prefetched while it is read.
    pub(crate) prefetch: Option<isize>,
}

impl StridedCopy {
    /// One copy of one row.
    pub(crate) fn one(from: *const u8, to: *mut u8, len: usize) -> Self {
        Self { from, from_step: 0, to, to_step: 0, len, rows: 1, copies: 1, prefetch: None }
    }

    /// One copy of each of some rows.
    pub(crate) fn rows(from: Operand, to: Operand, len: usize, rows: usize) -> Self {
        let (from_step, to_step) = (from.step, to.step);
        Self { from: from.data, from_step, to: to.data, to_step, len, rows, copies: 1, prefetch: None }
    }
}

/// Rows of values (T1) whose heads are multiplied by a Hadamard matrix.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Blocks {
    /// What is read.
    pub(crate) from: Operand,
    /// What is written: `from`, or rows elsewhere.
    pub(crate) to: Operand,
    /// The number of rows.
    pub(crate) count: usize,
    /// The elements of a row: whole blocks.
    pub(crate) len: usize,
    /// The order of the matrix, which is the length of a block.
    pub(crate) order: usize,
    /// From a row to what is prefetched while it is read.
    pub(crate) prefetch: Option<isize>,
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
    /// The elements that are a pair.
    pub(crate) style: RopeStyle,
    /// The pairs of a head.
    pub(crate) pairs: usize,
    /// The cosine of each pair's angle.
    pub(crate) cos: *const f32,
    /// The sine of each pair's angle.
    pub(crate) sin: *const f32,
}
