//! Slots: which pages or cells are free, which are cached, and by which tokens a page is found.

pub(crate) mod bits;
pub(crate) mod cells;
mod defrag;
pub(crate) mod lru;
pub(crate) mod pages;
pub(crate) mod prefix;
