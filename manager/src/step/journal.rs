//! The journal of an open step or of an edit: what undoes it, in reverse order.

use std::ops::Range;

use kvcache_kernels::RowCopy;

use crate::memory::block::BlockKey;
use crate::sequences::SeqId;
use crate::sequences::sequence::{AppendUndo, MemoryLocation, Sequence};
use crate::slots::pages::Source;
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
    /// Sequences that appends are to. These and the next are no `Undo`: a step notes them for every sequence, so they
    /// are kept small, and the order in which they are undone does not matter.
    marked: Vec<SeqId>,
    /// Sequences that rows were appended to, as they were before.
    appended: Vec<(SeqId, AppendUndo)>,
    /// Tokens that were overwritten, or may be.
    tokens: Vec<u32>,
    /// Pages that have lost their last table entry: free or cached at commit.
    released: Vec<u32>,
    /// Cells that left a run: free at commit.
    freed: Vec<Range<usize>>,
    /// Pages that were taken.
    pub(crate) taken: usize,
    /// Copies that were queued before.
    pub(crate) queued: usize,
}

impl Journal {
    /// Takes back the last tokens that are saved.
    fn restore_tokens(&mut self, tokens: &mut [u32]) {
        let saved = self.tokens.len() - tokens.len();
        tokens.copy_from_slice(&self.tokens[saved..]);
        self.tokens.truncate(saved);
    }
}

impl State {
    /// Begins a step or an edit, whose changes are then undone or [committed](Self::commit).
    pub(crate) fn begin(&mut self) {
        self.journal.queued = self.queue.len();
    }

    /// Notes that an append of the step is to this sequence.
    pub(crate) fn mark(&mut self, seq: SeqId, append: usize) {
        self.sequences[seq].append = Some(append);
        self.journal.marked.push(seq);
    }

    /// Notes a sequence's state, before rows are appended to it.
    pub(crate) fn note_append(&mut self, seq: SeqId) {
        self.journal.appended.push((seq, self.sequences[seq].append_undo()));
    }

    /// Notes a sequence, before it is edited.
    pub(crate) fn note_edit(&mut self, seq: SeqId) {
        self.journal.undo.push(Undo::Edit(seq, Box::new(self.sequences[seq].clone())));
    }

    pub(crate) fn insert(&mut self, sequence: Sequence) -> SeqId {
        let seq = self.sequences.insert(sequence);
        self.journal.undo.push(Undo::Create(seq));
        seq
    }

    /// Takes a free page, or else the least recently used one of the cached pages, or a cell from `first` on, before
    /// which none is free, for one table entry.
    pub(crate) fn take_page(&mut self, first: usize) -> Option<u32> {
        let page = match self.pages.take(first) {
            Some((page, source)) => {
                self.journal.undo.push(Undo::Take(page, source));
                page
            }
            None => {
                let page = self.cached.first()?;
                self.cached.remove(page);
                let key = self.take_from_index(page)?;
                self.offload(page, key);
                self.journal.undo.push(Undo::Evict(page, key));
                page
            }
        };
        self.journal.taken += 1;
        self.share_page(page);
        Some(page)
    }

    /// Takes neighboring cells, from the head on; returns the first. They have no table entries yet.
    pub(crate) fn take_cells(&mut self, n: usize) -> Option<usize> {
        let (slot, head) = self.pages.take_cells(n)?;
        self.journal.undo.push(Undo::TakeCells(slot..slot + n, head));
        Some(slot)
    }

    /// Takes the cells of a run, from the head on: `wish` of them, else `need`. Returns the first, and how many they
    /// are.
    pub(crate) fn take_run(&mut self, need: usize, wish: usize) -> Option<(usize, usize)> {
        let wish = wish.max(need);
        match self.take_cells(wish) {
            Some(start) => Some((start, wish)),
            None => Some((self.take_cells(need)?, need)),
        }
    }

    /// Lets the next search for cells begin elsewhere.
    pub(crate) fn set_head(&mut self, head: usize) {
        self.journal.undo.push(Undo::Head(self.pages.head()));
        self.pages.set_head(head);
    }

    /// Takes cells, if they are free.
    pub(crate) fn take_behind(&mut self, cells: Range<usize>) -> bool {
        let taken = self.pages.take_behind(cells.clone());
        if taken {
            self.journal.undo.push(Undo::TakeCells(cells, self.pages.head()));
        }
        taken
    }

    /// Gives a sequence another run. Cells that it leaves are `freed` in the end.
    pub(crate) fn set_run(&mut self, seq: SeqId, run: Range<usize>, freed: Range<usize>) {
        let before = std::mem::replace(&mut self.sequences[seq].place, MemoryLocation::Run(run));
        self.journal.undo.push(Undo::Run(seq, before));
        self.free_cells(freed);
    }

    pub(crate) fn free_cells(&mut self, cells: Range<usize>) {
        if !cells.is_empty() {
            self.journal.freed.push(cells);
        }
    }

    /// Unseals a page, if it is sealed, and saves its tokens; returns its key.
    fn take_from_index(&mut self, page: u32) -> Option<BlockKey> {
        let key = self.prefix.unseal(page)?;
        self.journal.tokens.extend_from_slice(self.prefix.tokens(page));
        Some(key)
    }

