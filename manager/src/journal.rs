//! The journal of an open step or of an edit: what undoes it, in reverse order.

use std::ops::Range;

use kvcache_kernels::RowCopy;

use crate::block::BlockKey;
use crate::pages::Source;
use crate::seq_id::SeqId;
use crate::sequence::{Before, MemoryLocation, Sequence};
use crate::state::State;

#[derive(Debug, Clone)]
enum Undo {
    /// A sequence was edited; it was this one.
    Edit(SeqId, Box<Sequence>),
    Create(SeqId),
    /// An entry of a table was replaced; the page was there.
    Replace(SeqId, usize, u32),
    /// A run was grown, moved or taken; it was this one.
    Run(SeqId, MemoryLocation),
    /// A free page was taken.
    Take(u32, Source),
    /// Neighboring cells were taken; the head was there.
    TakeCells(Range<usize>, usize),
    /// The search for cells began there.
    Head(usize),
    /// A cached page was evicted and taken; it had the key, and the last tokens that are saved.
    Evict(u32, BlockKey),
    /// A table entry more.
    Share(u32),
    /// A table entry less.
    Unshare(u32),
    /// A cached page became live.
    Revive(u32),
    Seal(u32),
    /// A live page that will be written was unsealed; it had the key, and the last tokens that are saved.
    Unseal(u32, BlockKey),
    /// Tokens of that many slots were overwritten; they are the last that are saved.
    Tokens(usize, usize),
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Journal {
    undo: Vec<Undo>,
    /// Sequences that were marked as the step's. These and the next are in no `Undo`: of what a step does to every
    /// sequence, little is written, and it does not matter when it is undone.
    marked: Vec<SeqId>,
    /// Sequences that rows were appended to, as they were before.
    appended: Vec<(SeqId, Before)>,
    /// Tokens that were overwritten, or may be.
    tokens: Vec<u32>,
    /// Pages that have lost their last table entry.
    released: Vec<u32>,
    /// Cells that no run has any more.
    freed: Vec<Range<usize>>,
    taken: usize,
}

impl Journal {
    pub(crate) fn taken(&self) -> usize {
        self.taken
    }

    /// Marks a sequence as that of an append.
    pub(crate) fn mark(&mut self, state: &mut State, seq: SeqId, append: usize) {
        state.sequences[seq].append = Some(append);
        self.marked.push(seq);
    }

    /// Notes a sequence's state, before rows are appended to it.
    pub(crate) fn note(&mut self, state: &State, seq: SeqId) {
        self.appended.push((seq, state.sequences[seq].before()));
    }

    /// Notes a sequence, before it is edited.
    pub(crate) fn edit(&mut self, state: &State, seq: SeqId) {
        self.undo.push(Undo::Edit(seq, Box::new(state.sequences[seq].clone())));
    }

    pub(crate) fn create(&mut self, state: &mut State, sequence: Sequence) -> SeqId {
        let seq = state.sequences.insert(sequence);
        self.undo.push(Undo::Create(seq));
        seq
    }

    /// Takes a free page, or else the least recently used one of the cached pages, for one table entry.
    pub(crate) fn take(&mut self, state: &mut State) -> Option<u32> {
        self.take_from(state, 0)
    }

    /// Takes a page, or a cell from `first` on: none before it is free.
    pub(crate) fn take_from(&mut self, state: &mut State, first: usize) -> Option<u32> {
        let page = match state.pages.take(first) {
            Some((page, source)) => {
                self.undo.push(Undo::Take(page, source));
                page
            }
            None => {
                let page = state.cached.first()?;
                state.cached.remove(page);
                let key = self.take_from_index(state, page)?;
                state.offload(page, key);
                self.undo.push(Undo::Evict(page, key));
                page
            }
        };
        self.taken += 1;
        self.share(state, page);
        Some(page)
    }

    /// Takes neighboring cells, from the head on; returns the first. They have no table entries yet.
    pub(crate) fn take_cells(&mut self, state: &mut State, n: usize) -> Option<usize> {
        let (slot, head) = state.pages.take_cells(n)?;
        self.undo.push(Undo::TakeCells(slot..slot + n, head));
        Some(slot)
    }

    /// Takes the cells of a run, from the head on: `wish` of them, else `need`. Returns the first, and how many they
    /// are.
    pub(crate) fn take_run(&mut self, state: &mut State, need: usize, wish: usize) -> Option<(usize, usize)> {
        let wish = wish.max(need);
        match self.take_cells(state, wish) {
            Some(start) => Some((start, wish)),
            None => Some((self.take_cells(state, need)?, need)),
        }
    }

    /// Lets the next search for cells begin elsewhere.
    pub(crate) fn set_head(&mut self, state: &mut State, head: usize) {
        self.undo.push(Undo::Head(state.pages.head()));
        state.pages.set_head(head);
    }

    /// Takes cells, if they are free.
    pub(crate) fn take_behind(&mut self, state: &mut State, cells: Range<usize>) -> bool {
        let taken = state.pages.take_behind(cells.clone());
        if taken {
            self.undo.push(Undo::TakeCells(cells, state.pages.head()));
        }
        taken
    }

