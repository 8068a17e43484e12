//! Loading sequences.

use std::fs::File;
use std::path::Path;

use super::error::SessionError;
use super::file::io;
use super::place::{Placed, Target, place};
use super::sequences;
use crate::error::Error;
use crate::manager::Manager;
use crate::memory::CacheMemory;
use crate::sequences::SeqId;
use crate::step::OpenStep;

impl Manager {
    /// Loads all sequences that were [saved](Self::save), in their order. The manager has no sequence yet. Dimensions,
    /// types, key form, RoPE and fingerprint of its cache are those that the session was saved with; mode, layout, page
    /// size and number of slots may be others. What is queued is done first, as by [`update`](Self::update).
    ///
    /// Rows are shared as they were, as far as the mode can: pages with the same rows, or cells. Full pages of known
    /// tokens are in the prefix index, and a prompt begins with pages that the prefix index has of it, but for its last
    /// token.
    ///
    /// All but the rows is checked before a slot is written. Rows are read once, into free slots. Where the digest is
    /// wrong, these are free again.
    ///
    /// # Errors
    /// [`Error::Session`]; [`Error::NoSlot`] where in the mode `runs` there is no run as long as a
    /// sequence; [`Error::Memory`]. Neither sequences nor their rows have changed then, but cached pages that were to
    /// be written may have left the prefix index.
    ///
    /// # Panics
    /// If the memory does. Nothing is loaded then.
    pub fn load(
        &mut self,
        path: impl AsRef<Path>,
        memory: &mut (impl CacheMemory + ?Sized),
    ) -> Result<Vec<SeqId>, Error> {
        self.check_closed()?;
        match self.state.sequences.len() {
            0 => self.load_sequences(path.as_ref(), memory, None),
            sequences => Err(SessionError::NotEmpty { sequences }.into()),
        }
    }

    /// Loads one of the sequences that were [saved](Self::save), beside those that there are, as [`load`](Self::load).
    pub fn load_seq(
        &mut self,
        path: impl AsRef<Path>,
        memory: &mut (impl CacheMemory + ?Sized),
        index: usize,
    ) -> Result<SeqId, Error> {
        self.check_closed()?;
        let seqs = self.load_sequences(path.as_ref(), memory, Some(index))?;
        Ok(seqs[0])
    }

    fn load_sequences(
        &mut self,
        path: &Path,
        memory: &mut (impl CacheMemory + ?Sized),
        index: Option<usize>,
    ) -> Result<Vec<SeqId>, Error> {
        let file = File::open(path).map_err(io("open the file"))?;
        let (saved, rows) = sequences::read(file, self.spec(), index)?;
        let Placed { seqs, targets } = self.plan_load(|state| place(state, &saved))?;
        drop(saved);
        let loading = OpenStep(self);
        loading.0.drain(memory)?;
        let row_len = loading.0.spec().bytes_per_token();
        let mut writer = Writer { targets: &targets, row_len, slots: Vec::new(), rows: Vec::new() };
        rows.read(|first, bytes| writer.write(memory, first as u64, bytes))?;
        loading.0.commit_load();
        Ok(seqs)
    }
}

/// Writes rows of a file to the slots that want them.
struct Writer<'a> {
    /// The slots whose rows are still to come.
    targets: &'a [Target],
    row_len: usize,
    slots: Vec<usize>,
    rows: Vec<u8>,
}

impl Writer<'_> {
    /// Writes some rows of the file, the first of which has this index.
    fn write(&mut self, memory: &mut (impl CacheMemory + ?Sized), first: u64, bytes: &[u8]) -> Result<(), Error> {
        let len = bytes.len() / self.row_len;
        let (here, behind) =
            self.targets.split_at(self.targets.partition_point(|target| target.row < first + len as u64));
        self.targets = behind;
        for targets in here.chunks(len) {
            self.slots.clear();
            self.slots.extend(targets.iter().map(|target| target.slot));
            let at = |target: &Target| (target.row - first) as usize * self.row_len;
            let rows = if targets.is_sorted_by(|a, b| a.row + 1 == b.row) {
                let start = at(&targets[0]);
                &bytes[start..start + targets.len() * self.row_len]
            } else {
                self.rows.clear();
                for target in targets {
                    self.rows.extend_from_slice(&bytes[at(target)..at(target) + self.row_len]);
                }
                &self.rows
            };
            memory.write_rows(&self.slots, rows).map_err(Error::memory)?;
        }
        Ok(())
    }
}
