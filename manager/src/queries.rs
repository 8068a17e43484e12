//! Queries: what sequences have, what a step would find, and how full the cache is.

use serde::Serialize;

use crate::error::Error;
use crate::manager::Manager;
use crate::memory::blocks::chain;
use crate::sequences::SeqId;
use crate::state::FoundPrefix;
use crate::step::append::Append;

/// The use of a cache, in slots of whole pages.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Stats {
    /// All slots: used, free and cached ones. The null page of a window that keeps rows is none of these.
    pub slots: usize,
    /// Slots of pages, or cells, that sequences have; in the mode `runs` all that are reserved.
    pub used: usize,
    /// Free slots.
    pub free: usize,
    /// Slots of pages that no sequence has, kept for prompts that begin with the same tokens. They also become free,
    /// once the free pages are taken.
    pub cached: usize,
    /// Used slots that several sequences have.
    pub shared: usize,
    /// The longest run of neighboring free slots.
    pub largest_free_run: usize,
    /// The part of the slots up to the last used one, padded, that is not used; 0 where they are fewer than 128.
    pub fragmentation: f64,
    /// The cell at which the next search begins; 0 with pages.
    pub head: usize,
    /// The slots up to the last used one, padded: those that a step sees in the mode `cells`.
    pub n_kv: usize,
    /// Sequences.
    pub sequences: usize,
    /// Sequences that are swapped out.
    pub swapped: usize,
    /// Rows that were found in the prefix index, or in the store, instead of computed, since the manager was made.
    pub prefix_hits: usize,
}

impl Manager {
    /// The rows of a sequence.
    pub fn seq_len(&self, seq: SeqId) -> Result<usize, Error> {
        Ok(self.state.sequence(seq)?.len())
    }

    /// The first position of a sequence; none if it is empty.
    pub fn pos_min(&self, seq: SeqId) -> Result<Option<i64>, Error> {
        Ok(self.state.sequence(seq)?.positions.first())
    }

    /// The last position of a sequence; none if it is empty.
    pub fn pos_max(&self, seq: SeqId) -> Result<Option<i64>, Error> {
        Ok(self.state.sequence(seq)?.positions.last())
    }

    /// The positions of a sequence's rows.
    pub fn positions(&self, seq: SeqId) -> Result<impl Iterator<Item = i64>, Error> {
        Ok(self.state.sequence(seq)?.positions.iter())
    }

    /// The pending rotation of each row's key: its position less the position that it is rotated for.
    pub fn pending(&self, seq: SeqId) -> Result<impl Iterator<Item = i64>, Error> {
        Ok(self.state.sequence(seq)?.pending())
    }

    /// How many tokens a step would find that appends these alone: in the prefix index, then in the store, as far as
    /// there are pages for them. Blocks of the store are kept until a step is committed: the next step takes them, and
    /// does not ask again for missing ones.
    pub fn find_prefix(&mut self, append: &Append<'_>) -> Result<usize, Error> {
        self.check_closed()?;
        let state = &mut self.state;
        let sequence = state.intact(append.seq)?;
        if sequence.len() > 0 || append.first_position(0) != 0 || !state.spec.prefix_sharing {
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
    /// that a window has passed and that stay have slots of the null page.
    pub fn slots(&self, seq: SeqId) -> Result<impl Iterator<Item = usize>, Error> {
        Ok(self.state.sequence(seq)?.slots(self.spec().page_size()))
    }

    /// The use of the cache. Takes time proportional to its pages, or cells.
    pub fn stats(&self) -> Stats {
        let (state, page_size) = (&self.state, self.spec().page_size());
        let (num_pages, nulls) = (state.pages.len(), usize::from(self.spec().keep_rows));
        let (mut shared, mut run, mut largest) = (0, 0, 0);
        for page in nulls as u32..num_pages as u32 {
            let refcount = state.pages.refcount(page);
            shared += usize::from(refcount > 1);
            run = if refcount == 0 && state.prefix.key(page).is_none() { run + 1 } else { 0 };
            largest = largest.max(run);
        }
        if let Some(busy) = state.pages.busy() {
            largest = busy.largest_free_run();
        }
        Stats {
            slots: (num_pages - nulls) * page_size,
            used: state.used_slots().count,
            free: state.pages.num_free() * page_size,
            cached: state.cached.len() * page_size,
            shared: shared * page_size,
            largest_free_run: largest * page_size,
            fragmentation: state.fragmentation(),
            head: state.pages.head(),
            n_kv: state.n_kv(),
            sequences: state.sequences.len(),
            swapped: state.sequences.values().filter(|sequence| sequence.swapped.is_some()).count(),
            prefix_hits: self.prefix_hits,
        }
    }
}
