//! A step, from its appends to its end:
//!
//! ```text
//! begin_step   check all appends, then give the new rows their slots (`plan`). Every change is in the journal, and a
//!              refusal undoes them all.
//!                  pages: begin an empty sequence with cached pages of its tokens, then with pages of the store; copy
//!                         a page before writing it where other sequences have it; take free pages, then cached ones
//!                  runs:  grow the run in place, or move it
//!                  cells: take neighboring cells for the rows of all appends
//!              Note the tokens, and seal the pages that they fill. Make the index tensors (`tensors`).
//! apply        run queued copies and rotations, write blocks of the store to their pages, copy shared pages. A failure
//!              undoes the plan.
//! commit       forget the journal, remove rows that windows have passed, perhaps queue a defragmentation
//! rollback     undo the journal; cached pages that may have been written leave the prefix index
//! ```
//!
//! Sessions and swapped sequences are loaded in the same way, by [`Manager::plan_load`] and [`Manager::commit_load`].

pub(crate) mod append;
pub(crate) mod batch;
pub(crate) mod journal;
mod key_positions;
pub(crate) mod mask;
pub(crate) mod plan;
pub(crate) mod tensors;

use std::collections::HashSet;

use kvcache_op::IndexInputs;
use ndarray::ArrayViewD;

use crate::error::Error;
use crate::manager::Manager;
use crate::memory::CacheMemory;
use crate::memory::blocks;
use crate::memory::update::copy;
use crate::state::{Open, State};
use crate::step::append::Append;
use crate::step::batch::{Batch, batch_tensors};
use crate::step::tensors::Tensors;

/// Opens one step at a time.
pub trait Stepped {
    /// Rolls back the open step, if there is one: for a step that was leaked instead of dropped.
    fn rollback_open_step(&mut self);
}

/// A step that is open: its `commit` ends it; dropped instead, it is rolled back.
#[derive(Debug)]
#[must_use = "a dropped step is rolled back"]
pub struct OpenStep<'m, M: Stepped>(pub(crate) &'m mut M);

impl<M: Stepped> OpenStep<'_, M> {
    /// Ends the step as if it had never begun, as dropping it does.
    pub fn rollback(self) {}

    /// Lets the step stay open without borrowing its manager, which refuses all changes meanwhile and gives it back by
    /// `open_step`. For bindings to languages without lifetimes.
    pub fn detach(self) {
        std::mem::forget(self);
    }
}

impl<M: Stepped> Drop for OpenStep<'_, M> {
    fn drop(&mut self) {
        self.0.rollback_open_step();
    }
}

/// A step whose rows have their slots. [`apply`](Self::apply) makes its copies; dropped instead, it is rolled back.
#[derive(Debug)]
#[must_use = "a dropped step is rolled back"]
pub struct Planned<'m>(OpenStep<'m, Manager>);

/// A step that is ready to be run: its tensors are the operator's inputs.
pub type Step<'m> = OpenStep<'m, Manager>;

impl Manager {
    /// Plans a step that appends rows to sequences: all of them, or none. No appends are a legal step.
    ///
    /// # Errors
    /// [`Error::EmptyAppend`], [`Error::DuplicateSeq`], [`Error::PositionOrder`], [`Error::PositionOverflow`],
    /// [`Error::TooManyPages`], [`Error::OutOfPages`], [`Error::OutOfMemory`]: `max_pages` columns for each append are
    /// more than there is memory for.
    pub fn begin_step(&mut self, appends: &[Append<'_>]) -> Result<Planned<'_>, Error> {
        self.check_closed()?;
        self.state.prepare_update();
        let planned = self.state.begin_plan(appends).and_then(|()| self.state.place_rows(appends));
        if let Err(error) = planned.and_then(|()| self.tensors.fill(&self.state, appends)) {
            self.state.rollback(|_| false);
            return Err(error);
        }
        self.open = Some(Open::Planned);
        Ok(Planned(OpenStep(self)))
    }

    /// The step that was [detached](Step::detach), or leaked, after it was applied.
    pub fn open_step(&mut self) -> Option<Step<'_>> {
        if self.open == Some(Open::Applied) { Some(OpenStep(self)) } else { None }
    }
}

impl Stepped for Manager {
    fn rollback_open_step(&mut self) {
        if let Some(open) = self.open {
            self.rollback(|_| open == Open::Applied);
        }
    }
}

impl<'m> Planned<'m> {
    /// Runs the copies that the step needs before it writes: shared pages are copied.
    ///
    /// # Errors
    /// [`Error::Memory`]; the step is then rolled back; cached pages that a copy was to write are free.
    ///
    /// # Panics
    /// If the memory does. The step is then rolled back; all cached pages that it took are free.
    pub fn apply(self, memory: &mut (impl CacheMemory + ?Sized)) -> Result<Step<'m>, Error> {
        let manager = &mut *self.0.0;
        manager.drain(memory)?;
        let moved = manager.load_blocks(memory).and_then(|()| copy(memory, &manager.state.plan.copies));
        if moved.is_err() {
            let (page_size, plan) = (manager.state.page_size(), &manager.state.plan);
            let copied = plan.copies.iter().map(|copy| (copy.dst / page_size) as u32);
            let written: HashSet<u32> = copied.chain(plan.loads.iter().map(|load| load.0)).collect();
            manager.rollback(|page| written.contains(&page));
        }
        manager.state.plan.loads.clear();
        moved.map(|()| self.0)
    }
}

