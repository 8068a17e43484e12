//! What a memory has to do for edits: copies that are queued, then keys that are rotated, each row once.

use std::collections::HashSet;

use kvcache_kernels::Rotation;

use crate::error::Error;
use crate::memory::CacheMemory;
use crate::spec::CacheSpec;
use crate::state::State;

/// What a memory is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Copies,
    Rotations,
}

impl State {
    /// Has a memory make the copies that are queued, and rotate the keys that are pending. Where it fails or panics,
    /// [`settle`](Self::settle) has to follow.
    pub(crate) fn update(&mut self, spec: &CacheSpec, memory: &mut (impl CacheMemory + ?Sized)) -> Result<(), Error> {
        if !self.queue.is_empty() {
            self.phase = Some(Phase::Copies);
            memory.copy_rows(&self.queue).map_err(|source| Error::Memory { source })?;
            self.queue.clear();
            self.phase = None;
        }
        self.may_rotate =
            self.may_rotate && self.sequences.values().any(|sequence| sequence.rotated.is_some() && !sequence.lost);
        if self.may_rotate
            && let Some(rope) = spec.rope()
        {
            let rotations = self.rotations(spec.page_size());
            self.phase = Some(Phase::Rotations);
            memory.rotate_keys(&rotations, rope).map_err(|source| Error::Memory { source })?;
            self.phase = None;
            for sequence in self.sequences.values_mut().filter(|sequence| !sequence.lost) {
                if sequence.rotated.take().is_some() {
                    sequence.shifts = sequence.shifts.saturating_add(1);
                }
            }
        }
        Ok(())
    }

    /// After a memory has failed in an update: the sequences whose rows it may have damaged are lost.
    pub(crate) fn settle(&mut self, spec: &CacheSpec) {
        match self.phase.take() {
            None => {}
            Some(Phase::Copies) => {
                let written: HashSet<usize> =
                    self.queue.drain(..).flat_map(|copy| copy.dst..copy.dst + copy.len).collect();
                for sequence in self.sequences.values_mut() {
                    let touched = sequence.slots(spec.page_size()).any(|slot| written.contains(&slot));
                    sequence.lost |= touched;
                }
            }
            Some(Phase::Rotations) => {
                for sequence in self.sequences.values_mut().filter(|sequence| sequence.rotated.is_some()) {
                    sequence.lost = true;
                }
            }
        }
    }

    /// The copies that are queued, and the sequences with keys to rotate.
    pub(crate) fn waiting(&self) -> (usize, usize) {
        let pending = self.sequences.values().filter(|sequence| sequence.rotated.is_some() && !sequence.lost);
        (self.queue.len(), pending.count())
    }

    /// The rotations of all pending rows, in order of their slots, each slot once.
    fn rotations(&self, page_size: usize) -> Vec<Rotation> {
        let mut rows = Vec::new();
        for sequence in self.sequences.values().filter(|sequence| sequence.rotated.is_some() && !sequence.lost) {
            rows.extend(sequence.slots(page_size).zip(sequence.pending()).filter(|row| row.1 != 0));
        }
        // Rows that several sequences have are pending by the same delta in each.
        rows.sort_unstable();
        rows.dedup();
        let mut rotations: Vec<Rotation> = Vec::new();
        for (slot, delta) in rows {
            match rotations.last_mut() {
                Some(last) if last.delta == delta && last.slot + last.len == slot => last.len += 1,
                _ => rotations.push(Rotation { slot, len: 1, delta }),
            }
        }
        rotations
    }
}
