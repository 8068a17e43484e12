//! A step: loads blocks, makes the index tensors, and forms new blocks when it is committed.

use std::collections::HashMap;
use std::ops::Range;

use ndarray::{ArrayView2, Axis, Slice};

use super::config::BlockScore;
use super::plan::{Change, Entry, StepData};
use super::residency::Load;
use super::sequence::{Formed, Sequence, Setup};
use super::sequences::InfLlm;
use crate::error::Error;
use crate::memory::CacheMemory;
use crate::memory::block::Block;
use crate::memory::store::BlockStore;
use crate::memory::update::copy;
use crate::sequences::SeqId;
use crate::state::{Open, State};
use crate::step::append::Append;
use crate::step::batch::{Batch, batch_tensors};
use crate::step::{OpenStep, Stepped};

/// A block that was formed, and what queries are compared with: shape (num_layer, `Setup::index_len`).
type NewBlock = (Formed, Vec<f32>);

/// A sequence, one of its selections, and a block of its that gets a slot there, which was fetched and verified.
type Fetched = (SeqId, usize, Load, Block);

/// The entries of a step, what it changes in their sequences, and the blocks that it loads.
type Planned = (Vec<Entry>, Vec<Change>, Vec<Fetched>);

impl InfLlm {
    /// Opens a step that appends tokens to sequences: all of them, or none. Loads the blocks that they see and that are
    /// not resident, copies shared pages that the step writes, and moves keys back where positions would pass `n_ctx`.
    /// A rollback keeps all three.
    ///
    /// # Errors
    /// [`Error::EmptyAppend`], [`Error::DuplicateSeq`], [`Error::PositionOverflow`], [`Error::OutOfPages`],
    /// [`Error::TooManyPages`], [`Error::ShiftLimit`], [`Error::OutOfMemory`], [`Error::NotSelected`],
    /// [`Error::BlockLost`], [`Error::Store`].
    /// [`Error::Memory`]: if keys were being moved, their sequences are [lost](Error::Lost).
    pub fn begin_step(
        &mut self,
        appends: &[(SeqId, usize)],
        memory: &mut (impl CacheMemory + ?Sized),
    ) -> Result<InfLlmStep<'_>, Error> {
        self.check_closed()?;
        let rows = appends.iter().map(|&(seq, n)| Ok(self.setup.append(self.intact(seq)?, n)));
        let rows = rows.collect::<Result<Vec<_>, Error>>()?;
        self.manager.open = Some(Open::Planned);
        // Dropped before the commit, as where a memory panics, it rolls the plan back.
        let planning = OpenStep(&mut self.manager);
        let planned = plan(&self.setup, &self.sequences, &*self.blocks.store, &mut planning.0.state, appends, &rows);
        let copied = planned.and_then(|planned| copy(memory, &planning.0.state.plan.copies).map(|()| planned));
        if let Err(Error::BlockLost { .. }) = copied {
            // Layers may select again.
            self.selected.fill(false);
        }
        let (mut entries, changes, fetched) = copied?;
        // From here on rows may change, so the plan is not rolled back any more.
        planning.0.commit_load();
        drop(planning);
        for (entry, Change { residency, shifts, .. }) in entries.iter().zip(changes) {
            let change = |sequence: &mut Sequence| (sequence.residency, sequence.shifts) = (residency, shifts);
            self.sequences.entry(entry.seq).and_modify(change);
        }
        entries.sort_by_key(|entry| entry.n > 1);
        self.open = Some(StepData::new(&self.setup, entries, fetched.len()));
        // Where something fails it is dropped.
        let step = OpenStep(self);
        step.0.write(memory, &fetched)?;
        let InfLlm { setup, manager, sequences, open, .. } = &mut *step.0;
        open.iter_mut().try_for_each(|open| open.fill(setup, &manager.state, |seq| &sequences[&seq]))?;
        Ok(step)
    }

    /// Rotates keys that were moved, and writes blocks into their slots. Where the former fails, the sequences of the
    /// keys are lost; after either the blocks are not resident.
    fn write(&mut self, memory: &mut (impl CacheMemory + ?Sized), fetched: &[Fetched]) -> Result<(), Error> {
        let rotated = self.manager.update(memory);
        let mut write = |(seq, group, load, block): &Fetched| {
            let first = load.slot * self.setup.config.block;
            let slots = self.slots(self.sequences[seq].resident, first..first + self.setup.config.block);
            let written = match self.setup.config.per_layer {
                true => memory.write_layer_rows(*group, &slots, block.rows()),
                false => memory.write_rows(&slots, block.rows()),
            };
            written.map_err(Error::memory)
        };
        let written = rotated.and_then(|()| fetched.iter().try_for_each(&mut write));
        if written.is_err() {
            for &(seq, group, load, _) in fetched {
                self.sequences.entry(seq).and_modify(|sequence| sequence.residency[group].forget(load));
            }
        }
        written
    }

    /// The step that was [detached](InfLlmStep::detach).
    pub fn open_step(&mut self) -> Option<InfLlmStep<'_>> {
        if self.open.is_some() { Some(OpenStep(self)) } else { None }
    }
}

