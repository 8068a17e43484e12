//! The journal of an open step: what undoes it, in reverse order.

use crate::pages::Source;
use crate::seq_id::SeqId;
use crate::sequence::Before;
use crate::state::State;

/// How to undo one change.
#[derive(Debug, Clone)]
enum Undo {
    /// A sequence was marked as one of the step's.
    Mark(SeqId),
    /// Rows were appended.
    Append(SeqId, Before),
    /// An entry of a table was replaced; the page was there.
    Replace(SeqId, usize, u32),
    /// A free page was taken.
    Take(u32, Source),
    /// A cached page was evicted and taken; it had the key, and the last tokens that are saved.
    Evict(u32, u128),
    /// A table entry more.
    Share(u32),
    /// A table entry less.
    Unshare(u32),
    /// A cached page became live.
    Revive(u32),
    /// A page was sealed.
    Seal(u32),
    /// A live page that will be written was unsealed; it had the key, and the last tokens that are saved.
    Unseal(u32, u128),
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Journal {
    undo: Vec<Undo>,
    /// Tokens of evicted pages.
    tokens: Vec<u32>,
    taken: usize,
}

impl Journal {
    /// How many pages the step has taken.
    pub(crate) fn taken(&self) -> usize {
        self.taken
    }

    /// Marks a sequence as that of an append.
    pub(crate) fn mark(&mut self, state: &mut State, seq: SeqId, append: usize) {
        state.sequences[seq].append = Some(append);
        self.undo.push(Undo::Mark(seq));
    }

    /// Notes a sequence's state, before rows are appended to it.
    pub(crate) fn note(&mut self, state: &State, seq: SeqId) {
        self.undo.push(Undo::Append(seq, state.sequences[seq].before()));
    }

    /// Takes a free page, or else the least recently used one of the cached pages, for one table entry.
    pub(crate) fn take(&mut self, state: &mut State) -> Option<u32> {
        let page = match state.pages.take() {
            Some((page, source)) => {
                self.undo.push(Undo::Take(page, source));
                page
            }
            None => {
                let page = state.cached.first()?;
                state.cached.remove(page);
                let key = self.take_from_index(state, page);
                self.undo.push(Undo::Evict(page, key));
                page
            }
        };
        self.taken += 1;
        self.share(state, page);
        Some(page)
    }

    /// Unseals a page and saves its tokens; gives its key.
    fn take_from_index(&mut self, state: &mut State, page: u32) -> u128 {
        self.tokens.extend_from_slice(state.prefix.tokens(page));
        state.prefix.unseal(page)
    }

    /// Undoes the latest [`take_from_index`](Self::take_from_index) that is not undone.
    fn put_into_index(&mut self, state: &mut State, page: u32, key: u128) {
        let tokens = state.prefix.tokens_mut(page);
        let saved = self.tokens.len() - tokens.len();
        tokens.copy_from_slice(&self.tokens[saved..]);
        self.tokens.truncate(saved);
        let sealed = state.prefix.seal(page, key);
        debug_assert!(sealed, "the step's own pages are unsealed by now");
    }

    /// Unseals a page that its only owner will write, if it is sealed.
    pub(crate) fn unseal(&mut self, state: &mut State, page: u32) {
        if state.prefix.key(page).is_some() {
            let key = self.take_from_index(state, page);
            self.undo.push(Undo::Unseal(page, key));
        }
    }

    /// One more table entry for a page that is not cached.
    fn share(&mut self, state: &mut State, page: u32) {
        state.pages.share(page);
        self.undo.push(Undo::Share(page));
    }

    /// One more table entry for a sealed page.
    pub(crate) fn map(&mut self, state: &mut State, page: u32) {
        if state.pages.refcount(page) == 0 {
            state.cached.remove(page);
            self.undo.push(Undo::Revive(page));
        }
        self.share(state, page);
    }

    /// One table entry less for a page that has others.
    pub(crate) fn unshare(&mut self, state: &mut State, page: u32) {
        state.pages.unshare(page);
        self.undo.push(Undo::Unshare(page));
    }

    /// Puts another page into a sequence's table.
    pub(crate) fn replace(&mut self, state: &mut State, seq: SeqId, index: usize, page: u32) {
        let before = std::mem::replace(&mut state.sequences[seq].table[index], page);
        self.undo.push(Undo::Replace(seq, index, before));
    }

    /// Seals a page, unless another has its key.
    pub(crate) fn seal(&mut self, state: &mut State, page: u32, key: u128) {
        if state.prefix.seal(page, key) {
            self.undo.push(Undo::Seal(page));
        }
    }

    /// Ends the step: its changes stay.
    pub(crate) fn commit(&mut self, state: &mut State) {
        for undo in self.undo.drain(..) {
            if let Undo::Mark(seq) = undo {
                state.sequences[seq].append = None;
            }
        }
        self.tokens.clear();
        self.taken = 0;
    }

    /// Ends the step: its changes are undone. Sealed pages that may have been `written` leave the index, the
    /// others are in it again.
    pub(crate) fn rollback(&mut self, state: &mut State, mut written: impl FnMut(u32) -> bool) {
        let mut overwritten = Vec::new();
        while let Some(undo) = self.undo.pop() {
            match undo {
                Undo::Mark(seq) => state.sequences[seq].append = None,
                Undo::Append(seq, before) => state.sequences[seq].restore(before),
                Undo::Replace(seq, index, page) => state.sequences[seq].table[index] = page,
                Undo::Take(page, source) => state.pages.untake(page, source),
                Undo::Evict(page, key) => {
                    self.put_into_index(state, page, key);
                    state.cached.restore(page);
                    if written(page) {
                        overwritten.push(page);
                    }
                }
                Undo::Share(page) => {
                    state.pages.unshare(page);
                }
                Undo::Unshare(page) => {
                    state.pages.share(page);
                }
                Undo::Revive(page) => state.cached.restore(page),
                Undo::Unseal(page, key) => {
                    self.put_into_index(state, page, key);
                    if written(page) {
                        overwritten.push(page);
                    }
                }
                Undo::Seal(page) => {
                    state.prefix.unseal(page);
                }
            }
        }
        self.taken = 0;
        for page in overwritten {
            state.prefix.unseal(page);
            if state.pages.refcount(page) == 0 {
                state.cached.remove(page);
                state.pages.free(page);
            }
        }
    }
}
