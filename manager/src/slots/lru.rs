//! The list of cached pages, the least recently used first.

use crate::error::Error;
use crate::slots::bits::zeros;

/// A doubly linked list of pages in arrays: every operation takes constant time and allocates nothing.
///
/// [`remove`](Self::remove) leaves a page's links as they are, so [`restore`](Self::restore) can put it back in its
/// place, as long as removals are undone in reverse order and nothing was added meanwhile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lru {
    /// By page: the page before it and the page after it. The last element is the head of the list.
    links: Vec<[u32; 2]>,
    len: usize,
}

impl Lru {
    /// An empty list for pages 0 to `num_pages` - 1.
    pub(crate) fn new(num_pages: usize) -> Result<Self, Error> {
        let mut links = zeros(num_pages + 1)?;
        links[num_pages] = [num_pages as u32; 2];
        Ok(Self { links, len: 0 })
    }

    fn head(&self) -> u32 {
        (self.links.len() - 1) as u32
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The least recently used page.
    pub(crate) fn first(&self) -> Option<u32> {
        let first = self.links[self.head() as usize][1];
        (first != self.head()).then_some(first)
    }

    /// Adds a page that is not in the list, as the most recently used.
    pub(crate) fn push(&mut self, page: u32) {
        let head = self.head();
        self.links[page as usize] = [self.links[head as usize][0], head];
        self.restore(page);
    }

    pub(crate) fn remove(&mut self, page: u32) {
        let [before, behind] = self.links[page as usize];
        self.links[before as usize][1] = behind;
        self.links[behind as usize][0] = before;
        self.len -= 1;
    }

    /// Undoes the latest [`remove`](Self::remove) that is not undone, which was of this page.
    pub(crate) fn restore(&mut self, page: u32) {
        let [before, behind] = self.links[page as usize];
        self.links[before as usize][1] = page;
        self.links[behind as usize][0] = page;
        self.len += 1;
    }

    /// The pages in order; stops where the links do not agree.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        let mut at = self.head();
        (0..self.len).map_while(move |_| {
            let next = self.links[at as usize][1];
            let agree = next != self.head() && self.links[next as usize][0] == at;
            at = next;
            agree.then_some(next)
        })
    }
}
