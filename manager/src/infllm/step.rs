//! Steps: what is loaded before one, its index tensors, and what is formed behind it.

use std::collections::HashMap;

use kvcache_op::IndexInputs;
use ndarray::{Array2, ArrayView2, Axis, Slice};

use super::config::BlockScore;
use super::error::InfLlmError;
use super::load::Loads;
use super::plan::{Entry, Plan};
use super::residency::Residency;
use super::sequence::Formed;
use super::sequences::InfLlm;
use super::tensors::Tensors;
use crate::batch::{Batch, batch_tensors};
use crate::error::Error;
use crate::memory::CacheMemory;
use crate::positions::MAX_POSITION;
use crate::seq_id::SeqId;

/// A block that was formed, and what queries are compared with: shape (num_layer, `Setup::index_len`).
type NewBlock = (Formed, Vec<f32>);

/// An open step.
#[derive(Debug)]
pub(crate) struct Open {
    entries: Vec<Entry>,
    tensors: Tensors,
    loads: usize,
    /// By layer: the attention mass of all keys, shape (heads of queries, keys).
    observed: Vec<Option<Array2<f32>>>,
}

impl Open {
    /// The pages of new tokens.
    pub(crate) fn new_pages(&self) -> impl Iterator<Item = u32> {
        self.entries.iter().flat_map(|entry| &entry.tail).copied()
    }
}

impl InfLlm {
    /// Opens a step that appends tokens to sequences: all of them, or none. Loads the blocks that they see and that are
    /// not resident, copies shared pages that the step writes, and moves keys back where positions would pass `n_ctx`.
    /// A rollback keeps all three.
    ///
    /// # Errors
    /// [`Error::StepOpen`], [`Error::UnknownSeq`], [`Error::Lost`], [`Error::EmptyAppend`], [`Error::DuplicateSeq`],
    /// [`Error::PositionOverflow`], [`Error::OutOfPages`], [`Error::TooManyPages`], [`Error::ShiftLimit`],
    /// [`Error::OutOfMemory`]; [`InfLlmError::NotSelected`], [`InfLlmError::BlockLost`], [`InfLlmError::Store`].
    /// [`Error::Memory`]: if keys were being moved, their sequences are [lost](Error::Lost).
    pub fn begin_step(
        &mut self,
        appends: &[(SeqId, usize)],
        memory: &mut (impl CacheMemory + ?Sized),
    ) -> Result<InfLlmStep<'_>, Error> {
        self.check_closed()?;
        let mut entries = self.entries(appends)?;
        let Self { setup, sequences, pages, store, .. } = &mut *self;
        let mut plan = Plan::new(setup, pages);
        let planned: Result<Vec<_>, _> =
            entries.iter_mut().map(|entry| plan.entry(entry, &sequences[&entry.seq])).collect();
        let loads = planned.and_then(|planned| {
            plan.check()?;
            Ok((Loads::fetch(setup, &**store, &entries, sequences, &planned)?, planned))
        });
        let copied = loads.and_then(|loads| {
            if plan.copies.is_empty() {
                Ok(loads)
            } else {
                memory.copy_rows(&plan.copies).map_err(Error::memory).map(|()| loads)
            }
        });
        let (loads, planned) = match copied {
            Ok(copied) => copied,
            Err(error) => {
                plan.undo();
                return Err(error);
            }
        };
        // From here on rows may change, so what was planned is what there is.
        let rotations = std::mem::take(&mut plan.rotations);
        let mut rotated = Vec::new();
        for (entry, (device, _, rotates)) in entries.iter().zip(planned) {
            self.sequences.entry(entry.seq).and_modify(|sequence| sequence.device = device);
            rotated.extend(rotates.then_some(entry.seq));
        }
        let written = self.write(memory, &rotations, &rotated, &loads);
        match written.and_then(|()| Tensors::new(&self.setup, &self.sequences, &entries)) {
            Ok(tensors) => {
                let observed = vec![None; self.setup.spec.geometry().num_layer];
                self.open = Some(Open { entries, tensors, loads: loads.len(), observed });
                Ok(InfLlmStep(self))
            }
            Err(error) => {
                entries.into_iter().flat_map(|entry| entry.tail).for_each(|page| self.release(page));
                Err(error)
            }
        }
    }

    /// The entries of a step: those of one token first, else in order of the appends.
    fn entries(&self, appends: &[(SeqId, usize)]) -> Result<Vec<Entry>, Error> {
        let mut first = HashMap::with_capacity(appends.len());
        let mut entries = Vec::with_capacity(appends.len());
        for (append, &(seq, n)) in appends.iter().enumerate() {
            let sequence = self.intact(seq)?;
            if n == 0 {
                return Err(Error::EmptyAppend { append });
            }
            if let Some(other) = first.insert(seq, append) {
                return Err(Error::DuplicateSeq { append, other });
            }
            if n > MAX_POSITION as usize + 1 - sequence.n {
                let first = sequence.n as i64;
                return Err(Error::PositionOverflow { append: Some(append), first, n, max: MAX_POSITION });
            }
            let blocks = (0..self.setup.groups()).map(|group| sequence.wanted(&self.setup, seq, group));
            let blocks = blocks.collect::<Result<_, _>>()?;
            entries.push(Entry { seq, append, n, blocks, tail: Vec::new() });
        }
        entries.sort_by_key(|entry| entry.n > 1);
        Ok(entries)
    }
}