batch_tensors!(Step<'_>);

impl Step<'_> {
    fn tensors(&self) -> &Tensors {
        &self.0.tensors
    }

    fn batch(&self) -> &Batch {
        &self.tensors().batch
    }

    /// The inputs of `KeyValueCache::check_layers`, and the index inputs of a single call.
    pub fn layers_inputs(&self) -> IndexInputs<'_> {
        let Tensors { batch, cachestarts, .. } = self.tensors();
        IndexInputs {
            seqstarts: (&batch.seqstarts).into(),
            kvstarts: (&batch.kvstarts).into(),
            cachestarts: cachestarts.into(),
            start_pos: (&batch.start_pos).into(),
            max_seqlen: (&batch.max_seqlen).into(),
            max_kvlen: (&batch.max_kvlen).into(),
        }
    }

    /// With pages shape (B, MaxP): the first slot of each page; -1 after the last one. Else shape (B): the first slot.
    pub fn cachestarts(&self) -> ArrayViewD<'_, i64> {
        self.tensors().cachestarts.view()
    }

    /// Shape (`seqstarts[B]`): the tokens to compute; -1 where they are not known.
    pub fn token_ids(&self) -> &[i64] {
        &self.tensors().token_ids
    }

    /// Shape (B): by entry, the tokens of its append that were found in the prefix index. They are not in `seqlen`.
    pub fn cached(&self) -> &[i64] {
        &self.tensors().cached
    }

    /// Ends the step: its rows are stored.
    pub fn commit(self) {
        let manager = &mut *self.0;
        manager.commit_load();
        manager.state.trim_windows();
        let state = &mut manager.state;
        manager.prefix_hits += state.plan.entries.iter().map(|entry| entry.cached).sum::<usize>();
        if let Some(blocks) = &mut state.blocks {
            blocks.forget_found();
        }
        if let Some(threshold) = state.spec.defrag_threshold
            && state.pages.any_freed()
            && state.fragmentation() > threshold
        {
            state.defragment(None);
        }
    }
}

impl Manager {
    /// Undoes the open step or load. Cached pages that may have been `written` leave the index.
    fn rollback(&mut self, written: impl FnMut(u32) -> bool) {
        self.state.rollback(written);
        self.state.settle();
        self.tensors.forget_rows();
        self.open = None;
    }

    /// Writes the blocks that the step has found in the store to their pages.
    fn load_blocks(&mut self, memory: &mut (impl CacheMemory + ?Sized)) -> Result<(), Error> {
        let page_size = self.state.page_size();
        self.state.plan.loads.iter().try_for_each(|(page, block)| {
            let slots: Vec<usize> = (*page as usize * page_size..).take(page_size).collect();
            blocks::load(block, &slots, memory)
        })
    }

    /// Runs queued copies and rotations, before the memory writes for the open step. An error rolls the step back.
    pub(crate) fn drain(&mut self, memory: &mut (impl CacheMemory + ?Sized)) -> Result<(), Error> {
        // Rows that an update rotates were live before the plan; pages that its copies were to write when they failed
        // leave the prefix index when it is settled.
        if let Err(error) = self.state.update(memory) {
            self.rollback(|_| false);
            return Err(error);
        }
        // Before the first write: where the memory panics, evicted pages may have been overwritten.
        self.open = Some(Open::Applied);
        Ok(())
    }

    /// Plans to add sequences whose rows a memory then writes, and opens that as a step is opened.
    pub(crate) fn plan_load<T>(&mut self, plan: impl FnOnce(&mut State) -> Result<T, Error>) -> Result<T, Error> {
        self.check_closed()?;
        self.state.prepare_update();
        self.state.begin();
        let planned = plan(&mut self.state);
        match planned {
            Ok(_) => self.open = Some(Open::Planned),
            Err(_) => self.state.rollback(|_| false),
        }
        planned
    }

    /// Ends what [`plan_load`](Self::plan_load) has opened: the sequences stay.
    pub(crate) fn commit_load(&mut self) {
        self.state.commit();
        self.open = None;
    }
}
