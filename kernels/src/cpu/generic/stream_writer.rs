//! Staging buffers, and the writer that joins rows to whole lines for non-temporal stores.
//!
//! ```text
//! reserve(to, len): if `to` does not follow the last byte, write what is held; room in the staging buffer
//! (the caller fills the room)
//! commit(len):      held bytes + room = bytes of consecutive addresses
//!                   plain stores up to the first line, if nothing was held
//!                   non-temporal stores of all whole lines
//!                   what is left, less than a line, is held
//! finish():         plain stores of what is held
//! ```
//!
//! Non-temporal stores write whole, aligned lines, or else take several times as long. Rows rarely are such: ONNX
//! Runtime's own outputs begin with a line, numpy's large arrays 16 bytes past one, and a head of 40 elements is no
//! whole line anywhere. A [`StreamWriter`] joins rows that follow each other in memory to the lines that they share.
//! Loads of rows that follow each other 16 bytes past lines need none: see `load_block`.

use std::mem::MaybeUninit;
use std::ptr;

use kvcache_simd::LINE;

use super::super::block::{CopyFunction, StridedCopy};

/// Bytes of a staging buffer: a small part of the first-level cache.
pub(crate) const STAGE_BYTES: usize = 8 << 10;

/// Bytes that pass through a staging buffer together: long enough to hide where a row begins, short enough that
/// prefetches come in small portions.
pub(crate) const AT_ONCE_BYTES: usize = 4096;

/// Bytes of a row from which on its whole lines are copied without a staging buffer, wherever they begin.
pub(crate) const DIRECT_BYTES: usize = 1024;

/// [`STAGE_BYTES`] and a line on the stack, aligned to lines. It is used where it is declared: to move it would copy
/// it.
#[repr(align(64))]
pub(crate) struct StagingBuffer([MaybeUninit<u8>; STAGE_BYTES + LINE]);

impl StagingBuffer {
    /// Memory that holds nothing.
    pub(crate) const fn new() -> Self {
        Self([MaybeUninit::uninit(); STAGE_BYTES + LINE])
    }

    /// The first byte.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }
}

/// Writes bytes of consecutive addresses as whole lines, by non-temporal stores. Lines of which it gets a part only, at
/// either end, it writes by plain stores.
pub(crate) struct StreamWriter<'s> {
    /// Its first line ends with the bytes that are held back; what is reserved follows, at the second line.
    stage: &'s mut StagingBuffer,
    /// The address after the last byte that was committed.
    to: *mut u8,
    /// Bytes that are held back, less than a line: the beginning of one.
    held: usize,
}

/// The writers of a thread, for keys or for values: of the outputs, or of the cache and of its scales.
pub(crate) type Writers<'s> = [StreamWriter<'s>; 2];

impl<'s> StreamWriter<'s> {
    /// A writer that holds nothing.
    pub(crate) fn new(stage: &'s mut StagingBuffer) -> Self {
        Self { stage, to: ptr::null_mut(), held: 0 }
    }

    /// Room in the staging buffer, at a line, for `len <= STAGE_BYTES` bytes that go to `to`; to be filled before the
    /// next call, which is [`commit`](Self::commit). If they do not follow the ones before, what is left of those is
    /// written.
    ///
    /// # Safety
    /// The conditions of [`finish`](Self::finish).
    pub(crate) unsafe fn reserve(&mut self, to: *mut u8, len: usize) -> *mut u8 {
        debug_assert!(len <= STAGE_BYTES, "{len} bytes for a stage of {STAGE_BYTES}");
        if self.to != to {
            // SAFETY: what was committed may still be written: this function's condition.
            unsafe { self.finish() };
            self.to = to;
        }
        self.stage.as_mut_ptr().wrapping_add(LINE)
    }

    /// Writes the whole lines of what was held back and of the `len` bytes that were reserved.
    ///
    /// # Safety
    /// `len` is no more than was reserved. These bytes are filled, and their addresses are valid for writes; `stream`
    /// may be called for whole, aligned lines.
    pub(crate) unsafe fn commit(&mut self, len: usize, stream: CopyFunction) {
        let stage = self.stage.as_mut_ptr();
        let (mut from, mut left) = (stage.wrapping_add(LINE - self.held), self.held + len);
        let mut to = self.to.wrapping_sub(self.held);
        // SAFETY: `left` bytes at `from` are filled, and go to valid addresses: this function's condition. What is
        // left of the last line is less than a line, and moves to the end of the stage's first line.
        unsafe {
            // Only if nothing was held back: else it is the beginning of a line.
            let head = to.align_offset(LINE).min(left);
            to.copy_from_nonoverlapping(from, head);
            (from, to, left) = (from.add(head), to.add(head), left - head);
            let whole = left / LINE * LINE;
            if whole > 0 {
                stream(&StridedCopy::one(from, to, whole));
            }
            self.held = left - whole;
            stage.add(LINE - self.held).copy_from(from.add(whole), self.held);
        }
        self.to = self.to.wrapping_add(len);
    }

    /// Copies `len` bytes to `to`, whole lines there without the staging buffer; while it reads, it
    /// prefetches at the distance `prefetch`.
    ///
    /// # Safety
    /// The conditions of [`reserve`](Self::reserve) and [`commit`](Self::commit); `len` bytes at `from` can be read.
    pub(crate) unsafe fn copy(
        &mut self,
        from: *const u8,
        to: *mut u8,
        len: usize,
        prefetch: Option<isize>,
        stream: CopyFunction,
    ) {
        let head = to.align_offset(LINE).min(len);
        let whole = (len - head) / LINE * LINE;
        let tail = len - head - whole;
        // SAFETY: head + whole + tail = len. Once the head is committed nothing is held back, if anything follows it,
        // since it ends with a line; so the tail begins a new line.
        unsafe {
            if head > 0 {
                self.reserve(to, head).copy_from_nonoverlapping(from, head);
                self.commit(head, stream);
            }
            if whole > 0 {
                let lines = StridedCopy::one(from.add(head), to.add(head), whole);
                stream(&StridedCopy { prefetch, ..lines });
            }
            if tail > 0 {
                self.reserve(to.add(head + whole), tail).copy_from_nonoverlapping(from.add(head + whole), tail);
                self.commit(tail, stream);
            }
        }
    }

    /// Writes what is held back by plain stores.
    ///
    /// # Safety
    /// The addresses of all bytes that were committed are valid for writes.
    pub(crate) unsafe fn finish(&mut self) {
        // SAFETY: the bytes that are held back were committed, and their addresses are valid: see `# Safety`.
        unsafe {
            let held = self.stage.as_mut_ptr().add(LINE - self.held);
            self.to.wrapping_sub(self.held).copy_from_nonoverlapping(held, self.held);
        }
        self.held = 0;
    }
}
