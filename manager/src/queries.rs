//! Queries of a manager's sequences.

use crate::append::Append;
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

    /// How many tokens a step that appends these alone would find in the prefix index. The store is not asked for more.
    ///
    /// # Errors
    /// [`Error::UnknownSeq`], [`Error::Lost`], [`Error::Swapped`].
    pub fn cached_prefix(&self, append: &Append<'_>) -> Result<usize, Error> {
        let (spec, sequence) = (self.spec(), self.state.intact(append.seq)?);
        if sequence.len() > 0 || append.first_position(0) != 0 || !spec.prefix_sharing() {
            return Ok(0);
        }
        Ok(self.state.find_prefix(spec, sequence.root, append.may_be_cached()).pages.len() * spec.page_size())
    }

    /// The slots of a sequence's rows: where they are once queued copies are made. None while it is swapped out. Rows
    /// that a window has passed have those of the null page, where rows stay.
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
