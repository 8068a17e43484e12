//! Sequences that leave the cache for the store and come back, and pages that are stored for others.

use std::ops::Range;

use crate::error::Error;
use crate::manager::Manager;
use crate::memory::CacheMemory;
use crate::memory::block::{Block, BlockKey, BlockKind};
use crate::memory::blocks::{self, PendingOffload};
use crate::sequences::SeqId;
use crate::sequences::sequence::{MemoryLocation, Sequence, Swapped, SwappedRows};
use crate::slots::pages::NULL_PAGE;
use crate::spec::Mode;
use crate::state::State;
use crate::step::{OpenStep, Stepped};

/// Slots for a sequence that is swapped in.
struct Placement {
    place: MemoryLocation,
    /// By row, but those that a window has passed: its slot.
    slots: Vec<usize>,
    /// The blocks whose rows are not in the cache: the index, and the rows.
    missing: Vec<(usize, Range<usize>)>,
}

impl Manager {
    /// Lets a sequence leave the cache: its slots are free, and its rows are in the store once the next step or
    /// [`update`](Self::update) has begun. It keeps its id, its positions and its tokens, and can be swapped in or
    /// freed; all else is refused meanwhile. Rows that the store refuses stay in memory of the manager, at most as many
    /// as the cache has, until the store takes them: before that no further sequence is swapped out.
    ///
    /// # Errors
    /// [`Error::TiersFull`], [`Error::NoTiers`]. The sequence stays in the cache then.
    pub fn swap_out(&mut self, seq: SeqId) -> Result<(), Error> {
        self.check_closed()?;
        self.blocks()?;
        self.state.intact(seq)?;
        self.blocks()?.put_refused()?;
        let page_size = self.state.page_size();
        let state = &mut self.state;
        let sequence = &state.sequences[seq];
        let behind = state.queue.len();
        // Of rows that a window has passed there is nothing to keep.
        let slots: Vec<usize> = sequence.slots(page_size).skip(sequence.passed.rows).collect();
        let tokens = state.tokens(sequence).flatten().copied().collect();
        let mut rows = Vec::new();
        for slots in slots.chunks(blocks::rows_of_a_block(&state.spec)) {
            let page = (slots.len() == page_size).then_some((slots[0] / page_size) as u32);
            let sealed = page.and_then(|page| Some((state.prefix.key(page)?, state.prefix.seal_of(page))));
            let block = state.blocks.as_mut().ok_or(Error::NoTiers)?.private_key();
            rows.push(SwappedRows { block, len: slots.len(), sealed });
            state.offloads.push(PendingOffload { behind, key: block, kind: BlockKind::Private, slots: slots.to_vec() });
        }
        let sequence = &mut state.sequences[seq];
        sequence.swapped = Some(Swapped { rows, tokens });
        sequence.version += 1;
        let empty = sequence.place.empty();
        let place = std::mem::replace(&mut sequence.place, empty);
        state.release_place(&place);
        Ok(())
    }

    /// Brings a sequence that is swapped out back into the cache, with every bit. Rows that are still there, in pages
    /// that other sequences have or that stay cached, are not read from the store. What is queued is done first, as by
    /// [`update`](Self::update). Returns how many rows were read; of a sequence that is in the cache, 0.
    ///
    /// # Errors
    /// [`Error::RowsMissing`]: the store lacks rows, or is late; [`Error::OutOfPages`], [`Error::NoSlot`],
    /// [`Error::NoTiers`], [`Error::Memory`]. The sequence stays swapped out then.
    ///
    /// # Panics
    /// If the memory does. The sequence stays swapped out then.
    pub fn swap_in(&mut self, seq: SeqId, memory: &mut (impl CacheMemory + ?Sized)) -> Result<usize, Error> {
        self.check_closed()?;
        self.blocks()?;
        let Some(swapped) = self.state.sequence(seq)?.swapped.clone() else {
            return self.state.intact(seq).map(|_| 0);
        };
        let Sequence { reserve, passed, .. } = self.state.sequences[seq];
        let nulls = passed.rows / self.state.page_size();
        let plan = |manager: &mut Self| manager.plan_load(|state| state.place_swapped(&swapped.rows, reserve, nulls));
        let mut planned = plan(self)?;
        let is_block = |key| swapped.rows.iter().any(|rows| rows.block == key);
        if self.state.offloads.iter().any(|offload| is_block(offload.key)) {
            // There is room, but not all rows are stored yet.
            self.rollback_open_step();
            self.update(memory)?;
            planned = plan(self)?;
        }
        let Placement { place, slots, missing } = planned;
        let loading = OpenStep(self);
        let read = loading.0.read_missing(seq, &swapped.rows, &missing)?;
        loading.0.drain(memory)?;
        let mut rows = 0;
        for (block, (_, range)) in read.iter().zip(&missing) {
            blocks::load(block, &slots[range.clone()], memory)?;
            rows += range.len();
        }
        loading.0.land(seq, place, &slots, &swapped);
        loading.0.commit_load();
        drop(loading);
        self.state.dropped.extend(swapped.rows.iter().map(|rows| rows.block));
        self.delete_dropped();
        self.blocks()?.keep(read);
        Ok(rows)
    }

    /// Says that sequences will be swapped in soon, so that a store which has their rows far away may bring them nearer
    /// meanwhile. Does not wait. What has not been stored yet is stored by the next step or update first.
    ///
    /// # Errors
    /// [`Error::NoTiers`].
    pub fn prefetch(&mut self, seqs: &[SeqId]) -> Result<(), Error> {
        self.blocks()?;
        let state = &self.state;
        let mut keys = Vec::new();
        for &seq in seqs {
            let rows = state.sequence(seq)?.swapped.iter().flat_map(|swapped| &swapped.rows);
            let missing = rows.filter(|rows| state.in_cache(rows).is_none());
            keys.extend(missing.map(|rows| rows.block));
        }
        self.blocks()?.store.prefetch(&keys);
        Ok(())
    }