/// Plans a step of these appends, `rows` to the manager's sequences, and fetches the blocks that it loads. All changes
/// are in the manager's journal; after an error they have to be rolled back.
fn plan(
    setup: &Setup,
    sequences: &HashMap<SeqId, Sequence>,
    store: &dyn BlockStore,
    state: &mut State,
    appends: &[(SeqId, usize)],
    rows: &[Append<'_>],
) -> Result<Planned, Error> {
    state.begin_plan(rows)?;
    let entry = |(append, &(seq, n)): (usize, &(SeqId, usize))| {
        let blocks = (0..setup.groups()).map(|group| sequences[&seq].wanted(setup, seq, group));
        Ok(Entry { seq, append, n, blocks: blocks.collect::<Result<_, _>>()? })
    };
    let entries = appends.iter().enumerate().map(entry).collect::<Result<Vec<_>, Error>>()?;
    let change = |entry: &Entry| setup.plan(state, &sequences[&entry.seq], entry);
    let changes = entries.iter().map(change).collect::<Result<Vec<_>, _>>()?;
    state.place_rows(rows)?;
    let mut fetched = Vec::new();
    for (&Entry { seq, .. }, change) in entries.iter().zip(&changes) {
        for &(group, load) in &change.loads {
            let key = &sequences[&seq].blocks[load.block as usize].keys[group];
            fetched.push((seq, group, load, setup.get(store, seq, load.block, key)?));
        }
    }
    Ok((entries, changes, fetched))
}

/// A step of InfLLM: its index tensors, for a batch of B sequences, layer by layer where layers see different blocks.
pub type InfLlmStep<'m> = OpenStep<'m, InfLlm>;

batch_tensors!(InfLlmStep<'_>);

impl InfLlmStep<'_> {
    fn open(&self) -> &StepData {
        self.0.open.as_ref().unwrap_or_else(|| unreachable!("a step is there while it is open"))
    }

    fn batch(&self) -> &Batch {
        &self.open().batch
    }

    /// Shape (B, MaxP): the first slot of each page, -1 after the last one.
    ///
    /// # Errors
    /// [`Error::Layer`].
    pub fn cachestarts(&self, layer: usize) -> Result<ArrayView2<'_, i64>, Error> {
        self.0.setup.check_layer(layer)?;
        Ok(self.open().cachestarts[self.0.setup.group(layer)].view())
    }

    /// Replaces what is in `positions` by the positions of all rows of a layer, in the order of `key` and `value`:
    /// shape (`kvstarts[B]`).
    ///
    /// # Errors
    /// [`Error::Layer`].
    pub fn key_positions_into(&self, layer: usize, positions: &mut Vec<i64>) -> Result<(), Error> {
        let InfLlm { setup, sequences, manager, .. } = &*self.0;
        setup.check_layer(layer)?;
        positions.clear();
        for entry in &self.open().entries {
            let blocks = &entry.blocks[setup.group(layer)];
            positions.extend(sequences[&entry.seq].key_positions(setup, &manager.state, blocks));
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
    /// [`Error::Layer`], [`Error::Shape`], [`Error::Mass`], [`Error::ObservedTwice`].
    pub fn observe(&mut self, layer: usize, scores: ArrayView2<'_, f32>) -> Result<(), Error> {
        self.0.setup.check_layer(layer)?;
        let expected = [self.0.setup.query_heads(), self.kvstarts().last().map_or(0, |&rows| rows as usize)];
        if scores.shape() != expected {
            let (expected, got) = (expected.to_vec(), scores.shape().to_vec());
            return Err(Error::Shape { name: "scores", expected, got });
        }
        let bad = scores.iter().enumerate().find(|(_, mass)| !(mass.is_finite() && **mass >= 0.0));
        if let Some((index, &got)) = bad {
            return Err(Error::Mass { layer, index, got: f64::from(got) });
        }
        let observed = self.0.open.as_mut().map(|open| &mut open.observed[layer]);
        match observed {
            Some(Some(_)) => Err(Error::ObservedTwice { layer }),
            Some(observed) => {
                *observed = Some(scores.to_owned());
                Ok(())
            }
            None => unreachable!("a step is there while it is open"),
        }
    }

    /// Ends the step: its sequences have its tokens, and what has left the last tokens becomes blocks, whose
    /// rows are read from the memory and put into the store.
    ///
    /// # Errors
    /// [`Error::NotObserved`], [`Error::Store`], [`Error::Memory`]. The step is rolled back then.
    pub fn commit(self, memory: &(impl CacheMemory + ?Sized)) -> Result<(), Error> {
        // Dropped before the step, which is then rolled back, as where a memory or the store panics.
        let mut ending = Ending { open: self.0.open.take(), infllm: &mut *self.0 };
        if let Some(open) = &ending.open {
            ending.infllm.commit(open, memory)?;
        }
        ending.open = None;
        Ok(())
    }
}

/// A step that is being committed; it is open again when this is dropped before.
struct Ending<'m> {
    open: Option<StepData>,
    infllm: &'m mut InfLlm,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.infllm.open = self.open.take();
    }
}

