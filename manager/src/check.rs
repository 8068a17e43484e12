//! Verifies the invariants of a manager's state.

use std::collections::HashMap;

use crate::error::Error;
use crate::manager::Manager;
use crate::sequences::sequence::MemoryLocation;
use crate::slots::pages::NULL_PAGE;
use crate::spec::{CacheSpec, KeyForm, Mode};
use crate::state::State;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Page {
    Unseen,
    Free,
    Cached,
    /// In that many table entries.
    Live(u32),
    Reserved,
}

impl Manager {
    /// Verifies every invariant, in release builds too. Takes time proportional to pages and rows.
    ///
    /// # Errors
    /// [`Error::Broken`].
    pub fn check(&self) -> Result<(), Error> {
        let page_size = self.spec().page_size();
        for (at, sequence) in self.state.sequences.values().enumerate() {
            sequence.check(at, page_size)?;
            if sequence.is_pending() && !self.state.may_rotate {
                return Err(broken("where keys are pending, the next update looks for them", at));
            }
        }
        check_pages(&self.state, self.spec())?;
        check_positions(&self.state, self.spec())?;
        check_index(&self.state)?;
        if self.spec().prefix_sharing {
            check_keys(&self.state, page_size)?;
        }
        Ok(())
    }
}

fn broken(what: &'static str, at: impl TryInto<usize>) -> Error {
    Error::Broken { what, at: at.try_into().unwrap_or(usize::MAX) }
}

/// Free, cached and live pages are all pages, each one of the three; reference counts are table entries.
fn check_pages(state: &State, spec: &CacheSpec) -> Result<(), Error> {
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
    for page in state.pages.free_pages() {
        see(page, Page::Free)?;
    }
    if spec.keep_rows {
        see(NULL_PAGE, Page::Live(1))?;
    }
    for page in state.cached.iter() {
        see(page, Page::Cached)?;
    }
    for sequence in state.sequences.values() {
        match &sequence.place {
            MemoryLocation::Table(table) => table.iter().try_for_each(|&page| see(page, Page::Live(1)))?,
            MemoryLocation::Run(cells) => cells.clone().try_for_each(|cell| see(cell as u32, Page::Reserved))?,
        }
    }
    for (page, &kind) in (0..).zip(&pages) {
        let sealed = state.prefix.key(page).is_some();
        let right = match kind {
            Page::Unseen => return Err(broken("every page is free, cached or live", page)),
            Page::Free => !sealed,
            Page::Cached => sealed,
            Page::Live(_) | Page::Reserved => true,
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

/// The key of a row that several sequences have is rotated for one position; a cell has one position.
fn check_positions(state: &State, spec: &CacheSpec) -> Result<(), Error> {
    let mut shared = HashMap::new();
    for sequence in state.sequences.values().filter(|sequence| !sequence.lost) {
        let rotated = sequence.rotated.as_ref().unwrap_or(&sequence.positions);
        let positions = sequence.positions.iter().zip(rotated.iter());
        for (row, (position, rotated)) in positions.enumerate() {
            let Some(&page) = sequence.table().get(row / spec.page_size()) else { break };
            if row < sequence.passed.rows || state.pages.refcount(page) < 2 {
                continue;
            }
            let slot = sequence.slot(row, spec.page_size());
            let other = *shared.entry(slot).or_insert((position, rotated));
            if spec.key_form == KeyForm::Roped && rotated != other.1 {
                return Err(broken("a shared row's key is rotated for one position", slot));
            }
            if spec.mode == Mode::Cells && position != other.0 {
                return Err(broken("a cell has one position", slot));
            }
        }
    }
    Ok(())
}

/// The index has the sealed pages, each by its key.
fn check_index(state: &State) -> Result<(), Error> {
    if let Some((page, _)) = state.prefix.sealed().find(|&(_, found)| !found) {
        return Err(broken("the prefix index has each page by its key", page));
    }
    let sealed = (0..state.pages.len() as u32).filter(|&page| state.prefix.key(page).is_some()).count();
    if sealed != state.prefix.sealed().len() {
        return Err(broken("the prefix index has every sealed page", sealed));
    }
    Ok(())
}

/// Sealed pages have the key of their tokens. Of those that a sequence has a part of, only others know the rest.
fn check_keys(state: &State, page_size: usize) -> Result<(), Error> {
    for (at, sequence) in state.sequences.values().enumerate().filter(|(_, sequence)| sequence.swapped.is_none()) {
        let passed = sequence.passed;
        if sequence.table()[..passed.rows / page_size].iter().any(|&page| page != NULL_PAGE) {
            return Err(broken("rows that a window has passed have the null page", at));
        }
        if sequence.known < passed.rows {
            continue;
        }
        let (mut key, pages) = (passed.key, &sequence.table()[passed.rows / page_size..]);
        for (&page, tokens) in pages.iter().zip(state.tokens(sequence)) {
            let full = tokens.len() == page_size;
            if full {
                key = key.followed_by(tokens);
            }
            match state.prefix.key(page) {
                Some(got) if full && got != key => return Err(broken("a page's key follows from its tokens", page)),
                _ => {}
            }
        }
        if key != sequence.key {
            return Err(broken("a sequence has the key of its last full known page", at));
        }
    }
    Ok(())
}
