//! The index tensors of a step, in buffers that every step uses again.

use ndarray::{ArrayD, IxDyn};

use crate::error::Error;
use crate::sequences::SeqId;
use crate::spec::Mode;
use crate::state::State;
use crate::step::append::Append;
use crate::step::batch::Batch;

#[derive(Debug, Clone, Default)]
pub(crate) struct Tensors {
    pub(crate) batch: Batch,
    pub(crate) cachestarts: ArrayD<i64>,
    pub(crate) token_ids: Vec<i64>,
    pub(crate) cached: Vec<i64>,
    /// By row of `cachestarts`: the pages that it names.
    rows: Vec<Row>,
}

/// The contents of a row of `cachestarts`: the first pages of a sequence's table, as long as the table is of this
/// version.
#[derive(Debug, Clone, Copy, Default)]
struct Row {
    seq: SeqId,
    version: u64,
    pages: usize,
}

impl Tensors {
    /// Makes the tensors of a step. They are not valid after an error.
    pub(crate) fn fill(&mut self, state: &State, appends: &[Append<'_>]) -> Result<(), Error> {
        let entries = &state.plan.entries;
        self.batch.clear();
        self.token_ids.clear();
        self.cached.clear();
        for entry in entries {
            self.cached.push(entry.cached as i64);
            self.batch.push_tokens(entry.append, entry.position..entry.position + entry.n as i64);
            match appends[entry.append].known() {
                Some(tokens) => self.token_ids.extend(tokens[entry.cached..].iter().map(|&token| i64::from(token))),
                None => self.token_ids.resize(self.token_ids.len() + entry.n, -1),
            }
        }
        match state.spec.mode {
            Mode::Paged { .. } => {
                self.reshape_cachestarts(state)?;
                self.fill_cachestarts(state);
            }
            Mode::Runs => {
                self.set_cachestarts(entries.iter().map(|entry| state.sequences[entry.seq].slot(0, 1)));
            }
            Mode::Cells => {
                self.fill_cells(state);
                return Ok(());
            }
        }
        for entry in entries {
            self.batch.push_entry(entry.start, entry.n);
        }
        Ok(())
    }

    /// Two entries: one that writes all new rows, and the view, all cells up to the last busy one. Without a new
    /// row there is nothing to see.
    fn fill_cells(&mut self, state: &State) {
        let slot = state.plan.entries.first().map(|first| state.sequences[first.seq].slot(first.start, 1));
        self.set_cachestarts(slot.into_iter().flat_map(|slot| [slot, 0]));
        if slot.is_some() {
            self.batch.push_entry(0, self.batch.positions.len());
            self.batch.push_entry(state.n_kv(), 0);
        }
    }

    fn set_cachestarts(&mut self, slots: impl Iterator<Item = usize>) {
        let mut memory = std::mem::take(&mut self.cachestarts).into_raw_vec_and_offset().0;
        memory.clear();
        memory.extend(slots.map(|slot| slot as i64));
        self.cachestarts = ArrayD::from_shape_vec(IxDyn(&[memory.len()]), memory)
            .unwrap_or_else(|_| unreachable!("the shape is the length"));
    }

    /// Gives `cachestarts` the shape of a step. What a fixed width makes of many entries may be more than there is
    /// memory for.
    fn reshape_cachestarts(&mut self, state: &State) -> Result<(), Error> {
        let entries = &state.plan.entries;
        let widest = || entries.iter().map(|entry| state.sequences[entry.seq].table().len()).max().unwrap_or(0);
        let shape = [entries.len(), state.spec.max_pages.unwrap_or_else(widest)];
        if self.cachestarts.shape() == shape {
            return Ok(());
        }
        // A product that overflows is more than any allocation, too.
        let len = shape[0].saturating_mul(shape[1]);
        self.rows.clear();
        let mut memory = std::mem::take(&mut self.cachestarts).into_raw_vec_and_offset().0;
        memory.clear();
        memory.try_reserve(len).map_err(|_| Error::OutOfMemory { len, size: size_of::<i64>() })?;
        memory.resize(len, -1);
        self.cachestarts = ArrayD::from_shape_vec(&shape[..], memory)
            .unwrap_or_else(|_| unreachable!("resized to the shape's length"));
        Ok(())
    }

    /// Writes what the last step has not left in its place: new pages, where the batch is the same.
    fn fill_cachestarts(&mut self, state: &State) {
        let entries = &state.plan.entries;
        let width = self.cachestarts.shape()[1].max(1);
        let page_size = state.page_size() as u64;
        self.rows.resize(entries.len(), Row::default());
        let memory = self.cachestarts.as_slice_mut().unwrap_or_else(|| unreachable!("made from a vector"));
        let rows = self.rows.iter_mut().zip(memory.chunks_exact_mut(width));
        for (entry, (row, starts)) in entries.iter().zip(rows) {
            let sequence = &state.sequences[entry.seq];
            let table = sequence.table();
            if (row.seq, row.version) != (entry.seq, sequence.version) {
                starts[table.len()..].fill(-1);
                *row = Row { seq: entry.seq, version: sequence.version, pages: 0 };
            } else if entry.replaced {
                // Of the pages that were there, only the one that the step writes into can be another.
                row.pages = row.pages.min(entry.start / state.page_size());
            }
            let (starts, new) = (&mut starts[row.pages..], &table[row.pages..]);
            match u32::try_from(page_size) {
                // A product of 32-bit numbers is one instruction for several pages.
                Ok(page_size) => fill_starts(starts, new, |page| (u64::from(page) * u64::from(page_size)) as i64),
                Err(_) => fill_starts(starts, new, |page| (u64::from(page) * page_size) as i64),
            }
            row.pages = table.len();
        }
    }

    /// What is in the rows of `cachestarts` is no longer true.
    pub(crate) fn forget_rows(&mut self) {
        self.rows.clear();
        self.cachestarts.fill(-1);
    }
}

/// Writes where pages begin.
fn fill_starts(starts: &mut [i64], table: &[u32], start: impl Fn(u32) -> i64) {
    for (to, &page) in starts.iter_mut().zip(table) {
        *to = start(page);
    }
}