impl Stepped for InfLlm {
    fn rollback_open_step(&mut self) {
        if let Some(open) = self.open.take() {
            for entry in &open.entries {
                let rows = self.sequences[&entry.seq].rows;
                let len = self.manager.state.sequences[rows].len();
                self.remove(rows, len - entry.n..len);
            }
        }
    }
}

impl InfLlm {
    /// Gives sequences the tokens of a step, and forms blocks; all of them, or none.
    fn commit(&mut self, open: &StepData, memory: &(impl CacheMemory + ?Sized)) -> Result<(), Error> {
        let masses = open.masses(self.setup.config.needs_mass())?;
        let mut formed = Vec::new();
        for (entry, masses) in open.entries.iter().zip(&masses) {
            let new = if self.setup.config.has_blocks() { self.new_blocks(entry) } else { 0 };
            for nth in 0..new {
                match self.form(memory, entry, nth, masses) {
                    Ok(block) => formed.push(block),
                    Err(error) => {
                        formed.into_iter().for_each(|(block, _)| self.forget(block));
                        return Err(error);
                    }
                }
            }
        }
        self.last = open.entries.iter().map(|entry| (entry.seq, entry.n)).collect();
        self.selected.fill(false);
        let mut formed = formed.into_iter();
        for (entry, masses) in open.entries.iter().zip(&masses) {
            self.commit_entry(entry, masses, &mut formed);
        }
        Ok(())
    }

    /// The blocks that form with the tokens of an entry.
    fn new_blocks(&self, entry: &Entry) -> usize {
        let n = self.sequences[&entry.seq].n;
        self.setup.partition(n + entry.n).blocks - self.setup.partition(n).blocks
    }

    /// `formed` begins with the blocks of the entry.
    fn commit_entry(
        &mut self,
        entry: &Entry,
        masses: &[ArrayView2<'_, f32>],
        formed: &mut impl Iterator<Item = NewBlock>,
    ) {
        let new = self.new_blocks(entry);
        let Self { setup, sequences, .. } = &mut *self;
        let Some(sequence) = sequences.get_mut(&entry.seq) else { return };
        let (init, block) = (setup.config.init, setup.config.block);
        if setup.config.score == BlockScore::Representatives {
            let tokens = (sequence.n + entry.n).saturating_sub(setup.rest_start(sequence.n));
            let merged = |(layer, scores): (usize, &ArrayView2<'_, f32>)| {
                setup.merged(sequence, entry, layer, scores.view(), new * block..tokens)
            };
            let merged: Vec<_> = masses.iter().enumerate().map(merged).collect();
            sequence.layers.iter_mut().zip(merged).for_each(|(layer, mass)| layer.mass = mass);
        }
        if !masses.is_empty() {
            for (group, residency) in sequence.residency.iter_mut().enumerate() {
                let of_block = |i: usize| -> f32 {
                    let keys = Slice::from(init + i * block..init + (i + 1) * block);
                    masses[setup.layers(group)].iter().map(|scores| scores.slice_axis(Axis(1), keys).sum()).sum()
                };
                residency.observe(entry.blocks[group].iter().enumerate().map(|(i, &block)| (block, of_block(i))));
            }
        }
        sequence.n += entry.n;
        if setup.config.has_blocks() {
            formed.take(new).for_each(|block| sequence.push(setup, block));
        }
        let rows = sequence.rows;
        self.remove(rows, init..init + new * block);
    }

    /// Removes rows of a sequence of the manager that are whole pages, or its last ones.
    fn remove(&mut self, seq: SeqId, rows: Range<usize>) {
        if !rows.is_empty()
            && let Err(error) = self.manager.edit(|state| state.remove_rows_for_good(seq, rows))
        {
            unreachable!("whole pages, and rows at the end, leave without new ones: {error}");
        }
    }
}
