//! Rows in pages: prefixes that are mapped, pages that are copied before they are written, and pages that are taken.

use kvcache_kernels::RowCopy;

use super::Entry;
use crate::error::Error;
use crate::memory::blocks::chain;
use crate::sequences::SeqId;
use crate::slots::pages::NULL_PAGE;
use crate::state::State;
use crate::step::append::Append;

impl State {
    pub(super) fn place_in_pages(&mut self, appends: &[Append<'_>]) -> Result<(), Error> {
        self.find_writers(appends);
        for (i, append) in appends.iter().enumerate() {
            let entry = self.plan_append(i, append);
            self.plan.entries.push(entry);
        }
        if self.plan.missing > 0 {
            let taken = self.journal.taken;
            return Err(Error::OutOfPages {
                need: taken.saturating_add(self.plan.missing),
                free: taken + self.available(),
            });
        }
        Ok(())
    }

    fn plan_append(&mut self, i: usize, append: &Append<'_>) -> Entry {
        let seq = append.seq;
        self.note_append(seq);
        let (before, position, known) = self.known_rows(append);
        let found = before == 0 && known.is_some() && self.spec.prefix_sharing;
        let cached = if found { self.map_prefix(seq, append.may_be_cached(), append.len()) } else { 0 };

        let replaced = self.own_last_page(seq, i);
        let kvlen = before + append.len();
        self.grow(seq, kvlen);
        self.sequences[seq].push_rows(append.len(), position);
        if let Some(tokens) = known
            && self.plan.missing == 0
        {
            self.remember(seq, before + cached, &tokens[cached..]);
        }
        Entry {
            seq,
            append: i,
            start: before + cached,
            n: append.len() - cached,
            cached,
            position: position + cached as i64,
            replaced,
        }
    }

    /// Begins an empty sequence, which gets `len` rows, with the longest sealed chain of tokens, and continues with
    /// pages that the store has; returns how many tokens they are.
    fn map_prefix(&mut self, seq: SeqId, tokens: &[u32], len: usize) -> usize {
        let page_size = self.spec.page_size();
        let root = self.sequences[seq].key;
        let found = self.find_prefix(root, tokens);
        for &(_, page) in &found.pages {
            match page {
                Some(page) => self.map_page(page),
                None => self.share_page(NULL_PAGE),
            }
            self.sequences[seq].table_mut().push(page.unwrap_or(NULL_PAGE));
        }
        let cached = found.pages.len() * page_size;
        let sequence = &mut self.sequences[seq];
        sequence.passed = found.passed;
        (sequence.key, sequence.known) = (found.pages.last().map_or(root, |page| page.0), cached);
        cached + self.load_prefix(seq, &tokens[cached..], len - cached)
    }

    /// Adds the pages that the store has of these tokens to a sequence, which gets `len` rows more; returns their
    /// number of tokens.
    fn load_prefix(&mut self, seq: SeqId, tokens: &[u32], len: usize) -> usize {
        let page_size = self.spec.page_size();
        let pages = tokens.chunks_exact(page_size);
        // A step that has no room for the sequence is refused in the end.
        if self.plan.missing > 0 || len.div_ceil(page_size) > self.available() || pages.len() == 0 {
            return 0;
        }
        let Some(blocks) = self.blocks.as_mut() else { return 0 };
        let chain: Vec<_> = chain(self.sequences[seq].key, tokens, page_size).collect();
        let blocks = blocks.take_found(&chain);
        let loaded = blocks.len() * page_size;
        for (block, tokens) in blocks.into_iter().zip(pages) {
            if let Some(page) = self.take_planned() {
                self.sequences[seq].table_mut().push(page);
                self.plan.loads.push((page, block));
                let row = self.sequences[seq].known;
                self.remember(seq, row, tokens);
            }
        }
        loaded
    }

    /// Notes who writes into pages that several sequences have.
    fn find_writers(&mut self, appends: &[Append<'_>]) {
        let page_size = self.spec.page_size();
        self.plan.writers.clear();
        for (i, append) in appends.iter().enumerate() {
            let sequence = &self.sequences[append.seq];
            let rows = sequence.len() % page_size;
            if rows > 0 {
                let page = sequence.table()[sequence.len() / page_size];
                if self.pages.refcount(page) > 1 {
                    self.plan.writers.push((page, rows, i));
                }
            }
        }
        self.plan.writers.sort_unstable();
    }

    /// Whether append `i` writes into a page in place: its only owner does, or of owners that all write in this step
    /// who has most rows in it, the last of equals. The others copy.
    fn writes_in_place(&self, page: u32, i: usize) -> bool {
        let refcount = self.pages.refcount(page) as usize;
        let writers = &self.plan.writers[self.plan.writers.partition_point(|writer| writer.0 < page)..];
        let writers = &writers[..writers.partition_point(|writer| writer.0 == page)];
        match writers.last() {
            Some(&(_, _, most)) => most == i && refcount == 1 + writers.iter().filter(|writer| writer.2 > i).count(),
            None => refcount == 1,
        }
    }

    /// Before a sequence writes into a page that others have, it gets one of its own with a copy of its rows. Whether
    /// it did.
    fn own_last_page(&mut self, seq: SeqId, i: usize) -> bool {
        let page_size = self.spec.page_size();
        let sequence = &self.sequences[seq];
        let (index, len) = (sequence.len() / page_size, sequence.len() % page_size);
        if len == 0 {
            return false;
        }
        let page = sequence.table()[index];
        if self.writes_in_place(page, i) {
            self.unseal_page(page);
            return false;
        }
        self.own_page(seq, index, len);
        true
    }

    /// Gives a sequence a page of its own, with a copy of the first `len` rows, in the place of one that others have.
    pub(crate) fn own_page(&mut self, seq: SeqId, index: usize, len: usize) {
        let page = self.sequences[seq].table()[index];
        match self.take_planned() {
            Some(own) => {
                self.replace_page(seq, index, own);
                let slot = |page: u32| page as usize * self.spec.page_size();
                let copy = RowCopy { src: slot(page), dst: slot(own), len };
                if len > 0 {
                    self.copy_tokens(copy);
                    self.plan.copies.push(copy);
                }
            }
            None => self.plan.missing += 1,
        }
        self.unshare_page(page);
    }

    /// Takes a page. Once one is missing the step is refused, and takes no more.
    fn take_planned(&mut self) -> Option<u32> {
        if self.plan.missing > 0 { None } else { self.take_page(0) }
    }

    /// Gives a sequence the pages of `kvlen` rows: all of them, or none.
    pub(crate) fn grow(&mut self, seq: SeqId, kvlen: usize) {
        let more = kvlen.div_ceil(self.spec.page_size()) - self.sequences[seq].table().len();
        if self.plan.missing > 0 || more > self.available() {
            self.plan.missing = self.plan.missing.saturating_add(more);
            return;
        }
        for _ in 0..more {
            if let Some(page) = self.take_planned() {
                self.sequences[seq].table_mut().push(page);
            }
        }
    }
}
