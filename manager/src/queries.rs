//! Queries of a manager's sequences.

use crate::append::Append;
use crate::blocks::chain;
use crate::error::Error;
use crate::manager::Manager;
use crate::seq_id::SeqId;
use crate::state::FoundPrefix;

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

    /// How many tokens a step would find that appends these alone: in the prefix index, then in the store, as far as
    /// there are pages for them. What the store gives is kept until a step is committed: the next one takes it, and does
    /// not ask again for what is missing.
    ///
    /// # Errors
    /// [`Error::StepOpen`], [`Error::UnknownSeq`], [`Error::Lost`], [`Error::Swapped`].
    pub fn find_prefix(&mut self, append: &Append<'_>) -> Result<usize, Error> {
        self.check_closed()?;
        let state = &mut self.state;
        let sequence = state.intact(append.seq)?;
        if sequence.len() > 0 || append.first_position(0) != 0 || !state.spec.prefix_sharing() {
            return Ok(0);
        }
        let (page_size, tokens) = (state.page_size(), append.may_be_cached());
        let FoundPrefix { pages, .. } = state.find_prefix(sequence.root, tokens);
        let mut num_pages = pages.len();
        if state.blocks.is_some() {
            let key = pages.last().map_or(sequence.root, |page| page.0);
            let cached = pages.iter().filter(|(_, page)| page.is_some_and(|page| state.pages.refcount(page) == 0));
            let room = state.available() - cached.count();
            let chain: Vec<_> = chain(key, &tokens[num_pages * page_size..], page_size).take(room).collect();
            let most = state.spec.num_pages();
            num_pages += state.blocks.as_mut().map_or(0, |blocks| blocks.find(&chain, most));
        }
        Ok(num_pages * page_size)
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
