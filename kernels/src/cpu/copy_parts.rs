//! Copies of many parts of memory into other memory.

use kvcache_schema::ElementType;

use super::block::Copies;
use super::dispatch;
use super::functions::RowFunctions;
use super::kernel::Cpu;

/// Parts of memory at equal distances that are copied to other memory, there at equal distances, too.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parts {
    /// The number of parts, at least 1.
    pub(crate) count: usize,
    /// Bytes of each.
    pub(crate) len: usize,
    /// Where they are read: the offset of the first one, and from one to the next.
    pub(crate) from: [usize; 2],
    /// Where they are written.
    pub(crate) to: [usize; 2],
}

impl Parts {
    /// The same parts, copied back.
    pub(crate) fn back(self) -> Self {
        Self { from: self.to, to: self.from, ..self }
    }

    /// The bytes from the beginning of the first part to the end of the last.
    fn extent(&self, step: usize) -> usize {
        (self.count - 1) * step + self.len
    }
}

impl Cpu {
    /// Copies parts of `from` to parts of `to`, one after the other: with a prefetch distance by non-temporal stores
    /// where there are any.
    ///
    /// # Panics
    /// If a part is not inside its memory.
    pub(crate) fn copy_parts(
        &self,
        from: &[u8],
        to: &mut [u8],
        all: impl Iterator<Item = Parts>,
        stream: Option<usize>,
    ) {
        let bytes = (ElementType::Int8, ElementType::Int8, None);
        let RowFunctions { copy, stream_any, fence, .. } = dispatch::row_functions(self.instructions, bytes, 1);
        let prefetch = stream.map(|distance| distance as isize);
        let copy = if stream.is_some() { stream_any } else { copy.plain };
        for parts in all {
            let Parts { count, len, from: [from_at, from_step], to: [to_at, to_step] } = parts;
            let from = from[from_at..][..parts.extent(from_step)].as_ptr();
            let to = to[to_at..][..parts.extent(to_step)].as_mut_ptr();
            // SAFETY: the parts are inside of `from` and of `to`, checked above, which is other memory, since it is
            // borrowed mutably. `Cpu` is made for supported instruction sets alone.
            unsafe { copy(&Copies { from, from_step, to, to_step, len, rows: count, copies: 1, prefetch }) }
        }
        if stream.is_some() {
            fence();
        }
    }
}
