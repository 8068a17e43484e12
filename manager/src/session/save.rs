//! Saving sequences.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::slice;

use super::error::SessionError;
use super::sequences::{self, SavedSequence};
use crate::error::Error;
use crate::manager::Manager;
use crate::memory::CacheMemory;
use crate::sequences::SeqId;
use crate::sequences::sequence::Sequence;
use crate::spec::CacheSpec;
use crate::state::State;

/// Gives every row of the sequences its index in the file.
#[derive(Default)]
struct Rows {
    /// By index: the slot of the row.
    slots: Vec<usize>,
    /// The indexes of slots that several sequences have.
    shared: HashMap<usize, u64>,
}

/// A sequence on its way to a file: its rows are read in parts, between which the manager may be used.
#[derive(Debug, Clone)]
pub struct Saving {
    spec: CacheSpec,
    seq: SeqId,
    removals: u64,
    saved: SavedSequence,
}

impl Saving {
    /// Writes the file that [`Manager::save_seq`] writes. `read_rows` gives the rows of a range, as
    /// [`Manager::read_saving`] does.
    ///
    /// # Errors
    /// [`SessionError::Io`] or [`SessionError::Malformed`], and the errors of `read_rows`. The file has not
    /// changed then.
    pub fn write<E: From<SessionError>>(
        &self,
        path: impl AsRef<Path>,
        read_rows: impl FnMut(Range<usize>, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        sequences::write(path.as_ref(), &self.spec, slice::from_ref(&self.saved), self.saved.rows.len(), read_rows)
    }
}

impl Manager {
    /// Saves all sequences, in order of creation, with their rows, positions, known tokens, salts and shift counts. The
    /// file is a safetensors file that only its owner can read; what was there before is replaced once the new one is
    /// whole on disk. Rows that sequences share are in it once.
    ///
    /// # Errors
    /// [`Error::UpdatePending`], [`Error::Memory`]; [`Error::Session`] with [`SessionError::Io`],
    /// [`SessionError::PassedRows`] or [`SessionError::Malformed`].
    pub fn save(&mut self, path: impl AsRef<Path>, memory: &(impl CacheMemory + ?Sized)) -> Result<(), Error> {
        self.check_closed()?;
        let mut seqs: Vec<_> = self.state.sequences.iter().map(|(seq, sequence)| (sequence.created, seq)).collect();
        seqs.sort_unstable();
        let (sequences, slots) = self.saved(seqs.into_iter().map(|(_, seq)| seq))?;
        let read_rows = |range, bytes: &mut [u8]| memory.read_rows(&slots[range], bytes).map_err(Error::memory);
        sequences::write(path.as_ref(), self.spec(), &sequences, slots.len(), read_rows)
    }

    /// Saves one sequence, in the form of [`save`](Self::save), and refuses the same.
    pub fn save_seq(
        &mut self,
        path: impl AsRef<Path>,
        memory: &(impl CacheMemory + ?Sized),
        seq: SeqId,
    ) -> Result<(), Error> {
        let saving = self.saving(seq)?;
        saving.write(path, |rows, bytes| self.read_saving(&saving, rows, bytes, memory))
    }

    /// Begins to save one sequence beside other work: what [`save_seq`](Self::save_seq) does in parts. Refuses what is
    /// known before a byte is written.
    pub fn saving(&mut self, seq: SeqId) -> Result<Saving, Error> {
        self.check_closed()?;
        let (mut saved, _) = self.saved([seq])?;
        let removals = self.state.sequence(seq)?.removals;
        // One sequence has each of its rows once.
        Ok(Saving { spec: self.spec().clone(), seq, removals, saved: saved.remove(0) })
    }

    /// Reads rows of a sequence that is being saved; a step may be open.
    ///
    /// # Errors
    /// [`Error::UpdatePending`] with copies, where [`update`](Self::update) has to come first;
    /// [`SessionError::Changed`] for a sequence that has other rows or positions by now; [`Error::Memory`].
    pub fn read_saving(
        &self,
        saving: &Saving,
        rows: Range<usize>,
        bytes: &mut [u8],
        memory: &(impl CacheMemory + ?Sized),
    ) -> Result<(), Error> {
        let sequence = self.state.intact(saving.seq)?;
        let positions = saving.saved.positions.iter().map(|&position| i64::from(position));
        let is_same = (sequence.removals, sequence.shifts) == (saving.removals, saving.saved.shifts);
        if sequence.is_pending() || !is_same || !sequence.positions.iter().eq(positions) {
            return Err(SessionError::Changed.into());
        }
        if let (copies @ 1.., sequences) = self.state.waiting() {
            return Err(Error::UpdatePending { copies, sequences });
        }
        let slots: Vec<_> = sequence.slots(self.spec().page_size()).skip(rows.start).take(rows.len()).collect();
        memory.read_rows(&slots, bytes).map_err(Error::memory)
    }

    /// Sequences as a file has them, and the slots of its rows.
    fn saved(&self, seqs: impl IntoIterator<Item = SeqId>) -> Result<(Vec<SavedSequence>, Vec<usize>), Error> {
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
        let sequences = sequences.into_iter().map(saved).collect();
        Ok((sequences, rows.slots))
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
            tokens: state.tokens(sequence).flatten().copied().collect(),
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
