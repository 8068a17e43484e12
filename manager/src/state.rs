//! All that operations change: sequences, pages, prefix index, the list of cached pages, and what a memory has to do.

use std::sync::Arc;

use kvcache_kernels::{Rotation, RowCopy};
use slotmap::SlotMap;

use crate::bits::Bits;
use crate::cells;
use crate::error::Error;
use crate::lru::Lru;
use crate::pages::Pages;
use crate::prefix::{self, Prefix};
use crate::seq_id::SeqId;
use crate::sequence::{Place, Sequence};
use crate::spec::{CacheSpec, Mode};

/// What a memory is at in an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Copies,
    Rotations,
}

/// A page is *free*, *live* (table entries name it) or *cached* (sealed, and no table entry names it). In the mode
/// `cells` a page is a cell; in the mode `runs` cells are free or reserved for a run.
#[derive(Debug, Clone)]
pub(crate) struct State {
    pub(crate) sequences: SlotMap<SeqId, Sequence>,
    /// Sequences that were ever created.
    created: u64,
    pub(crate) pages: Pages,
    pub(crate) prefix: Prefix,
    pub(crate) cached: Lru,
    /// Copies that a memory has still to make.
    pub(crate) queue: Vec<RowCopy>,
    /// Whether an edit has left keys to rotate since an update has found none: spares steps the search for them.
    pub(crate) may_rotate: bool,
    /// The keys that the next update rotates.
    pub(crate) rotations: Vec<Rotation>,
    /// What a memory is at, or was when it failed.
    pub(crate) phase: Option<Phase>,
}

/// The slots that are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Used {
    pub(crate) count: usize,
    /// The slot behind the last one.
    pub(crate) end: usize,
}

impl State {
    pub(crate) fn new(spec: &CacheSpec) -> Result<Self, Error> {
        let num_pages = spec.num_pages();
        let pages = match spec.mode() {
            Mode::Paged { .. } => Pages::stack(num_pages)?,
            Mode::Runs | Mode::Cells => Pages::cells(num_pages)?,
        };
        Ok(Self {
            sequences: SlotMap::with_key(),
            created: 0,
            pages,
            prefix: Prefix::new(num_pages, spec.page_size())?,
            cached: Lru::new(num_pages)?,
            queue: Vec::new(),
            may_rotate: false,
            rotations: Vec::new(),
            phase: None,
        })
    }

    pub(crate) fn sequence(&self, seq: SeqId) -> Result<&Sequence, Error> {
        self.sequences.get(seq).ok_or(Error::UnknownSeq { seq })
    }

    /// A sequence that may be used: one that no memory has damaged.
    pub(crate) fn intact(&self, seq: SeqId) -> Result<&Sequence, Error> {
        let sequence = self.sequence(seq)?;
        if sequence.lost { Err(Error::Lost { seq }) } else { Ok(sequence) }
    }

    /// The number of a sequence that is to be created.
    pub(crate) fn next_created(&mut self) -> u64 {
        self.created += 1;
        self.created
    }

    /// A sequence that is no sequence of the state yet.
    pub(crate) fn new_sequence(&mut self, spec: &CacheSpec, salt: Arc<[u8]>, reserve: usize) -> Sequence {
        let place = match spec.mode() {
            Mode::Runs => Place::Run(0..0),
            Mode::Paged { .. } | Mode::Cells => Place::Table(Vec::new()),
        };
        let root = prefix::root(spec.fingerprint(), &salt);
        Sequence::new(place, salt, root, reserve, self.next_created())
    }

    /// Removes a sequence.
    pub(crate) fn free(&mut self, seq: SeqId) -> Result<(), Error> {
        let sequence = self.sequences.remove(seq).ok_or(Error::UnknownSeq { seq })?;
        self.release_place(&sequence.place);
        Ok(())
    }

