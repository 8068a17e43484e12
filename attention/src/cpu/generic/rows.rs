//! Rows of one head of keys or values, as they are in memory.

use super::simd::MOST_LANES;

/// Bytes in a cache line.
const LINE: usize = 64;

/// Rows of one head, which can be read.
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
}

impl Groups {
    /// For rows of `len` elements in groups of `group`, in registers of `lanes`.
    pub(crate) fn new(len: usize, group: usize, lanes: usize) -> Self {
        let registers = if lanes.is_multiple_of(group) { group } else { 0 };
        Self {
            group,
            count: len / group,
            lanes: (0..registers).map(|k| std::array::from_fn(|i| ((k * lanes + i % lanes) / group) as u32)).collect(),
        }
    }
}

impl Next<'_> {
    /// Prefetches the bytes of a row in which `at` is the first of some; lines of which it is not the first are left.
    #[inline(always)]
    pub(crate) fn prefetch(&self, row: usize, bytes: std::ops::Range<usize>) {
        for at in bytes.step_by(LINE) {
            prefetch(self.from.wrapping_add(self.offsets[row] + at));
        }
    }

    /// Prefetches the scales of a row, which take so many bytes.
    #[inline(always)]
    pub(crate) fn prefetch_scales(&self, row: usize, len: usize) {
        for at in (0..len).step_by(LINE) {
            prefetch(self.scale.wrapping_add(self.scale_offsets[row] + at));
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
