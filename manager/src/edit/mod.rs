//! Edits of sequences between steps, each all or nothing. What is refused is undone by the journal.

mod copy;
mod remove;
mod self_extend;
mod shift;

pub use self_extend::self_extend_positions;
pub use shift::ContextShift;

use kvcache_kernels::RowCopy;

use crate::error::Error;
use crate::journal::Journal;
use crate::spec::{CacheSpec, Mode};
use crate::state::State;

/// The state that an edit reads and changes. All changes are in the journal, but for copies that are queued.
pub(crate) struct Editor<'a> {
    pub(crate) spec: &'a CacheSpec,
    pub(crate) state: &'a mut State,
    pub(crate) journal: &'a mut Journal,
    /// Copies that were queued before the edit.
    pub(crate) queued: usize,
}

impl Editor<'_> {
    fn page_size(&self) -> usize {
        self.spec.page_size()
    }

    /// Checks that this many pages, or cells, can be taken.
    fn require(&self, need: usize) -> Result<(), Error> {
        let free = self.state.pages.num_free() + self.state.cached.len();
        if need <= free {
            return Ok(());
        }
        Err(match self.spec.mode() {
            Mode::Paged { .. } => Error::OutOfPages { need, free },
            Mode::Runs | Mode::Cells => self.state.no_slot(need),
        })
    }

    /// Takes a page, which [`require`](Self::require) has found.
    fn take(&mut self) -> u32 {
        self.take_from(0)
    }

    /// Takes a page, or a cell from `first` on: none before it is free.
    fn take_from(&mut self, first: usize) -> u32 {
        let taken = self.journal.take_from(self.state, first);
        taken.unwrap_or_else(|| unreachable!("pages are counted before they are taken"))
    }

    fn copy(&mut self, copy: RowCopy) {
        self.journal.copy_tokens(self.state, copy);
        let RowCopy { src, dst, len } = copy;
        match self.state.queue[self.queued..].last_mut() {
            // As long as the latter does not read what the former writes, the two are one.
            Some(last)
                if last.src + last.len == src
                    && last.dst + last.len == dst
                    && (last.dst < last.src || last.dst >= src + len) =>
            {
                last.len += len;
            }
            _ => self.state.queue.push(copy),
        }
    }
}