    /// Frees or caches what no other sequence has of a place. The last page goes first, so that it is evicted before
    /// those that it is of no use without.
    fn release_place(&mut self, place: &Place) {
        match place {
            Place::Table(table) => {
                for &page in table.iter().rev() {
                    if self.pages.unshare(page) == 0 {
                        self.release(page);
                    }
                }
            }
            Place::Run(reserved) => self.pages.free_cells(reserved.clone()),
        }
    }

    /// Frees or caches a page that has lost its last table entry.
    pub(crate) fn release(&mut self, page: u32) {
        match self.prefix.key(page) {
            Some(_) => self.cached.push(page),
            None => self.pages.free(page),
        }
    }

    /// Empties all sequences but one.
    pub(crate) fn keep(&mut self, seq: SeqId) {
        let others: Vec<SeqId> = self.sequences.keys().filter(|&id| id != seq).collect();
        for other in others {
            let sequence = &mut self.sequences[other];
            let mut emptied = sequence.sibling(sequence.created);
            (emptied.lost, emptied.version) = (sequence.lost, sequence.version + 1);
            let sequence = std::mem::replace(sequence, emptied);
            self.release_place(&sequence.place);
        }
    }

    /// The number of cells that a step sees.
    pub(crate) fn n_kv(&self, spec: &CacheSpec) -> usize {
        cells::n_kv(self.used_slots(spec).end, spec.num_pages() * spec.page_size(), spec.pad())
    }

    /// How many slots are used, and the one behind the last of them.
    pub(crate) fn used_slots(&self, spec: &CacheSpec) -> Used {
        match self.pages.busy() {
            Some(busy) => Used { count: busy.count(), end: busy.end() },
            None => {
                let live = |&page: &u32| self.pages.refcount(page) > 0;
                let end = (0..self.pages.len() as u32).rev().find(live).map_or(0, |page| page as usize + 1);
                let count = self.pages.len() - self.pages.num_free() - self.cached.len();
                Used { count: count * spec.page_size(), end: end * spec.page_size() }
            }
        }
    }

    /// The part of the slots up to the last used one that is free.
    pub(crate) fn fragmentation(&self, spec: &CacheSpec) -> f64 {
        cells::fragmentation(self.n_kv(spec), self.used_slots(spec).count)
    }

    /// Why so many neighboring cells cannot be had.
    pub(crate) fn no_slot(&self, need: usize) -> Error {
        let largest = self.pages.busy().map_or(0, Bits::largest_free_run);
        Error::NoSlot { need, largest, free: self.pages.num_free() }
    }

    /// The known tokens of a sequence, page by page; the last ones may be fewer than a page.
    pub(crate) fn tokens<'a>(&'a self, sequence: &'a Sequence, page_size: usize) -> impl Iterator<Item = &'a [u32]> {
        let segments = sequence.segments(0..sequence.known, page_size);
        segments.flat_map(move |segment| {
            self.prefix.slot_tokens()[segment.slot..segment.slot + segment.len].chunks(page_size)
        })
    }

    /// The prefix key of the full pages of known rows among a sequence's first `rows`.
    pub(crate) fn prefix_key(&self, spec: &CacheSpec, sequence: &Sequence, rows: usize) -> u128 {
        let page_size = spec.page_size();
        let full = sequence.known.min(rows) / page_size;
        if !spec.prefix_sharing() {
            sequence.root
        } else if full == sequence.known / page_size {
            sequence.key
        } else if let Some(key) = full.checked_sub(1).and_then(|last| self.prefix.key(sequence.table()[last])) {
            // A sealed page of known tokens has the key of all before it.
            key
        } else {
            self.tokens(sequence, page_size).take(full).fold(sequence.root, prefix::child)
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
            && self.queue == other.queue
            && self.sequences.iter().eq(other.sequences.iter())
            && self.sequences.values().zip(other.sequences.values()).all(|(a, b)| tokens(self, a) == tokens(other, b))
    }
}
