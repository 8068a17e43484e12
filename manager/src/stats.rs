//! How full a cache is.

use crate::manager::Manager;

/// The use of a cache, in slots of whole pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// All slots: used, free and cached ones.
    pub slots: usize,
    /// Slots of pages that sequences have.
    pub used: usize,
    /// Slots of free pages.
    pub free: usize,
    /// Slots of pages that no sequence has, kept for prompts that begin with the same tokens. They are free, too, once
    /// the free pages are taken.
    pub cached: usize,
    /// Those of the used ones that several sequences have.
    pub shared: usize,
    /// The longest run of neighboring slots of free pages.
    pub largest_free_run: usize,
    /// Sequences.
    pub sequences: usize,
    /// Rows that were found in the prefix index instead of computed, since the manager was made.
    pub prefix_hits: usize,
}

impl Manager {
    /// How full the cache is. Takes time proportional to its pages.
    pub fn stats(&self) -> Stats {
        let (state, page_size) = (&self.state, self.spec().page_size());
        let num_pages = state.pages.len();
        let (mut shared, mut run, mut largest) = (0, 0, 0);
        for page in 0..num_pages as u32 {
            let refcount = state.pages.refcount(page);
            shared += usize::from(refcount > 1);
            run = if refcount == 0 && state.prefix.key(page).is_none() { run + 1 } else { 0 };
            largest = largest.max(run);
        }
        let (free, cached) = (state.pages.num_free(), state.cached.len());
        Stats {
            slots: num_pages * page_size,
            used: (num_pages - free - cached) * page_size,
            free: free * page_size,
            cached: cached * page_size,
            shared: shared * page_size,
            largest_free_run: largest * page_size,
            sequences: state.sequences.len(),
            prefix_hits: self.prefix_hits(),
        }
    }
}