    /// Gives a sequence another run. Cells that it leaves are `freed` in the end.
    pub(crate) fn set_run(&mut self, state: &mut State, seq: SeqId, run: Range<usize>, freed: Range<usize>) {
        let before = std::mem::replace(&mut state.sequences[seq].place, MemoryLocation::Run(run));
        self.undo.push(Undo::Run(seq, before));
        self.free_cells(freed);
    }

    pub(crate) fn free_cells(&mut self, cells: Range<usize>) {
        if !cells.is_empty() {
            self.freed.push(cells);
        }
    }

    /// Unseals a page, if it is sealed, and saves its tokens; returns its key.
    fn take_from_index(&mut self, state: &mut State, page: u32) -> Option<BlockKey> {
        let key = state.prefix.unseal(page)?;
        self.tokens.extend_from_slice(state.prefix.tokens(page));
        Some(key)
    }

    /// Undoes the latest [`take_from_index`](Self::take_from_index) that is not undone.
    fn put_into_index(&mut self, state: &mut State, page: u32, key: BlockKey) {
        self.restore_tokens(state.prefix.tokens_mut(page));
        let sealed = state.prefix.seal(page, key);
        debug_assert!(sealed, "the step's own pages are unsealed by now");
    }

    /// Takes back the last tokens that are saved.
    fn restore_tokens(&mut self, tokens: &mut [u32]) {
        let saved = self.tokens.len() - tokens.len();
        tokens.copy_from_slice(&self.tokens[saved..]);
        self.tokens.truncate(saved);
    }

    /// Unseals a page that its only owner will write, if it is sealed.
    pub(crate) fn unseal(&mut self, state: &mut State, page: u32) {
        if let Some(key) = self.take_from_index(state, page) {
            self.undo.push(Undo::Unseal(page, key));
        }
    }

    pub(crate) fn copy_tokens(&mut self, state: &mut State, RowCopy { src, dst, len }: RowCopy) {
        let tokens = state.prefix.slot_tokens_mut();
        self.tokens.extend_from_slice(&tokens[dst..dst + len]);
        tokens.copy_within(src..src + len, dst);
        self.undo.push(Undo::Tokens(dst, len));
    }

    /// One more table entry for a page that is not cached.
    pub(crate) fn share(&mut self, state: &mut State, page: u32) {
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

    /// One table entry less for a page. Where it was the last, the page is free or cached in the end.
    pub(crate) fn unshare(&mut self, state: &mut State, page: u32) {
        if state.pages.unshare(page) == 0 {
            self.released.push(page);
        }
        self.undo.push(Undo::Unshare(page));
    }

    /// Puts another page into a sequence's table.
    pub(crate) fn replace(&mut self, state: &mut State, seq: SeqId, index: usize, page: u32) {
        let before = std::mem::replace(&mut state.sequences[seq].table_mut()[index], page);
        self.undo.push(Undo::Replace(seq, index, before));
    }

    /// Seals a page, unless another has its key.
    pub(crate) fn seal(&mut self, state: &mut State, page: u32, key: BlockKey) {
        if state.prefix.seal(page, key) {
            self.undo.push(Undo::Seal(page));
        }
    }

    /// Ends the step or the edit: its changes stay.
    pub(crate) fn commit(&mut self, state: &mut State) {
        self.undo.clear();
        self.appended.clear();
        for seq in self.marked.drain(..) {
            state.sequences[seq].append = None;
        }
        for page in self.released.drain(..) {
            // Since then an edit may have shared it.
            if state.pages.refcount(page) == 0 {
                state.release(page);
            }
        }
        for cells in self.freed.drain(..) {
            state.pages.free_cells(cells);
        }
        self.tokens.clear();
        self.taken = 0;
    }

    /// Ends the step or the edit: its changes are undone. Sealed pages that may have been `written` leave the index,
    /// the others are in it again.
    pub(crate) fn rollback(&mut self, state: &mut State, mut written: impl FnMut(u32) -> bool) {
        let mut overwritten = Vec::new();
        while let Some(undo) = self.undo.pop() {
            match undo {
                Undo::Edit(seq, before) => state.sequences[seq] = *before,
                Undo::Create(seq) => {
                    state.sequences.remove(seq);
                }
                Undo::Replace(seq, index, page) => state.sequences[seq].table_mut()[index] = page,
                Undo::Run(seq, before) => state.sequences[seq].place = before,
                Undo::Take(page, source) => state.pages.untake(page, source),
                Undo::TakeCells(cells, head) => {
                    state.pages.untake_cells(cells);
                    state.pages.set_head(head);
                }
                Undo::Head(head) => state.pages.set_head(head),
                Undo::Evict(page, key) => {
                    state.undo_offload(key);
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
                Undo::Tokens(slot, len) => {
                    self.restore_tokens(&mut state.prefix.slot_tokens_mut()[slot..slot + len]);
                }
            }
        }
        for (seq, before) in self.appended.drain(..) {
            state.sequences[seq].restore(before);
        }
        for seq in self.marked.drain(..) {
            state.sequences[seq].append = None;
        }
        self.released.clear();
        self.freed.clear();
        self.taken = 0;
        for page in overwritten {
            state.forget(page);
        }
    }
}
