//! Pages: how many table entries name each, and which are free.

use crate::error::Error;
use crate::zeros::zeros;

/// Where a page was taken from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// It was freed before.
    Freed,
    /// It was never used.
    Fresh,
}

/// Reference counts, and the free pages: the latest freed first, then those that were never used in ascending order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pages {
    refcounts: Vec<u32>,
    freed: Vec<u32>,
    /// The first of the pages that were never used.
    fresh: u32,
}

impl Pages {
    pub(crate) fn new(num_pages: usize) -> Result<Self, Error> {
        Ok(Self { refcounts: zeros(num_pages)?, freed: Vec::new(), fresh: 0 })
    }

    /// Takes a free page; its reference count is still 0.
    pub(crate) fn take(&mut self) -> Option<(u32, Source)> {
        if let Some(page) = self.freed.pop() {
            return Some((page, Source::Freed));
        }
        let page = self.fresh;
        ((page as usize) < self.refcounts.len()).then(|| {
            self.fresh += 1;
            (page, Source::Fresh)
        })
    }

    /// Undoes the latest [`take`](Self::take) that is not undone.
    pub(crate) fn untake(&mut self, page: u32, source: Source) {
        match source {
            Source::Freed => self.freed.push(page),
            Source::Fresh => self.fresh -= 1,
        }
    }

    /// Frees a page.
    pub(crate) fn free(&mut self, page: u32) {
        self.freed.push(page);
    }

    pub(crate) fn refcount(&self, page: u32) -> u32 {
        self.refcounts[page as usize]
    }

    /// One more table entry; gives how many there are.
    pub(crate) fn share(&mut self, page: u32) -> u32 {
        self.refcounts[page as usize] += 1;
        self.refcounts[page as usize]
    }

    /// One table entry less; gives how many are left.
    pub(crate) fn unshare(&mut self, page: u32) -> u32 {
        self.refcounts[page as usize] -= 1;
        self.refcounts[page as usize]
    }

    /// How many pages are free.
    pub(crate) fn num_free(&self) -> usize {
        self.freed.len() + self.refcounts.len() - self.fresh as usize
    }

    pub(crate) fn len(&self) -> usize {
        self.refcounts.len()
    }

    /// The freed pages, the next one to be taken last.
    pub(crate) fn freed(&self) -> &[u32] {
        &self.freed
    }

    /// The first of the pages that were never used.
    pub(crate) fn fresh(&self) -> u32 {
        self.fresh
    }
}
