//! What a memory has to do for edits: copies that are queued, then keys that are rotated, each row once.

use std::collections::{BTreeSet, HashSet};

use kvcache_kernels::{Rotation, RowCopy};

use crate::error::Error;
use crate::memory::CacheMemory;
use crate::sequences::sequence::Sequence;
use crate::state::{Phase, State};

/// Runs copies, if there are any.
pub(crate) fn copy(memory: &mut (impl CacheMemory + ?Sized), copies: &[RowCopy]) -> Result<(), Error> {
    if copies.is_empty() { Ok(()) } else { memory.copy_rows(copies).map_err(|source| Error::Memory { source }) }
}

impl State {
    /// Notes the keys to rotate by where rows are now, for the next [`update`](Self::update): the plan of a step, which
    /// comes between the two, moves rows that the update has to find in their old places.
    pub(crate) fn prepare_update(&mut self) {
        self.rotations.clear();
        self.may_rotate = self.may_rotate && self.sequences.values().any(Sequence::is_pending);
        if self.may_rotate {
            self.find_rotations(self.page_size());
        }
    }

    /// Runs queued copies, offloads rows they would overwrite, then rotates pending keys. Where the memory fails or
    /// panics, [`settle`](Self::settle) has to follow.
    pub(crate) fn update(&mut self, memory: &mut (impl CacheMemory + ?Sized)) -> Result<(), Error> {
        if !self.queue.is_empty() || !self.offloads.is_empty() {
            let mut made = 0;
            self.phase = Some(Phase::Copies(made));
            if let Some(blocks) = &mut self.blocks {
                for offload in &self.offloads {
                    copy(memory, &self.queue[made..offload.behind])?;
                    made = offload.behind;
                    self.phase = Some(Phase::Copies(made));
                    blocks.write(offload, memory);
                }
            }
            copy(memory, &self.queue[made..])?;
            self.queue.clear();
            self.offloads.clear();
            self.phase = None;
        }
        if !self.rotations.is_empty()
            && let Some(rope) = self.spec.rope.as_ref()
        {
            self.phase = Some(Phase::Rotations);
            memory.rotate_keys(&self.rotations, rope).map_err(|source| Error::Memory { source })?;
            self.phase = None;
            self.rotations.clear();
            for sequence in self.sequences.values_mut().filter(|sequence| sequence.is_pending()) {
                sequence.rotated = None;
                sequence.shifts = sequence.shifts.saturating_add(1);
            }
        }
        Ok(())
    }

    /// After a memory has failed in an update: the sequences whose rows it may have damaged are lost.
    pub(crate) fn settle(&mut self) {
        let page_size = self.page_size();
        match self.phase.take() {
            None => {}
            Some(Phase::Copies(made)) => {
                // What is not stored by now may be damaged, too.
                self.offloads.clear();
                let written: HashSet<usize> =
                    self.queue.drain(..).skip(made).flat_map(|copy| copy.dst..copy.dst + copy.len).collect();
                for sequence in self.sequences.values_mut() {
                    let touched = sequence.slots(page_size).any(|slot| written.contains(&slot));
                    sequence.lost |= touched;
                }
                let pages: BTreeSet<u32> = written.iter().map(|slot| (slot / page_size) as u32).collect();
                pages.into_iter().for_each(|page| self.forget(page));
            }
            Some(Phase::Rotations) => {
                for sequence in self.sequences.values_mut().filter(|sequence| sequence.is_pending()) {
                    sequence.lost = true;
                }
            }
        }
    }

    /// Takes a page that may have been written out of the prefix index, if it is there.
    pub(crate) fn forget(&mut self, page: u32) {
        if (page as usize) < self.pages.len() && self.prefix.key(page).is_some() {
            self.prefix.unseal(page);
            if self.pages.refcount(page) == 0 {
                self.cached.remove(page);
                self.pages.free(page);
            }
        }
    }

    /// The copies that are queued, and the sequences with keys to rotate.
    pub(crate) fn waiting(&self) -> (usize, usize) {
        (self.queue.len(), self.sequences.values().filter(|sequence| sequence.is_pending()).count())
    }

    /// Notes the rotations of all pending rows, in order of their slots, each slot once.
    fn find_rotations(&mut self, page_size: usize) {
        let mut rows = Vec::new();
        for sequence in self.sequences.values().filter(|sequence| sequence.is_pending()) {
            rows.extend(sequence.slots(page_size).zip(sequence.pending()).filter(|row| row.1 != 0));
        }
        // Rows that several sequences have are pending by the same delta in each.
        rows.sort_unstable();
        rows.dedup();
        for (slot, delta) in rows {
            match self.rotations.last_mut() {
                Some(last) if last.delta == delta && last.slot + last.len == slot => last.len += 1,
                _ => self.rotations.push(Rotation { slot, len: 1, delta }),
            }
        }
    }
}
