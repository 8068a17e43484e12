//! The index tensors of a step.

use std::collections::HashMap;

use kvcache_op::IndexInputs;
use ndarray::Array2;

use super::plan::Entry;
use super::sequence::{Sequence, Setup};
use crate::batch::Batch;
use crate::error::Error;
use crate::seq_id::SeqId;

#[derive(Debug, Default)]
pub(crate) struct Tensors {
    pub(crate) batch: Batch,
    /// By selection.
    pub(crate) cachestarts: Vec<Array2<i64>>,
}

impl Tensors {
    /// The tensors of entries whose sequences have their blocks in the cache.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub(crate) fn new(setup: &Setup, sequences: &HashMap<SeqId, Sequence>, entries: &[Entry]) -> Result<Self, Error> {
        let mut tensors = Self::default();
        tensors.batch.clear();
        for entry in entries {
            let sequence = &sequences[&entry.seq];
            let first = sequence.next_position();
            tensors.batch.push_tokens(entry.append, first as i64..(first + entry.n) as i64);
            tensors.batch.push_entry(sequence.rows(setup) + entry.blocks[0].len() * setup.config.block, entry.n);
        }
        for group in 0..setup.groups() {
            let tables: Vec<_> =
                entries.iter().map(|entry| table(setup, &sequences[&entry.seq], entry, group)).collect();
            let widest = tables.iter().map(Vec::len).max().unwrap_or(0);
            let shape = (entries.len(), setup.spec.max_pages().unwrap_or(widest));
            let len = shape.0.saturating_mul(shape.1);
            let mut starts = Vec::new();
            starts.try_reserve_exact(len).map_err(|_| Error::OutOfMemory { len, size: size_of::<i64>() })?;
            for table in tables {
                let end = starts.len() + shape.1;
                starts.extend(table.into_iter().map(|page| i64::from(page) * setup.page_size() as i64));
                starts.resize(end, -1);
            }
            let starts = Array2::from_shape_vec(shape, starts).unwrap_or_else(|_| unreachable!("rows of that width"));
            tensors.cachestarts.push(starts);
        }
        Ok(tensors)
    }

    /// The operator's index inputs.
    pub(crate) fn index_inputs(&self, group: usize) -> IndexInputs<'_> {
        self.batch.index_inputs(&self.cachestarts[group])
    }
}

/// The pages of an entry: those of the first tokens, of blocks, of the rest, and new ones.
fn table(setup: &Setup, sequence: &Sequence, entry: &Entry, group: usize) -> Vec<u32> {
    let device = &sequence.device;
    let init = setup.pages(setup.config.init).min(device.pages.len());
    let (init, rest) = device.pages.split_at(init);
    let residency = &device.residency[group];
    let slots = entry.blocks[group].iter().filter_map(|&block| residency.slot(block));
    let blocks = slots.flat_map(|slot| &device.slots[slot]);
    init.iter().chain(blocks).chain(rest).chain(&entry.tail).copied().collect()
}
