//! All that operations change: sequences, pages, prefix index and the list of cached pages.

use slotmap::SlotMap;

use crate::error::Error;
use crate::lru::Lru;
use crate::pages::Pages;
use crate::prefix::{self, Prefix};
use crate::seq_id::SeqId;
use crate::sequence::Sequence;

/// A page is *free*, *live* (table entries name it) or *cached* (sealed, and no table entry names it).
#[derive(Debug, Clone)]
pub(crate) struct State {
    pub(crate) sequences: SlotMap<SeqId, Sequence>,
    pub(crate) pages: Pages,
    pub(crate) prefix: Prefix,
    pub(crate) cached: Lru,
}

impl State {
    pub(crate) fn new(num_pages: usize, page_size: usize) -> Result<Self, Error> {
        Ok(Self {
            sequences: SlotMap::with_key(),
            pages: Pages::new(num_pages)?,
            prefix: Prefix::new(num_pages, page_size)?,
            cached: Lru::new(num_pages)?,
        })
    }

    pub(crate) fn sequence(&self, seq: SeqId) -> Result<&Sequence, Error> {
        self.sequences.get(seq).ok_or(Error::UnknownSeq { seq })
    }

    /// A new sequence with the rows of another.
    pub(crate) fn fork(&mut self, seq: SeqId) -> Result<SeqId, Error> {
        let fork = self.sequence(seq)?.clone();
        for &page in &fork.table {
            self.pages.share(page);
        }
        Ok(self.sequences.insert(fork))
    }

    /// Removes a sequence.
    pub(crate) fn free(&mut self, seq: SeqId) -> Result<(), Error> {
        let sequence = self.sequences.remove(seq).ok_or(Error::UnknownSeq { seq })?;
        release(&mut self.pages, &self.prefix, &mut self.cached, &sequence.table);
        Ok(())
    }

    /// Removes the rows of a sequence from position `p0` on; gives how many they were.
    pub(crate) fn truncate(&mut self, seq: SeqId, p0: i64, page_size: usize) -> Result<usize, Error> {
        let sequence = self.sequence(seq)?;
        let len = sequence.rows_before(p0);
        let removed = sequence.len - len;
        if removed == 0 {
            return Ok(0);
        }
        let full = sequence.known.min(len) / page_size;
        let key = if full == sequence.known / page_size {
            sequence.key
        } else {
            self.tokens(sequence, page_size).take(full).fold(sequence.root, prefix::child)
        };
        let Some(sequence) = self.sequences.get_mut(seq) else {
            return Err(Error::UnknownSeq { seq });
        };
        let pages = &sequence.table[len.div_ceil(page_size)..];
        release(&mut self.pages, &self.prefix, &mut self.cached, pages);
        sequence.truncate(len, page_size, key);
        Ok(removed)
    }

    /// Empties all sequences but one.
    pub(crate) fn keep(&mut self, seq: SeqId, page_size: usize) -> Result<(), Error> {
        self.sequence(seq)?;
        for (id, sequence) in &mut self.sequences {
            if id != seq {
                release(&mut self.pages, &self.prefix, &mut self.cached, &sequence.table);
                sequence.truncate(0, page_size, sequence.root);
            }
        }
        Ok(())
    }

    /// The known tokens of a sequence, page by page; the last ones may be fewer than a page.
    pub(crate) fn tokens<'a>(&'a self, sequence: &'a Sequence, page_size: usize) -> impl Iterator<Item = &'a [u32]> {
        let tokens = move |(i, &page): (usize, &u32)| {
            let known = sequence.known.saturating_sub(i * page_size).min(page_size);
            &self.prefix.tokens(page)[..known]
        };
        sequence.table.iter().enumerate().map(tokens)
    }
}

/// Frees or caches the pages of a table that no other entry names. The last page goes first, so that it is evicted
/// before those that it is of no use without.
fn release(pages: &mut Pages, prefix: &Prefix, cached: &mut Lru, table: &[u32]) {
    for &page in table.iter().rev() {
        if pages.unshare(page) > 0 {
            continue;
        }
        match prefix.key(page) {
            Some(_) => cached.push(page),
            None => pages.free(page),
        }
    }
}

/// Equal in all that later operations depend on.
impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        let page_size = |state: &Self| state.prefix.tokens(0).len();
        let tokens = |state: &Self, sequence: &Sequence| {
            state.tokens(sequence, page_size(state)).flatten().copied().collect::<Vec<_>>()
        };
        self.pages == other.pages
            && self.prefix == other.prefix
            && self.cached.iter().eq(other.cached.iter())
            && self.sequences.iter().eq(other.sequences.iter())
            && self.sequences.values().zip(other.sequences.values()).all(|(a, b)| tokens(self, a) == tokens(other, b))
    }
}