/// An open step: its index tensors, for a batch of B sequences, layer by layer where layers see different blocks.
/// Dropped, it is rolled back.
#[derive(Debug)]
#[must_use = "a dropped step is rolled back"]
pub struct InfLlmStep<'m>(pub(super) &'m mut InfLlm);

batch_tensors!(InfLlmStep<'_>);

impl InfLlmStep<'_> {
    fn open(&self) -> &Open {
        self.0.open.as_ref().unwrap_or_else(|| unreachable!("a step is there while it is open"))
    }

    fn batch(&self) -> &Batch {
        &self.open().tensors.batch
    }

    /// The index inputs of a call of the operator in a layer.
    ///
    /// # Errors
    /// [`InfLlmError::Layer`].
    pub fn layer_inputs(&self, layer: usize) -> Result<IndexInputs<'_>, Error> {
        self.0.setup.check_layer(layer)?;
        Ok(self.open().tensors.index_inputs(self.0.setup.group(layer)))
    }

    /// Shape (B, MaxP): the first slot of each page, -1 behind the last one.
    ///
    /// # Errors
    /// [`InfLlmError::Layer`].
    pub fn cachestarts(&self, layer: usize) -> Result<ArrayView2<'_, i64>, Error> {
        self.0.setup.check_layer(layer)?;
        Ok(self.open().tensors.cachestarts[self.0.setup.group(layer)].view())
    }

    /// Replaces what is in `positions` by the positions of all rows of a layer, in the order of `key` and `value`:
    /// shape (`kvstarts[B]`).
    ///
    /// # Errors
    /// [`InfLlmError::Layer`].
    pub fn key_positions_into(&self, layer: usize, positions: &mut Vec<i64>) -> Result<(), Error> {
        let InfLlm { setup, sequences, .. } = &*self.0;
        setup.check_layer(layer)?;
        positions.clear();
        for entry in &self.open().entries {
            let blocks = &entry.blocks[setup.group(layer)];
            positions.extend(sequences[&entry.seq].key_positions(setup, blocks, entry.n));
        }
        Ok(())
    }

    /// The blocks that were loaded for this step: wanted ones that were not resident, of all sequences and selections.
    pub fn loads(&self) -> usize {
        self.open().loads
    }

    /// Takes the attention mass of a layer in this step, shape (heads of queries, `kvstarts[B]`): for each key the sum
    /// of the softmax's probabilities over the queries of its own entry. Where neither representatives nor decayed
    /// masses need it, it is only checked.
    ///
    /// # Errors
    /// [`InfLlmError::Layer`], [`InfLlmError::Shape`], [`InfLlmError::Mass`], [`InfLlmError::ObservedTwice`].
    pub fn observe(&mut self, layer: usize, scores: ArrayView2<'_, f32>) -> Result<(), Error> {
        self.0.setup.check_layer(layer)?;
        let expected = [self.0.setup.query_heads(), self.kvstarts().last().map_or(0, |&rows| rows as usize)];
        if scores.shape() != expected {
            let (expected, got) = (expected.to_vec(), scores.shape().to_vec());
            return Err(InfLlmError::Shape { name: "scores", expected, got }.into());
        }
        let bad = scores.iter().enumerate().find(|(_, mass)| !(mass.is_finite() && **mass >= 0.0));
        if let Some((index, &got)) = bad {
            return Err(InfLlmError::Mass { layer, index, got: f64::from(got) }.into());
        }
        let observed = self.0.open.as_mut().map(|open| &mut open.observed[layer]);
        match observed {
            Some(Some(_)) => Err(InfLlmError::ObservedTwice { layer }.into()),
            Some(observed) => {
                *observed = Some(scores.to_owned());
                Ok(())
            }
            None => unreachable!("a step is there while it is open"),
        }
    }

    /// Ends the step: its tokens are those of its sequences, and what has left the last tokens becomes blocks, whose
    /// rows are read from the memory and put into the store.
    ///
    /// # Errors
    /// [`InfLlmError::NotObserved`], [`InfLlmError::Store`], [`Error::Memory`]. The step is rolled back then.
    pub fn commit(self, memory: &(impl CacheMemory + ?Sized)) -> Result<(), Error> {
        self.0.commit(memory)
    }

    /// Ends the step: its sequences have the tokens and blocks that they had.
    pub fn rollback(self) {}

    /// Leaves the step open, for [`InfLlm::open_step`].
    pub fn detach(self) {
        std::mem::forget(self);
    }
}

