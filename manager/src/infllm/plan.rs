//! Plans a step: the pages, copies, rotations and blocks that it needs, on the manager's plan and journal.
//!
//! ```text
//! check all appends
//! for each append:
//!     where positions would pass n_ctx, move the rows after the blocks back; copy pages that others have first
//!     give wanted blocks that are not resident the slots of blocks that are not wanted
//!     give the sequence pages of its own for these slots
//! place the new rows, as in a step of the manager
//! fetch the blocks of the slots from the store
//! ```
//!
//! The journal rolls back a plan that is refused, also for want of a page.

use std::collections::BTreeSet;

use ndarray::{Array2, ArrayView2, Axis, Slice};

use super::config::FarPositions;
use super::residency::{Load, Residency};
use super::sequence::{Sequence, Setup};
use crate::error::Error;
use crate::memory::block::{Block, BlockError, BlockKey};
use crate::memory::store::{BlockStore, StoreError};
use crate::sequences::SeqId;
use crate::spec::KeyForm;
use crate::state::State;
use crate::step::append::Append;
use crate::step::batch::Batch;

/// What is wrong with a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// The store has none of its key.
    #[error("the store does not have it")]
    Missing,
    /// The store has other bytes.
    #[error(transparent)]
    Bad(#[from] BlockError),
}

/// A sequence of a step.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) seq: SeqId,
    /// The index of its append.
    pub(crate) append: usize,
    /// New tokens.
    pub(crate) n: usize,
    /// By selection: the blocks that it sees, in ascending order, equally many in each.
    pub(crate) blocks: Vec<Vec<u32>>,
}

/// The entries and tensors of an open step.
#[derive(Debug)]
pub(crate) struct StepData {
    pub(crate) entries: Vec<Entry>,
    pub(crate) batch: Batch,
    /// By selection: the first slots of the pages of each entry.
    pub(crate) cachestarts: Vec<Array2<i64>>,
    pub(crate) loads: usize,
    /// By layer: the attention mass of all keys, shape (heads of queries, keys).
    pub(crate) observed: Vec<Option<Array2<f32>>>,
}

/// The changes of a sequence before a step runs.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) residency: Vec<Residency>,
    pub(crate) shifts: Vec<usize>,
    /// Blocks that get slots, with their selection.
    pub(crate) loads: Vec<(usize, Load)>,
}

impl Setup {
    /// The append of `n` tokens to a sequence, which sees blocks beside its rows.
    pub(crate) fn append(&self, sequence: &Sequence, n: usize) -> Append<'static> {
        let seen = sequence.blocks.len().min(self.config.topk) * self.config.block;
        Append::count(sequence.rows, n).seeing(seen)
    }

    /// Plans one entry, but for its new rows.
    pub(crate) fn plan(&self, state: &mut State, sequence: &Sequence, entry: &Entry) -> Result<Change, Error> {
        let shifts = self.shift(state, sequence, entry)?;
        let mut residency = sequence.residency.clone();
        let mut loads = Vec::new();
        for (group, (residency, blocks)) in residency.iter_mut().zip(&entry.blocks).enumerate() {
            loads.extend(residency.assign(blocks).into_iter().map(|load| (group, load)));
        }
        let slots: BTreeSet<usize> = loads.iter().map(|(_, load)| load.slot).collect();
        self.own_slots(state, sequence.resident, &slots);
        Ok(Change { residency, shifts, loads })
    }

    /// Moves the rows after the blocks back, right after the positions of blocks, if the new tokens would not be
    /// below `n_ctx` otherwise. Returns the sequence's shifts.
    fn shift(&self, state: &mut State, sequence: &Sequence, entry: &Entry) -> Result<Vec<usize>, Error> {
        let (rows, mut shifts) = (&state.sequences[sequence.rows], sequence.shifts.clone());
        let FarPositions::FarFixed { n_ctx } = self.config.positions else { return Ok(shifts) };
        let (len, next) = (rows.len(), rows.positions.next() as usize);
        if next + entry.n <= n_ctx {
            return Ok(shifts);
        }
        let (init, page_size) = (self.config.init, self.page_size());
        let place = init + self.config.block;
        let back = if len > init { (rows.positions.at(init) as usize).saturating_sub(place) } else { 0 };
        if next - back + entry.n > n_ctx {
            let (append, first, max) = (Some(entry.append), (next - back) as i64, n_ctx as i64 - 1);
            return Err(Error::PositionOverflow { append, first, n: entry.n, max });
        }
        if self.spec.key_form == KeyForm::Roped {
            // The oldest of the rows was moved by all of these, and will be rotated once more when its block forms.
            shifts.retain(|&tokens| tokens > self.rest_start(sequence.n));
            shifts.push(sequence.n);
            let count = shifts.len() as u32 + 1;
            if let Some(limit) = self.spec.shift_limit().filter(|&limit| count > limit) {
                return Err(Error::ShiftLimit { shifts: count, limit });
            }
            for index in self.pages(init)..len.div_ceil(page_size) {
                own_page(state, sequence.rows, index, page_size.min(len - index * page_size));
            }
        }
        // A step that lacks pages is refused in the end.
        if state.plan.missing == 0 {
            state.map_positions(sequence.rows, init..len, true, |position| position - back as i64)?;
        }
        Ok(shifts)
    }

    /// Gives a sequence of resident blocks pages of its own for slots that are to be written.
    fn own_slots(&self, state: &mut State, resident: SeqId, slots: &BTreeSet<usize>) {
        let (block, pages) = (self.config.block, self.pages(self.config.block));
        // Other layers have other blocks in the slot.
        let kept = if self.config.per_layer { self.page_size() } else { 0 };
        let len = state.sequences[resident].len();
        for slot in slots.range(..len / block) {
            (slot * pages..(slot + 1) * pages).for_each(|index| own_page(state, resident, index, kept));
        }
        // Slots are used in order.
        let more = slots.last().map_or(0, |last| ((last + 1) * block).saturating_sub(len));
        state.note_append(resident);
        state.grow(resident, len + more);
        state.sequences[resident].push_rows(more, len as i64);
    }

    /// A block of a sequence from the store.
    pub(crate) fn get(&self, store: &dyn BlockStore, seq: SeqId, block: u32, key: &BlockKey) -> Result<Block, Error> {
        let lost = |why| Error::BlockLost { seq, block, why };
        let got = match store.get(key) {
            Err(StoreError::Bad(error)) => return Err(lost(error.into())),
            got => got?.ok_or(lost(Lost::Missing))?,
        };
        got.check(key, self.config.block, self.group_row_len()).map_err(|error| lost(error.into()))?;
        Ok(got)
    }

    /// An entry's pages in a selection: first tokens, blocks, then the tokens after them.
    fn table(&self, state: &State, sequence: &Sequence, entry: &Entry, group: usize) -> Vec<u32> {
        let table = state.sequences[sequence.rows].table();
        let (init, rest) = table.split_at(self.pages(self.config.init).min(table.len()));
        let (resident, pages) = (state.sequences[sequence.resident].table(), self.pages(self.config.block));
        let slots = entry.blocks[group].iter().filter_map(|&block| sequence.residency[group].slot(block));
        let blocks = slots.flat_map(|slot| &resident[slot * pages..(slot + 1) * pages]);
        init.iter().chain(blocks).chain(rest).copied().collect()
    }
}

