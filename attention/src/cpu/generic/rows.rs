//! Rows of one head of keys or values, as they are in memory.

use std::ops::Range;

use super::simd::MOST_LANES;

/// Bytes in a cache line.
pub(crate) const LINE: usize = 64;

/// Rows of one head, which can be read.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    /// The head's first row, and how many bytes behind it each row begins.
    pub(crate) from: *const u8,
    pub(crate) offsets: &'a [usize],
    /// The same of the scales; not accessed without.
    pub(crate) scale: *const u8,
    pub(crate) scale_offsets: &'a [usize],
    /// Elements in a row.
    pub(crate) len: usize,
    pub(crate) groups: &'a Groups,
    /// Rows that are read soon, at least as many, at any addresses: they are prefetched.
    pub(crate) next: Next<'a>,
}

/// Rows that are read soon.
#[derive(Clone, Copy)]
pub(crate) struct Next<'a> {
    pub(crate) from: *const u8,
    pub(crate) offsets: &'a [usize],
    pub(crate) scale: *const u8,
    pub(crate) scale_offsets: &'a [usize],
}

/// Which elements of a row share a scale.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    /// Elements that share a scale; 0 without scales.
    pub(crate) group: usize,
    /// Scales of a row.
    pub(crate) count: usize,
    /// Of each register of as many as have a register of scales, which of these each lane has, if groups divide a
    /// register.
    pub(crate) lanes: Vec<[u32; MOST_LANES]>,
    /// Of each register of a row, which scale each lane has, if groups are [`in_registers`](Self::in_registers).
    pub(crate) in_row: Vec<[u32; MOST_LANES]>,
}

impl Groups {
    /// For rows of `len` elements in groups of `group`, in registers of `lanes`.
    pub(crate) fn new(len: usize, group: usize, lanes: usize) -> Self {
        let count = len / group;
        let of_register = |k: usize| std::array::from_fn(|i| ((k * lanes + i % lanes) / group) as u32);
        let registers = if lanes.is_multiple_of(group) { group } else { 0 };
        let in_row = if Self::in_registers(len, group, lanes) { len / lanes } else { 0 };
        Self {
            group,
            count,
            lanes: (0..registers).map(of_register).collect(),
            in_row: (0..in_row).map(of_register).collect(),
        }
    }

    /// Whether a row is whole registers, of which any eight in a row, from a multiple of as many on, have their scales
    /// in one register. (The narrower registers are too few for this.)
    fn in_registers(len: usize, group: usize, lanes: usize) -> bool {
        let one_register = len / group <= lanes || group.is_power_of_two() && group >= 8;
        lanes == MOST_LANES && len.is_multiple_of(lanes) && one_register
    }
}

impl Next<'_> {
    /// Prefetches of some rows of `len` bytes, line by line: processors prefetch by themselves what is read in order.
    pub(crate) fn cursor(&self, rows: Range<usize>, len: usize) -> Cursor<'_> {
        let rows = &self.offsets[rows.start.min(self.offsets.len())..rows.end.min(self.offsets.len())];
        Cursor { from: self.from, rows: rows.iter(), row: self.from, left: 0, lines: len.div_ceil(LINE) }
    }

    /// Prefetches the scales of a row, which take `len` bytes.
    ///
    /// # Safety
    /// There are more than `row` rows.
    #[inline(always)]
    pub(crate) unsafe fn prefetch_scales(&self, row: usize, len: usize) {
        // SAFETY: see `# Safety`.
        let from = self.scale.wrapping_add(unsafe { *self.scale_offsets.get_unchecked(row) });
        let mut at = 0;
        while at < len {
            prefetch(from.wrapping_add(at));
            at += LINE;
        }
    }
}

/// Where prefetches have come to.
pub(crate) struct Cursor<'a> {
    from: *const u8,
    rows: std::slice::Iter<'a, usize>,
    row: *const u8,
    /// Lines that are left of the row, of so many.
    left: usize,
    lines: usize,
}

impl Cursor<'_> {
    /// Prefetches the next lines, if there are so many.
    #[inline(always)]
    pub(crate) fn advance(&mut self, lines: usize) {
        for _ in 0..lines {
            if self.left == 0 {
                let Some(offset) = self.rows.next() else { return };
                (self.row, self.left) = (self.from.wrapping_add(*offset), self.lines);
            }
            prefetch(self.row);
            self.row = self.row.wrapping_add(LINE);
            self.left -= 1;
        }
    }
}

/// Prefetches the line at any address, readable or not, into the second-level cache.
#[inline(always)]
fn prefetch(line: *const u8) {
    // SAFETY: the instruction belongs to SSE, which every x86-64 has, and no address makes it fault.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(line.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}
