//! The use of a cache.

use crate::manager::Manager;

/// The use of a cache, in slots of whole pages.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Stats {
    /// All slots: used, free and cached ones. The null page of a window that keeps rows is none of these.
    pub slots: usize,
    /// Slots of pages, or cells, that sequences have; in the mode `runs` all that are reserved.
    pub used: usize,
    /// Free slots.
    pub free: usize,
    /// Slots of pages that no sequence has, kept for prompts that begin with the same tokens. They also become free, once
    /// the free pages are taken.
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
    /// The use of the cache. Takes time proportional to its pages, or cells.
    pub fn stats(&self) -> Stats {
        let (state, page_size) = (&self.state, self.spec().page_size());
        let (num_pages, nulls) = (state.pages.len(), usize::from(self.spec().keep_rows()));
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
            prefix_hits: self.prefix_hits(),
        }
    }
}