impl Drop for InfLlmStep<'_> {
    fn drop(&mut self) {
        if let Some(open) = self.0.open.take() {
            open.new_pages().for_each(|page| self.0.release(page));
        }
    }
}

impl InfLlm {
    /// Ends the open step. After an error it is open as before.
    fn commit(&mut self, memory: &(impl CacheMemory + ?Sized)) -> Result<(), Error> {
        let Some(open) = self.open.take() else { return Ok(()) };
        let observed =
            if self.setup.config.needs_mass() && !open.entries.is_empty() { &open.observed[..] } else { &[] };
        let missing = observed.iter().position(Option::is_none);
        let mut formed = Vec::with_capacity(open.entries.len());
        let mut result = missing.map_or(Ok(()), |layer| Err(InfLlmError::NotObserved { layer }.into()));
        let observed: Vec<_> = observed.iter().flatten().collect();
        for (entry, rows) in open.entries.iter().zip(open.tensors.batch.kvstarts.windows(2)) {
            let rows = Slice::from(rows[0] as usize..rows[1] as usize);
            let of_entry: Vec<_> = observed.iter().map(|scores| scores.slice_axis(Axis(1), rows)).collect();
            let mut blocks = Vec::new();
            if result.is_ok() {
                result = self.form_all(memory, entry, &of_entry, &mut blocks);
            }
            formed.push((of_entry, blocks));
        }
        if let Err(error) = result {
            formed.into_iter().flat_map(|(_, blocks)| blocks).for_each(|(block, _)| self.forget(block));
            drop(observed);
            self.open = Some(open);
            return Err(error);
        }
        self.last = open.entries.iter().map(|entry| (entry.seq, entry.n)).collect();
        self.selected.fill(false);
        for (entry, (observed, blocks)) in open.entries.iter().zip(formed) {
            self.commit_entry(entry, &observed, blocks);
        }
        Ok(())
    }

    fn form_all(
        &mut self,
        memory: &(impl CacheMemory + ?Sized),
        entry: &Entry,
        observed: &[ArrayView2<'_, f32>],
        blocks: &mut Vec<NewBlock>,
    ) -> Result<(), Error> {
        if self.setup.config.has_blocks() {
            for nth in 0..self.new_blocks(entry) {
                blocks.push(self.form(memory, entry, nth, observed)?);
            }
        }
        Ok(())
    }

    /// The blocks that form with the tokens of an entry.
    fn new_blocks(&self, entry: &Entry) -> usize {
        let n = self.sequences[&entry.seq].n;
        self.setup.partition(n + entry.n).blocks - self.setup.partition(n).blocks
    }

    fn commit_entry(&mut self, entry: &Entry, observed: &[ArrayView2<'_, f32>], blocks: Vec<NewBlock>) {
        let new = self.new_blocks(entry);
        let Self { setup, sequences, .. } = &mut *self;
        let Some(sequence) = sequences.get_mut(&entry.seq) else { return };
        let tokens = (sequence.n + entry.n).saturating_sub(setup.rest_start(sequence.n));
        let of_tokens = if setup.config.score == BlockScore::Representatives { observed } else { &[] };
        for (layer, scores) in of_tokens.iter().enumerate() {
            let mass = setup.merged(sequence, entry, layer, scores.view(), new * setup.config.block..tokens);
            sequence.layers[layer].mass = mass;
        }
        if !observed.is_empty() {
            for (group, residency) in sequence.device.residency.iter_mut().enumerate() {
                let layers = &observed[setup.layers(group)];
                observe_blocks(residency, setup.config.init, setup.config.block, &entry.blocks[group], layers);
            }
        }
        sequence.n += entry.n;
        blocks.into_iter().for_each(|block| sequence.push(setup, block));
        sequence.device.pages.extend_from_slice(&entry.tail);
        let first = setup.pages(setup.config.init);
        let gone: Vec<u32> = if new == 0 {
            Vec::new()
        } else {
            sequence.device.pages.drain(first..first + new * setup.pages(setup.config.block)).collect()
        };
        gone.into_iter().for_each(|page| self.release(page));
    }
}

/// Adds the attention mass that blocks got in a step.
fn observe_blocks(residency: &mut Residency, init: usize, len: usize, blocks: &[u32], layers: &[ArrayView2<'_, f32>]) {
    let mass = |i: usize| {
        let rows = Slice::from(init + i * len..init + (i + 1) * len);
        layers.iter().map(|scores| scores.slice_axis(Axis(1), rows).sum()).sum()
    };
    residency.observe(blocks.iter().enumerate().map(|(i, &block)| (block, mass(i))));
}
