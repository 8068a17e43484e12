//! The state that operations change: sequences, pages, prefix index, cached pages, and queued work of a memory.
//!
//! A step or an edit [begins](State::begin), notes every change in the journal, and ends by [`commit`](State::commit)
//! or [`rollback`](State::rollback). The methods that change the state are in `step::plan` and `sequences::edit`.

use std::collections::HashSet;
use std::sync::Arc;

use kvcache_kernels::{Rotation, RowCopy};
use slotmap::SlotMap;

use crate::error::Error;
use crate::memory::block::{BlockKey, BlockKind};
use crate::memory::blocks::{self, Blocks, PendingOffload};
use crate::sequences::SeqId;
use crate::sequences::sequence::{MemoryLocation, Passed, Sequence};
use crate::slots::bits::Bits;
use crate::slots::cells;
use crate::slots::lru::Lru;
use crate::slots::pages::{NULL_PAGE, Pages};
use crate::slots::prefix::Prefix;
use crate::spec::{CacheSpec, Mode};
use crate::step::journal::Journal;
use crate::step::plan::Plan;

/// The phase of an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Running the queue: the first `n` copies are done.
    Copies(usize),
    Rotations,
}

/// The stage of an open step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Open {
    Planned,
    Applied,
}

/// A page is *free*, *live* (table entries name it) or *cached* (sealed, and no table entry names it). In the mode
/// `cells` a page is a cell; in the mode `runs` cells are free or reserved for a run.
#[derive(Debug, Clone)]
pub(crate) struct State {
    pub(crate) spec: CacheSpec,
    /// What undoes the open step or edit.
    pub(crate) journal: Journal,
    /// The plan of the open step, or of the last one.
    pub(crate) plan: Plan,
    pub(crate) blocks: Option<Blocks>,
    pub(crate) sequences: SlotMap<SeqId, Sequence>,
    created: u64,
    pub(crate) pages: Pages,
    pub(crate) prefix: Prefix,
    pub(crate) cached: Lru,
    /// Copies that a memory has still to make.
    pub(crate) queue: Vec<RowCopy>,
    /// Rows to store as blocks, each before the copies that may overwrite them.
    pub(crate) offloads: Vec<PendingOffload>,
    pub(crate) dropped: Vec<BlockKey>,
    /// Digest of the specification: with a salt it gives the parent key of every first page.
    seed: BlockKey,
    /// An edit may have left keys to rotate since an update has found none: spares steps the search for them.
    pub(crate) may_rotate: bool,
    /// The keys that the next update rotates.
    pub(crate) rotations: Vec<Rotation>,
    /// The phase that a memory is in, or was in when it failed.
    pub(crate) phase: Option<Phase>,
}

/// The pages that a prompt begins with.
pub(crate) struct FoundPrefix {
    /// Their keys, and the sealed pages; none of rows that a window has passed.
    pub(crate) pages: Vec<(BlockKey, Option<u32>)>,
    pub(crate) passed: Passed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Used {
    pub(crate) count: usize,
    /// The slot after the last one.
    pub(crate) end: usize,
}

impl State {
    pub(crate) fn new(spec: CacheSpec, blocks: Option<Blocks>) -> Result<Self, Error> {
        let num_pages = spec.num_pages();
        let mut pages = match spec.mode {
            Mode::Paged { .. } => Pages::stack(num_pages)?,
            Mode::Runs | Mode::Cells => Pages::cells(num_pages)?,
        };
        if spec.keep_rows {
            // For good: the first of all pages, whose reference count then never falls to 0.
            pages.take(0);
            pages.share(NULL_PAGE);
        }
        Ok(Self {
            journal: Journal::default(),
            plan: Plan::default(),
            blocks,
            sequences: SlotMap::with_key(),
            created: 0,
            pages,
            prefix: Prefix::new(num_pages, spec.page_size())?,
            cached: Lru::new(num_pages)?,
            queue: Vec::new(),
            offloads: Vec::new(),
            dropped: Vec::new(),
            seed: blocks::seed(&spec),
            spec,
            may_rotate: false,
            rotations: Vec::new(),
            phase: None,
        })
    }

    pub(crate) fn page_size(&self) -> usize {
        self.spec.page_size()
    }

    /// Pages, or cells, that can be taken: free and cached ones.
    pub(crate) fn available(&self) -> usize {
        self.pages.num_free() + self.cached.len()
    }

    pub(crate) fn sequence(&self, seq: SeqId) -> Result<&Sequence, Error> {
        self.sequences.get(seq).ok_or(Error::UnknownSeq { seq })
    }

