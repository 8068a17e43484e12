//! The index tensors of a step.

use std::collections::HashMap;

use kvcache_op::IndexInputs;
use ndarray::Array2;

use super::plan::Entry;
use super::sequence::{Sequence, Setup};
use crate::error::Error;
use crate::seq_id::SeqId;

#[derive(Debug, Default)]
pub(crate) struct Tensors {
    pub(crate) seqstarts: Vec<i64>,
    pub(crate) kvstarts: Vec<i64>,
    pub(crate) start_pos: Vec<i64>,
    /// By selection.
    pub(crate) cachestarts: Vec<Array2<i64>>,
    pub(crate) max_seqlen: i64,
    pub(crate) max_kvlen: i64,
    pub(crate) positions: Vec<i64>,
    pub(crate) order: Vec<i64>,
    pub(crate) decoding_batches: i64,
}

impl Tensors {
    /// The tensors of entries whose sequences have their blocks in the cache.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub(crate) fn new(setup: &Setup, sequences: &HashMap<SeqId, Sequence>, entries: &[Entry]) -> Result<Self, Error> {
        let mut tensors = Self { seqstarts: vec![0], kvstarts: vec![0], ..Self::default() };
        let (mut new, mut rows) = (0, 0);
        for entry in entries {
            let sequence = &sequences[&entry.seq];
            let start = sequence.rows(setup) + entry.blocks[0].len() * setup.config.block;
            new += entry.n;
            rows += start + entry.n;
            tensors.seqstarts.push(new as i64);
            tensors.kvstarts.push(rows as i64);
            tensors.start_pos.push(start as i64);
            tensors.max_seqlen = tensors.max_seqlen.max(entry.n as i64);
            tensors.max_kvlen = tensors.max_kvlen.max((start + entry.n) as i64);
            let first = sequence.next_position();
            tensors.positions.extend((first..first + entry.n).map(|position| position as i64));
            tensors.order.push(entry.append as i64);
            tensors.decoding_batches += i64::from(entry.n == 1);
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
        IndexInputs {
            seqstarts: (&self.seqstarts).into(),
            kvstarts: (&self.kvstarts).into(),
            cachestarts: (&self.cachestarts[group]).into(),
            start_pos: (&self.start_pos).into(),
            max_seqlen: (&self.max_seqlen).into(),
            max_kvlen: (&self.max_kvlen).into(),
        }
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
