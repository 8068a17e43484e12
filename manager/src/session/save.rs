//! Saving sequences.

use std::collections::HashMap;
use std::path::Path;

use super::error::SessionError;
use super::sequences::{self, SavedSequence};
use crate::error::Error;
use crate::manager::Manager;
use crate::memory::CacheMemory;
use crate::seq_id::SeqId;
use crate::sequence::Sequence;
use crate::state::State;

/// Gives every row of the sequences its index in the file.
#[derive(Default)]
struct Rows {
    /// By index: the slot of the row.
    slots: Vec<usize>,
    /// The indexes of slots that several sequences have.
    shared: HashMap<usize, u64>,
}

impl Manager {
    /// Saves all sequences, in order of creation, with their rows, positions, known tokens, salts and shift counts. The
    /// file is a safetensors file that only its owner can read; what was there before is replaced once the new one is
    /// whole on disk. Rows that sequences share are in it once.
    ///
    /// # Errors
    /// [`Error::StepOpen`], [`Error::Lost`], [`Error::UpdatePending`], [`Error::Memory`]; [`Error::Session`] with
    /// [`SessionError::Io`], [`SessionError::PassedRows`] or [`SessionError::HeaderLength`].
    pub fn save(&mut self, path: impl AsRef<Path>, memory: &(impl CacheMemory + ?Sized)) -> Result<(), Error> {
        self.check_closed()?;
        let mut seqs: Vec<_> = self.state.sequences.iter().map(|(seq, sequence)| (sequence.created, seq)).collect();
        seqs.sort_unstable();
        self.save_sequences(path.as_ref(), memory, seqs.into_iter().map(|(_, seq)| seq))
    }

    /// Saves one sequence, in the form of [`save`](Self::save).
    ///
    /// # Errors
    /// [`Error::UnknownSeq`], and those of [`save`](Self::save).
    pub fn save_seq(
        &mut self,
        path: impl AsRef<Path>,
        memory: &(impl CacheMemory + ?Sized),
        seq: SeqId,
    ) -> Result<(), Error> {
        self.check_closed()?;
        self.save_sequences(path.as_ref(), memory, [seq])
    }

    fn save_sequences(
        &self,
        path: &Path,
        memory: &(impl CacheMemory + ?Sized),
        seqs: impl IntoIterator<Item = SeqId>,
    ) -> Result<(), Error> {
        let sequences = seqs.into_iter().map(|seq| self.state.intact(seq)).collect::<Result<Vec<_>, _>>()?;
        if let Some(rows) = sequences.iter().map(|sequence| sequence.passed.rows).find(|&rows| rows > 0) {
            return Err(SessionError::PassedRows { rows }.into());
        }
        let (copies, pending) = self.state.waiting();
        if (copies, pending) != (0, 0) {
            return Err(Error::UpdatePending { copies, sequences: pending });
        }
        let page_size = self.spec().page_size();
        let mut rows = Rows::default();
        let saved = |sequence| rows.save(&self.state, sequence, page_size);
        let sequences: Vec<_> = sequences.into_iter().map(saved).collect();
        let read_rows = |range, bytes: &mut [u8]| memory.read_rows(&rows.slots[range], bytes).map_err(Error::memory);
        sequences::write(path, self.spec(), &sequences, rows.slots.len(), read_rows)
    }
}

impl Rows {
    fn save(&mut self, state: &State, sequence: &Sequence, page_size: usize) -> SavedSequence {
        SavedSequence {
            salt: sequence.salt.to_vec(),
            shifts: sequence.shifts,
            gone: sequence.gone,
            ga_i: sequence.ga_i,
            rows: sequence.slots(page_size).map(|slot| self.index(state, slot, page_size)).collect(),
            // Positions are below 2^31.
            positions: sequence.positions.iter().map(|position| position as i32).collect(),
            tokens: state.tokens(sequence, page_size).flatten().copied().collect(),
        }
    }

    fn index(&mut self, state: &State, slot: usize, page_size: usize) -> u64 {
        let next = self.slots.len() as u64;
        let index = if state.pages.refcount((slot / page_size) as u32) > 1 {
            *self.shared.entry(slot).or_insert(next)
        } else {
            next
        };
        if index == next {
            self.slots.push(slot);
        }
        index
    }
}
