//! Verifies the invariants of a manager's state.

use crate::error::Error;
use crate::manager::Manager;
use crate::prefix;
use crate::state::State;

/// What a page is found to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Page {
    Unseen,
    Free,
    Cached,
    /// In so many table entries.
    Live(u32),
}

impl Manager {
    /// Verifies every invariant, in release builds too. Takes time proportional to pages and rows.
    ///
    /// # Errors
    /// [`Error::Broken`].
    pub fn check(&self) -> Result<(), Error> {
        let page_size = self.spec().page_size();
        check_pages(&self.state)?;
        for (at, sequence) in self.state.sequences.values().enumerate() {
            sequence.check(at, page_size)?;
        }
        check_index(&self.state)?;
        check_keys(&self.state, page_size)
    }
}

fn broken(what: &'static str, at: impl TryInto<usize>) -> Error {
    Error::Broken { what, at: at.try_into().unwrap_or(usize::MAX) }
}

/// Free, cached and live pages are all pages, each one of the three; reference counts are table entries.
fn check_pages(state: &State) -> Result<(), Error> {
    let mut pages = vec![Page::Unseen; state.pages.len()];
    let mut see = |page: u32, kind: Page| match pages.get_mut(page as usize) {
        Some(seen @ Page::Unseen) => {
            *seen = kind;
            Ok(())
        }
        Some(Page::Live(entries)) if kind == Page::Live(1) => {
            *entries += 1;
            Ok(())
        }
        Some(_) => Err(broken("a page is free, cached or live", page)),
        None => Err(broken("a page is one of the cache", page)),
    };
    for page in state.pages.freed().iter().copied().chain(state.pages.fresh()..state.pages.len() as u32) {
        see(page, Page::Free)?;
    }
    for page in state.cached.iter() {
        see(page, Page::Cached)?;
    }
    for page in state.sequences.values().flat_map(|sequence| &sequence.table) {
        see(*page, Page::Live(1))?;
    }
    for (page, &kind) in (0..).zip(&pages) {
        let sealed = state.prefix.key(page).is_some();
        let right = match kind {
            Page::Unseen => return Err(broken("every page is free, cached or live", page)),
            Page::Free => !sealed,
            Page::Cached => sealed,
            Page::Live(_) => true,
        };
        if !right {
            return Err(broken("cached pages are sealed, free ones are not", page));
        }
        let entries = if let Page::Live(entries) = kind { entries } else { 0 };
        if state.pages.refcount(page) != entries {
            return Err(broken("a page's reference count is its table entries", page));
        }
    }
    Ok(())
}

/// The index has the sealed pages, each by its key.
fn check_index(state: &State) -> Result<(), Error> {
    for (&key, &page) in state.prefix.pages() {
        if (page as usize) >= state.pages.len() || state.prefix.key(page) != Some(key) {
            return Err(broken("the prefix index has each page by its key", page));
        }
    }
    let sealed = (0..state.pages.len() as u32).filter(|&page| state.prefix.key(page).is_some()).count();
    if sealed != state.prefix.pages().len() {
        return Err(broken("the prefix index has every sealed page", sealed));
    }
    Ok(())
}

/// Sealed pages have the key of their tokens. Of those that a sequence has a part of, only others know the rest.
fn check_keys(state: &State, page_size: usize) -> Result<(), Error> {
    for (at, sequence) in state.sequences.values().enumerate() {
        let mut key = sequence.root;
        for (&page, tokens) in sequence.table.iter().zip(state.tokens(sequence, page_size)) {
            let full = tokens.len() == page_size;
            if full {
                key = prefix::child(key, tokens);
            }
            match state.prefix.key(page) {
                Some(got) if full && got != key => return Err(broken("a page's key is that of its tokens", page)),
                _ => {}
            }
        }
        if key != sequence.key {
            return Err(broken("a sequence's key is that of its last full known page", at));
        }
    }
    Ok(())
}