    /// A sequence that may be used: one that no memory has damaged, and that is in the cache.
    pub(crate) fn intact(&self, seq: SeqId) -> Result<&Sequence, Error> {
        let sequence = self.sequence(seq)?;
        match sequence {
            Sequence { lost: true, .. } => Err(Error::Lost { seq }),
            Sequence { swapped: Some(_), .. } => Err(Error::Swapped { seq }),
            _ => Ok(sequence),
        }
    }

    pub(crate) fn next_created(&mut self) -> u64 {
        self.created += 1;
        self.created
    }

    /// A sequence that is no sequence of the state yet.
    pub(crate) fn new_sequence(&mut self, salt: Arc<[u8]>, reserve: usize) -> Sequence {
        let place = match self.spec.mode {
            Mode::Runs => MemoryLocation::Run(0..0),
            Mode::Paged { .. } | Mode::Cells => MemoryLocation::Table(Vec::new()),
        };
        let root = self.root(&salt);
        Sequence::new(place, salt, root, reserve, self.next_created())
    }

    /// The key of no tokens.
    pub(crate) fn root(&self, salt: &[u8]) -> BlockKey {
        // Of one length: no salt is a seed, a salt and the tokens of a page.
        BlockKey::digest([self.seed.as_bytes(), BlockKey::digest([salt]).as_bytes()].map(|part| &part[..]))
    }

    /// Notes a sealed page that is evicted: where there is a store, its rows go there before anything overwrites them.
    pub(crate) fn offload(&mut self, page: u32, key: BlockKey) {
        if self.blocks.is_some() {
            let page_size = self.prefix.tokens(page).len();
            let slots = page as usize * page_size..(page as usize + 1) * page_size;
            let behind = self.queue.len();
            self.offloads.push(PendingOffload { behind, key, kind: BlockKind::Prefix, slots: slots.collect() });
        }
    }

    /// Undoes the latest [`offload`](Self::offload), unless its rows are stored by now.
    pub(crate) fn undo_offload(&mut self, key: BlockKey) {
        if self.offloads.last().is_some_and(|offload| offload.key == key) {
            self.offloads.pop();
        }
    }

    /// Lets go of the blocks of a sequence that is swapped out, if it is.
    pub(crate) fn drop_blocks(&mut self, sequence: &Sequence) {
        let rows = sequence.swapped.iter().flat_map(|swapped| &swapped.rows);
        let blocks: HashSet<BlockKey> = rows.map(|rows| rows.block).collect();
        if !blocks.is_empty() {
            self.offloads.retain(|offload| !blocks.contains(&offload.key));
            self.dropped.extend(blocks);
        }
    }

    pub(crate) fn free(&mut self, seq: SeqId) -> Result<(), Error> {
        let sequence = self.sequences.remove(seq).ok_or(Error::UnknownSeq { seq })?;
        self.release_place(&sequence.place);
        self.drop_blocks(&sequence);
        Ok(())
    }

    /// Frees or caches what no other sequence has of a place. The last page goes first, so that it is evicted before
    /// those that it is of no use without.
    pub(crate) fn release_place(&mut self, place: &MemoryLocation) {
        match place {
            MemoryLocation::Table(table) => {
                for &page in table.iter().rev() {
                    if self.pages.unshare(page) == 0 {
                        self.release(page);
                    }
                }
            }
            MemoryLocation::Run(reserved) => self.pages.free_cells(reserved.clone()),
        }
    }

    /// Frees or caches a page that has lost its last table entry.
    pub(crate) fn release(&mut self, page: u32) {
        match self.prefix.key(page) {
            Some(_) => self.cached.push(page),
            None => self.pages.free(page),
        }
    }

    pub(crate) fn keep(&mut self, seq: SeqId) {
        let others: Vec<SeqId> = self.sequences.keys().filter(|&id| id != seq).collect();
        for other in others {
            let sequence = &mut self.sequences[other];
            let mut emptied = sequence.sibling(sequence.created);
            (emptied.lost, emptied.version) = (sequence.lost, sequence.version + 1);
            emptied.removals = sequence.removals + 1;
            let sequence = std::mem::replace(sequence, emptied);
            self.release_place(&sequence.place);
            self.drop_blocks(&sequence);
        }
    }

    pub(crate) fn n_kv(&self) -> usize {
        cells::n_kv(self.used_slots().end, self.spec.num_pages() * self.spec.page_size(), self.spec.pad)
    }