    /// Undoes the latest [`take_from_index`](Self::take_from_index) that is not undone.
    fn put_into_index(&mut self, page: u32, key: BlockKey) {
        self.journal.restore_tokens(self.prefix.tokens_mut(page));
        let sealed = self.prefix.seal(page, key);
        debug_assert!(sealed, "the step's own pages are unsealed by now");
    }

    /// Unseals a page that its only owner will write, if it is sealed.
    pub(crate) fn unseal_page(&mut self, page: u32) {
        if let Some(key) = self.take_from_index(page) {
            self.journal.undo.push(Undo::Unseal(page, key));
        }
    }

    pub(crate) fn copy_tokens(&mut self, RowCopy { src, dst, len }: RowCopy) {
        let tokens = &mut self.prefix.slot_tokens;
        self.journal.tokens.extend_from_slice(&tokens[dst..dst + len]);
        tokens.copy_within(src..src + len, dst);
        self.journal.undo.push(Undo::Tokens(dst, len));
    }

    /// One more table entry for a page that is not cached.
    pub(crate) fn share_page(&mut self, page: u32) {
        self.pages.share(page);
        self.journal.undo.push(Undo::Share(page));
    }

    /// One more table entry for a sealed page.
    pub(crate) fn map_page(&mut self, page: u32) {
        if self.pages.refcount(page) == 0 {
            self.cached.remove(page);
            self.journal.undo.push(Undo::Revive(page));
        }
        self.share_page(page);
    }

    /// One table entry less for a page. Where it was the last, the page is free or cached in the end.
    pub(crate) fn unshare_page(&mut self, page: u32) {
        if self.pages.unshare(page) == 0 {
            self.journal.released.push(page);
        }
        self.journal.undo.push(Undo::Unshare(page));
    }

    /// Puts another page into a sequence's table.
    pub(crate) fn replace_page(&mut self, seq: SeqId, index: usize, page: u32) {
        let before = std::mem::replace(&mut self.sequences[seq].table_mut()[index], page);
        self.journal.undo.push(Undo::Replace(seq, index, before));
    }

    /// Seals a page, unless another has its key.
    pub(crate) fn seal_page(&mut self, page: u32, key: BlockKey) {
        if self.prefix.seal(page, key) {
            self.journal.undo.push(Undo::Seal(page));
        }
    }

    /// Ends the step or the edit: its changes stay.
    pub(crate) fn commit(&mut self) {
        self.journal.undo.clear();
        self.journal.appended.clear();
        for seq in self.journal.marked.drain(..) {
            self.sequences[seq].append = None;
        }
        for i in 0..self.journal.released.len() {
            let page = self.journal.released[i];
            // Since then an edit may have shared it.
            if self.pages.refcount(page) == 0 {
                self.release(page);
            }
        }
        self.journal.released.clear();
        for cells in self.journal.freed.drain(..) {
            self.pages.free_cells(cells);
        }
        self.journal.tokens.clear();
        self.journal.taken = 0;
    }

    /// Ends the step or the edit: its changes are undone. Sealed pages that may have been `written` leave the index,
    /// the others are in it again.
    pub(crate) fn rollback(&mut self, mut written: impl FnMut(u32) -> bool) {
        let mut overwritten = Vec::new();
        while let Some(undo) = self.journal.undo.pop() {
            match undo {
                Undo::Edit(seq, before) => self.sequences[seq] = *before,
                Undo::Create(seq) => {
                    self.sequences.remove(seq);
                }
                Undo::Replace(seq, index, page) => self.sequences[seq].table_mut()[index] = page,
                Undo::Run(seq, before) => self.sequences[seq].place = before,
                Undo::Take(page, source) => self.pages.untake(page, source),
                Undo::TakeCells(cells, head) => {
                    self.pages.untake_cells(cells);
                    self.pages.set_head(head);
                }
                Undo::Head(head) => self.pages.set_head(head),
                Undo::Evict(page, key) => {
                    self.undo_offload(key);
                    self.put_into_index(page, key);
                    self.cached.restore(page);
                    if written(page) {
                        overwritten.push(page);
                    }
                }
                Undo::Share(page) => {
                    self.pages.unshare(page);
                }
                Undo::Unshare(page) => {
                    self.pages.share(page);
                }
                Undo::Revive(page) => self.cached.restore(page),
                Undo::Unseal(page, key) => {
                    self.put_into_index(page, key);
                    if written(page) {
                        overwritten.push(page);
                    }
                }
                Undo::Seal(page) => {
                    self.prefix.unseal(page);
                }
                Undo::Tokens(slot, len) => {
                    self.journal.restore_tokens(&mut self.prefix.slot_tokens[slot..slot + len]);
                }
            }
        }
        for (seq, before) in self.journal.appended.drain(..) {
            self.sequences[seq].undo_append(before);
        }
        for seq in self.journal.marked.drain(..) {
            self.sequences[seq].append = None;
        }
        self.journal.released.clear();
        self.journal.freed.clear();
        self.journal.taken = 0;
        self.queue.truncate(self.journal.queued);
        for page in overwritten {
            self.forget(page);
        }
    }
}
