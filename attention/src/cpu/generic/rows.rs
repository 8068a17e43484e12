//! Rows of one head of keys or values, floats or codes, in memory.

use std::ops::Range;

use kvcache_simd::{LINE, prefetch_l1, prefetch_l2};

/// Keys in a block, the first of which is key 0 of a sequence; whole panels.
pub(crate) const BLOCK: usize = 64;

/// Rows of one head, which can be read.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    /// Where the rows are, and how many bytes after it each begins.
    pub(crate) from: *const u8,
    pub(crate) offsets: &'a [usize],
    /// Where the scales of the rows are, if they are codes, and how many bytes after it each row's begin.
    pub(crate) scale: *const u8,
    pub(crate) scale_offsets: &'a [usize],
    /// Elements in a row.
    pub(crate) len: usize,
    /// Codes that share a scale, as a power of two.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "only AVX-512 dequantizes in registers"))]
    pub(crate) group_bits: u32,
    /// What to prefetch while these are read.
    pub(crate) prefetch: Prefetch<'a>,
}

impl Rows<'_> {
    /// No rows.
    pub(crate) const NONE: Self = Self {
        from: std::ptr::null(),
        offsets: &[],
        scale: std::ptr::null(),
        scale_offsets: &[],
        len: 0,
        group_bits: 0,
        prefetch: Prefetch::NONE,
    };

    /// Some of the rows.
    pub(crate) fn some(self, rows: Range<usize>) -> Self {
        let (offsets, scale_offsets) = (&self.offsets[rows.clone()], &self.scale_offsets[rows.clone()]);
        Self { offsets, scale_offsets, prefetch: self.prefetch.from(rows.start), ..self }
    }
}

/// Rows to prefetch, as many or more than are read meanwhile, as they are in memory, at any addresses; or none.
#[derive(Clone, Copy)]
pub(crate) struct Prefetch<'a> {
    /// Where they are, and how many bytes after it each begins.
    pub(crate) rows: *const u8,
    pub(crate) offsets: &'a [usize],
    /// Bytes of each.
    pub(crate) len: usize,
    /// Whether lines are prefetched into the first-level cache, else into the second.
    pub(crate) to_l1: bool,
    /// Two places of scales to prefetch, and how many bytes after these each row's begin.
    pub(crate) scales: [*const u8; 2],
    pub(crate) scale_offsets: &'a [usize],
    pub(crate) scale_len: usize,
}

impl<'a> Prefetch<'a> {
    /// Nothing.
    pub(crate) const NONE: Self = Self {
        rows: std::ptr::null(),
        offsets: &[],
        len: 0,
        to_l1: false,
        scales: [std::ptr::null(); 2],
        scale_offsets: &[],
        scale_len: 0,
    };

    /// The rows from `first` on.
    pub(crate) fn from(self, first: usize) -> Self {
        let [offsets, scale_offsets] =
            [self.offsets, self.scale_offsets].map(|offsets| offsets.get(first..).unwrap_or_default());
        Self { offsets, scale_offsets, ..self }
    }

    /// Prefetches of some rows, line by line: processors prefetch by themselves what is read in order.
    #[inline(always)]
    pub(crate) fn cursor(&self, rows: Range<usize>) -> Cursor<'a> {
        let count = self.offsets.len();
        let offsets = self.offsets[rows.start.min(count)..rows.end.min(count)].iter();
        let (line, end) = (std::ptr::null(), std::ptr::null());
        Cursor { from: self.rows, offsets, len: self.len, to_l1: self.to_l1, line, end }
    }

    /// The lines of that many rows, and how many to prefetch in each of so many steps.
    pub(crate) fn in_steps(&self, rows: usize, steps: usize) -> (Cursor<'a>, usize) {
        let cursor = self.cursor(0..rows);
        let lines = self.lines(cursor.offsets.len());
        (cursor, lines.div_ceil(steps.max(1)))
    }

    /// The lines of that many rows, which may share some.
    pub(crate) fn lines(&self, rows: usize) -> usize {
        (self.rows.addr() % LINE + self.len).div_ceil(LINE) * rows
    }

    /// Prefetches the scales of some rows.
    #[inline(always)]
    pub(crate) fn scales(&self, rows: Range<usize>) {
        let offsets = self.scale_offsets.get(rows).unwrap_or_default();
        let step = offsets.first_chunk().map_or(LINE, |[a, b]| b.wrapping_sub(*a));
        // The scales of near rows, as many as begin within a line, may reach into the next line.
        let (near, bytes) = if step < LINE { (LINE / step.max(1), LINE + self.scale_len) } else { (1, self.scale_len) };
        for &offset in offsets.iter().step_by(near) {
            for from in self.scales {
                for at in (0..bytes).step_by(LINE) {
                    prefetch(from.wrapping_add(offset + at), self.to_l1);
                }
            }
        }
    }
}

#[inline(always)]
fn prefetch(line: *const u8, to_l1: bool) {
    if to_l1 { prefetch_l1(line) } else { prefetch_l2(line) }
}

/// Where prefetches have come to.
pub(crate) struct Cursor<'a> {
    from: *const u8,
    offsets: std::slice::Iter<'a, usize>,
    /// Bytes of a row.
    len: usize,
    to_l1: bool,
    /// The next line, and where the row ends.
    line: *const u8,
    end: *const u8,
}

impl Cursor<'_> {
    /// Prefetches the next lines, if there are that many.
    #[inline(always)]
    pub(crate) fn advance(&mut self, lines: usize) {
        for _ in 0..lines {
            if self.line >= self.end {
                let Some(offset) = self.offsets.next() else { return };
                let row = self.from.wrapping_add(*offset);
                // Of a row after the one before, the first line may have been that one's last.
                if row != self.end {
                    self.line = row.wrapping_sub(row.addr() % LINE);
                }
                self.end = row.wrapping_add(self.len);
            }
            prefetch(self.line, self.to_l1);
            self.line = self.line.wrapping_add(LINE);
        }
    }
}