    /// The number of used slots, and the slot after the last of them.
    pub(crate) fn used_slots(&self) -> Used {
        match self.pages.busy() {
            Some(busy) => Used { count: busy.count(), end: busy.end() },
            None => {
                let live = |&page: &u32| self.pages.refcount(page) > 0;
                let end = (0..self.pages.len() as u32).rev().find(live).map_or(0, |page| page as usize + 1);
                let nulls = usize::from(self.spec.keep_rows);
                let count = self.pages.len() - self.pages.num_free() - self.cached.len() - nulls;
                Used { count: count * self.spec.page_size(), end: end * self.spec.page_size() }
            }
        }
    }

    /// The part of the slots up to the last used one that is free.
    pub(crate) fn fragmentation(&self) -> f64 {
        cells::fragmentation(self.n_kv(), self.used_slots().count)
    }

    /// Why that many neighboring cells cannot be had.
    pub(crate) fn no_slot(&self, need: usize) -> Error {
        let largest = self.pages.busy().map_or(0, Bits::largest_free_run);
        Error::NoSlot { need, largest, free: self.pages.num_free() }
    }

    /// The known tokens of a sequence after the rows that a window has passed, page by page; the last ones may be fewer
    /// than a page.
    pub(crate) fn tokens<'a>(&'a self, sequence: &'a Sequence) -> impl Iterator<Item = &'a [u32]> {
        let page_size = self.page_size();
        let known = if sequence.swapped.is_some() { 0 } else { sequence.known };
        let segments = sequence.segments(sequence.passed.rows.min(known)..known, page_size);
        segments.flat_map(move |segment| {
            self.prefix.slot_tokens[segment.slot..segment.slot + segment.len].chunks(page_size)
        })
    }

    /// The longest sealed chain after `root` that these tokens begin with; where a window keeps rows, one that has all
    /// pages of its last tokens, which a following token sees.
    pub(crate) fn find_prefix(&self, root: BlockKey, tokens: &[u32]) -> FoundPrefix {
        let page_size = self.spec.page_size();
        let window = self.spec.window.filter(|_| self.spec.keep_rows);
        let (mut key, mut pages) = (root, Vec::new());
        for chunk in tokens.chunks_exact(page_size) {
            key = key.followed_by(chunk);
            let page = self.prefix.find(key, chunk);
            if page.is_none() && window.is_none() {
                break;
            }
            pages.push((key, page));
        }
        let Some(window) = window else {
            return FoundPrefix { pages, passed: Passed { rows: 0, key: root } };
        };
        // The first visible one of this many pages.
        let first = |count: usize| (count * page_size + 1).saturating_sub(window) / page_size;
        let mut at = pages.len();
        while at > first(pages.len()) {
            at -= 1;
            if pages[at].1.is_none() {
                pages.truncate(at);
            }
        }
        let passed = first(pages.len());
        pages[..passed].iter_mut().for_each(|page| page.1 = None);
        let key = passed.checked_sub(1).map_or(root, |last| pages[last].0);
        FoundPrefix { pages, passed: Passed { rows: passed * page_size, key } }
    }

    /// The prefix key of the full pages of known rows among a sequence's first `rows`.
    pub(crate) fn prefix_key(&self, sequence: &Sequence, rows: usize) -> BlockKey {
        let page_size = self.spec.page_size();
        let full = sequence.known.min(rows) / page_size;
        if !self.spec.prefix_sharing {
            sequence.root
        } else if full == sequence.known / page_size {
            sequence.key
        } else if let Some(key) = full.checked_sub(1).and_then(|last| self.prefix.key(sequence.table()[last])) {
            // A sealed page of known tokens has the key of all before it.
            key
        } else {
            // None of the rows that a window has passed goes alone.
            let (passed, key) =
                if full == 0 { (0, sequence.root) } else { (sequence.passed.rows, sequence.passed.key) };
            let tokens = self.tokens(sequence).take(full - passed / page_size);
            tokens.fold(key, |key, tokens| key.followed_by(tokens))
        }
    }
}

/// Equal in all that later operations depend on.
impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        let tokens = |state: &Self, sequence: &Sequence| state.tokens(sequence).flatten().copied().collect::<Vec<_>>();
        self.spec == other.spec
            && self.pages == other.pages
            && self.prefix == other.prefix
            && self.cached.iter().eq(other.cached.iter())
            && (&self.queue, &self.offloads) == (&other.queue, &other.offloads)
            && self.sequences.iter().eq(other.sequences.iter())
            && self.sequences.values().zip(other.sequences.values()).all(|(a, b)| tokens(self, a) == tokens(other, b))
    }
}
