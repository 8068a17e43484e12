//! Queries of a manager's sequences.

use crate::error::Error;
use crate::manager::Manager;
use crate::seq_id::SeqId;

impl Manager {
    /// The rows of a sequence.
    ///
    /// # Errors
    /// [`Error::UnknownSeq`].
    pub fn seq_len(&self, seq: SeqId) -> Result<usize, Error> {
        Ok(self.state.sequence(seq)?.len())
    }

    /// The first position of a sequence; none if it is empty.
    ///
    /// # Errors
    /// [`Error::UnknownSeq`].
    pub fn pos_min(&self, seq: SeqId) -> Result<Option<i64>, Error> {
        Ok(self.state.sequence(seq)?.positions.first())
    }

    /// The last position of a sequence; none if it is empty.
    ///
    /// # Errors
    /// [`Error::UnknownSeq`].
    pub fn pos_max(&self, seq: SeqId) -> Result<Option<i64>, Error> {
        Ok(self.state.sequence(seq)?.positions.last())
    }

    /// The positions of a sequence's rows.
    ///
    /// # Errors
    /// [`Error::UnknownSeq`].
    pub fn positions(&self, seq: SeqId) -> Result<impl Iterator<Item = i64>, Error> {
        Ok(self.state.sequence(seq)?.positions.iter())
    }

    /// The pending rotation of each row's key: its position less the position that it is rotated for.
    ///
    /// # Errors
    /// [`Error::UnknownSeq`].
    pub fn pending(&self, seq: SeqId) -> Result<impl Iterator<Item = i64>, Error> {
        Ok(self.state.sequence(seq)?.pending())
    }

    /// The slots of a sequence's rows: where they are once queued copies are made. None while it is swapped out.
    ///
    /// # Errors
    /// [`Error::UnknownSeq`].
    pub fn slots(&self, seq: SeqId) -> Result<impl Iterator<Item = usize>, Error> {
        Ok(self.state.sequence(seq)?.slots(self.spec().page_size()))
    }

    /// Rows that were found in the prefix index instead of computed, since the manager was made.
    pub fn prefix_hits(&self) -> usize {
        self.prefix_hits
    }
}
