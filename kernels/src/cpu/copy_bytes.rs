//! Copies of many parts of memory into other memory.

use kvcache_schema::ElementType;

use super::block::StridedCopy;
use super::dispatch;
use super::functions::RowFunctions;
use super::kernel::Cpu;

/// A copy whose places are offsets in its memory.
pub(crate) type OffsetCopy = StridedCopy<usize, usize>;

impl OffsetCopy {
    /// The rows copied back.
    pub(crate) fn back(self) -> Self {
        let Self { from, from_step, to, to_step, .. } = self;
        Self { from: to, from_step: to_step, to: from, to_step: from_step, ..self }
    }
}

impl Cpu {
    /// Copies rows of `from` to rows of `to`, one copy after the other: with a prefetch distance by non-temporal stores
    /// where there are any.
    ///
    /// # Panics
    /// If a row is not inside its memory, or a copy has no rows.
    pub(crate) fn copy_bytes(
        &self,
        from: &[u8],
        to: &mut [u8],
        all: impl Iterator<Item = OffsetCopy>,
        stream: Option<usize>,
    ) {
        let bytes = (ElementType::Int8, ElementType::Int8, None);
        let RowFunctions { copy, stream_any, fence, .. } = dispatch::row_functions(self.instructions, bytes, 1);
        let prefetch = stream.map(|distance| distance as isize);
        let copy = if stream.is_some() { stream_any } else { copy.plain };
        for StridedCopy { from: from_at, from_step, to: to_at, to_step, len, rows, copies: _, prefetch: _ } in all {
            // From the beginning of the first row to the end of the last.
            let extent = |step: usize| (rows - 1) * step + len;
            let from = from[from_at..][..extent(from_step)].as_ptr();
            let to = to[to_at..][..extent(to_step)].as_mut_ptr();
            // SAFETY: the rows are inside of `from` and of `to`, checked above, which is other memory, since it is
            // borrowed mutably. `Cpu` is made for supported instruction sets alone.
            unsafe { copy(&StridedCopy { from, from_step, to, to_step, len, rows, copies: 1, prefetch }) }
        }
        if stream.is_some() {
            fence();
        }
    }
}