/// Gives a sequence a page of its own in the place of one that others have, with its first `len` rows.
fn own_page(state: &mut State, seq: SeqId, index: usize, len: usize) {
    let page = state.sequences[seq].table()[index];
    if state.pages.refcount(page) > 1 {
        state.own_page(seq, index, len);
    }
}

impl StepData {
    /// The step of these entries, without its tensors.
    pub(crate) fn new(setup: &Setup, entries: Vec<Entry>, loads: usize) -> Self {
        let observed = vec![None; setup.spec.geometry.num_layer];
        Self { entries, batch: Batch::default(), cachestarts: Vec::new(), loads, observed }
    }

    /// Makes the index tensors, once the sequences of the entries have their blocks in the cache and their new rows.
    pub(crate) fn fill<'a>(
        &mut self,
        setup: &Setup,
        state: &State,
        sequence: impl Fn(SeqId) -> &'a Sequence,
    ) -> Result<(), Error> {
        self.batch.clear();
        for entry in &self.entries {
            let rows = &state.sequences[sequence(entry.seq).rows];
            let next = rows.positions.next();
            self.batch.push_tokens(entry.append, next - entry.n as i64..next);
            self.batch.push_entry(rows.len() - entry.n + entry.blocks[0].len() * setup.config.block, entry.n);
        }
        for group in 0..setup.groups() {
            let table = |entry: &Entry| setup.table(state, sequence(entry.seq), entry, group);
            let tables: Vec<_> = self.entries.iter().map(table).collect();
            let widest = tables.iter().map(Vec::len).max().unwrap_or(0);
            let shape = (tables.len(), setup.spec.max_pages.unwrap_or(widest));
            let len = shape.0.saturating_mul(shape.1);
            let mut starts = Vec::new();
            starts.try_reserve_exact(len).map_err(|_| Error::OutOfMemory { len, size: size_of::<i64>() })?;
            for table in tables {
                let end = starts.len() + shape.1;
                starts.extend(table.into_iter().map(|page| i64::from(page) * setup.page_size() as i64));
                starts.resize(end, -1);
            }
            let starts = Array2::from_shape_vec(shape, starts).unwrap_or_else(|_| unreachable!("rows of that width"));
            self.cachestarts.push(starts);
        }
        Ok(())
    }

    /// By entry and layer: the attention mass of the entry's keys; of no layer where it is not `needed`.
    pub(crate) fn masses(&self, needed: bool) -> Result<Vec<Vec<ArrayView2<'_, f32>>>, Error> {
        let layers = if needed && !self.entries.is_empty() { &self.observed[..] } else { &[] };
        let all = (0..).zip(layers).map(|(layer, mass)| mass.as_ref().ok_or(Error::NotObserved { layer }));
        let all = all.collect::<Result<Vec<_>, _>>()?;
        let of_entry = |keys: &[i64]| {
            let keys = Slice::from(keys[0] as usize..keys[1] as usize);
            all.iter().map(|mass| mass.slice_axis(Axis(1), keys)).collect()
        };
        Ok(self.batch.kvstarts.windows(2).map(of_entry).collect())
    }
}
