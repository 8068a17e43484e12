//! Edits of sequences between steps, each all or nothing. What is refused is undone by the journal.

mod copy;
mod remove;
mod self_extend;
mod shift;

pub use self_extend::self_extend_positions;
pub use shift::ContextShift;

use std::ops::Range;

use kvcache_kernels::RowCopy;

use crate::error::Error;
use crate::spec::Mode;
use crate::state::State;

impl State {
    /// Checks that this many pages, or cells, can be taken.
    pub(crate) fn require(&self, need: usize) -> Result<(), Error> {
        let free = self.available();
        if need <= free {
            return Ok(());
        }
        Err(match self.spec.mode {
            Mode::Paged { .. } => Error::OutOfPages { need, free },
            Mode::Runs | Mode::Cells => self.no_slot(need),
        })
    }

    /// Takes a page, which [`require`](Self::require) has found, or a cell from `first` on, before which none is free.
    fn take_required(&mut self, first: usize) -> u32 {
        self.take_page(first).unwrap_or_else(|| unreachable!("pages are counted before they are taken"))
    }

    /// In the mode `cells`, takes as many neighboring cells, if there are such, for [`take_next`](Self::take_next).
    pub(crate) fn take_neighbors(&mut self, n: usize) -> Option<Range<u32>> {
        let start = if self.spec.mode == Mode::Cells && n > 0 { self.take_cells(n)? } else { return None };
        Some(start as u32..(start + n) as u32)
    }

    /// Takes the next of `cells`, or else a page that [`require`](Self::require) has found, for one table entry.
    pub(crate) fn take_next(&mut self, cells: &mut Option<Range<u32>>) -> u32 {
        match cells.as_mut().and_then(Iterator::next) {
            Some(cell) => {
                self.share_page(cell);
                cell
            }
            None => self.take_required(0),
        }
    }

    fn queue_copy(&mut self, copy: RowCopy) {
        self.copy_tokens(copy);
        let RowCopy { src, dst, len } = copy;
        match self.queue[self.journal.queued..].last_mut() {
            // As long as the latter does not read what the former writes, the two are one.
            Some(last)
                if last.src + last.len == src
                    && last.dst + last.len == dst
                    && (last.dst < last.src || last.dst >= src + len) =>
            {
                last.len += len;
            }
            _ => self.queue.push(copy),
        }
    }
}