    /// Has the next step or [`update`](Self::update) store all full pages of known tokens, so that other managers find
    /// prompts that begin with their tokens. Without it a page is stored when it is evicted.
    ///
    /// # Errors
    /// [`Error::NoTiers`].
    pub fn offload_prefix(&mut self) -> Result<(), Error> {
        self.check_closed()?;
        self.blocks()?;
        let state = &mut self.state;
        // The pages of a chain were sealed one after the other: the last is stored first, so that it is the first to
        // go.
        let mut pages: Vec<u32> = state.prefix.sealed().map(|(page, _)| page).collect();
        pages.sort_unstable_by_key(|&page| std::cmp::Reverse(state.prefix.seal_of(page)));
        for page in pages {
            if let Some(key) = state.prefix.key(page) {
                state.offload(page, key);
            }
        }
        Ok(())
    }

    /// The blocks that were written to the store and read from it; nothing without one.
    pub fn store_stats(&self) -> Option<&blocks::StoreStats> {
        self.state.blocks.as_ref().map(|blocks| &blocks.stats)
    }

    /// Deletes the blocks that no sequence names any more.
    pub(crate) fn delete_dropped(&mut self) {
        let dropped = std::mem::take(&mut self.state.dropped);
        if let Some(blocks) = &mut self.state.blocks {
            blocks.delete(dropped);
        }
    }

    /// Reads the blocks that are missing; all of them.
    fn read_missing(
        &mut self,
        seq: SeqId,
        rows: &[SwappedRows],
        missing: &[(usize, Range<usize>)],
    ) -> Result<Vec<Block>, Error> {
        let chain: Vec<(BlockKey, usize)> = missing.iter().map(|&(i, _)| (rows[i].block, rows[i].len)).collect();
        let (read, missed) = self.blocks()?.read(&chain);
        match (missing.get(read.len()), missed) {
            (Some((_, range)), reason) => {
                let rows = rows.iter().map(|rows| rows.len).sum();
                let reason = reason.unwrap_or("absent");
                Err(Error::RowsMissing { seq, missing: rows - range.start, rows, reason })
            }
            (None, _) => Ok(read),
        }
    }

    /// Gives a sequence its place, whose rows are written.
    fn land(&mut self, seq: SeqId, place: MemoryLocation, slots: &[usize], swapped: &Swapped) {
        let page_size = self.state.page_size();
        let state = &mut self.state;
        for (&slot, &token) in slots.iter().zip(&swapped.tokens) {
            state.prefix.slot_tokens[slot] = token;
        }
        let mut row = 0;
        for rows in &swapped.rows {
            let page = (slots[row] / page_size) as u32;
            row += rows.len;
            if let Some((key, _)) = rows.sealed
                && row <= swapped.tokens.len()
                && state.prefix.key(page).is_none()
            {
                state.seal_page(page, key);
            }
        }
        let sequence = &mut state.sequences[seq];
        (sequence.place, sequence.swapped) = (place, None);
        sequence.version += 1;
        state.may_rotate |= sequence.rotated.is_some();
    }
}

impl State {
    /// The page that has rows which were swapped out, if it still does.
    fn in_cache(&self, rows: &SwappedRows) -> Option<u32> {
        rows.sealed.and_then(|(key, seal)| self.prefix.same(key, seal))
    }

    /// Gives rows that are swapped out slots, after `nulls` null pages.
    fn place_swapped(&mut self, rows: &[SwappedRows], reserve: usize, nulls: usize) -> Result<Placement, Error> {
        let (page_size, len) = (self.page_size(), rows.iter().map(|rows| rows.len).sum::<usize>());
        let mut missing = Vec::new();
        if self.spec.mode == Mode::Runs {
            let run = if len == 0 { Some((0, 0)) } else { self.take_run(len, reserve) };
            let (start, reserved) = run.ok_or_else(|| self.no_slot(len))?;
            missing.extend(ranges(rows));
            return Ok(Placement {
                place: MemoryLocation::Run(start..start + reserved),
                slots: (start..start + len).collect(),
                missing,
            });
        }
        // Before any page is taken, which might be one of these.
        let kept: Vec<Option<u32>> = rows.iter().map(|rows| self.in_cache(rows)).collect();
        kept.iter().flatten().for_each(|&page| self.map_page(page));
        let pages_of = |rows: usize| rows.div_ceil(page_size);
        let need = rows.iter().zip(&kept).filter(|(_, kept)| kept.is_none()).map(|(rows, _)| pages_of(rows.len)).sum();
        self.require(need)?;
        let mut cells = self.take_neighbors(need);
        let mut table = vec![NULL_PAGE; nulls];
        table.iter().for_each(|&page| self.share_page(page));
        for ((i, range), kept) in ranges(rows).zip(kept) {
            if let Some(page) = kept {
                table.push(page);
                continue;
            }
            table.extend((0..pages_of(range.len())).map(|_| self.take_next(&mut cells)));
            missing.push((i, range));
        }
        let pages = &table[nulls..];
        let slots = (0..len).map(|row| pages[row / page_size] as usize * page_size + row % page_size).collect();
        Ok(Placement { place: MemoryLocation::Table(table), slots, missing })
    }
}

/// The rows of each block.
fn ranges(rows: &[SwappedRows]) -> impl Iterator<Item = (usize, Range<usize>)> {
    let mut end = 0;
    rows.iter().enumerate().map(move |(i, rows)| {
        end += rows.len;
        (i, end - rows.len..end)
    })
}
