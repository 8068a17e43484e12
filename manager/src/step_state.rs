//! A step, or sequences that are loaded, from the plan to the end:
//!
//! ```text
//! plan       every change is in the journal; a refusal rolls it back
//! apply      drain the queue, load blocks from the store, copy shared pages; a failure rolls the plan back
//! commit     the journal is forgotten, the window removes rows, a defragmentation may be queued
//! rollback   the journal is undone; cached pages that may have been written leave the prefix index
//! ```

use std::collections::HashSet;

use crate::append::Append;
use crate::blocks;
use crate::edit::Editor;
use crate::error::Error;
use crate::journal::Journal;
use crate::manager::Manager;
use crate::memory::CacheMemory;
use crate::plan::Planner;
use crate::spec::CacheSpec;
use crate::state::{Open, State};
use crate::update::copy;

impl Manager {
    pub(crate) fn plan_step(&mut self, appends: &[Append<'_>]) -> Result<(), Error> {
        self.check_closed()?;
        let Self { spec, state, journal, plan, blocks, .. } = self;
        state.prepare_update(spec);
        let planned = (Planner { spec, state, journal, plan, blocks: blocks.as_mut() }).plan(appends);
        let filled = planned.and_then(|()| self.tensors.fill(&self.spec, &self.state, &self.plan.entries, appends));
        if let Err(error) = filled {
            self.journal.rollback(&mut self.state, |_| false);
            return Err(error);
        }
        self.open = Some(Open::Planned);
        Ok(())
    }

    /// Rolls back the open step, if there is one: for a step that was leaked instead of dropped.
    pub fn rollback_open_step(&mut self) {
        if let Some(open) = self.open {
            self.rollback(|_| open == Open::Applied);
        }
    }

    /// A step is open.
    pub(crate) fn is_applied(&self) -> bool {
        self.open == Some(Open::Applied)
    }

    /// Ends what is open as if it had never begun. Cached pages that may have been `written` leave the index.
    fn rollback(&mut self, written: impl FnMut(u32) -> bool) {
        self.journal.rollback(&mut self.state, written);
        self.state.settle(&self.spec);
        self.tensors.forget_rows();
        self.open = None;
    }

    pub(crate) fn apply(&mut self, memory: &mut (impl CacheMemory + ?Sized)) -> Result<(), Error> {
        self.drain(memory)?;
        let moved = self.load_blocks(memory).and_then(|()| copy(memory, &self.plan.copies));
        if moved.is_err() {
            let page_size = self.spec.page_size();
            let copied = self.plan.copies.iter().map(|copy| (copy.dst / page_size) as u32);
            let written: HashSet<u32> = copied.chain(self.plan.loads.iter().map(|load| load.0)).collect();
            self.rollback(|page| written.contains(&page));
        }
        self.plan.loads.clear();
        moved
    }

    /// Writes the blocks that the step has found in the store to their pages.
    fn load_blocks(&mut self, memory: &mut (impl CacheMemory + ?Sized)) -> Result<(), Error> {
        let page_size = self.spec.page_size();
        self.plan.loads.iter().try_for_each(|(page, block)| {
            let slots: Vec<usize> = (*page as usize * page_size..).take(page_size).collect();
            blocks::load(block, &slots, memory)
        })
    }

    /// Runs what is queued, before the memory writes for the open step, which an error rolls back.
    pub(crate) fn drain(&mut self, memory: &mut (impl CacheMemory + ?Sized)) -> Result<(), Error> {
        // Rows that an update rotates were live before the plan; pages that its copies were to write when they failed
        // leave the prefix index when it is settled.
        if let Err(error) = self.state.update(&self.spec, memory, self.blocks.as_mut()) {
            self.rollback(|_| false);
            return Err(error);
        }
        // Before the first write: where the memory panics, evicted pages may have been overwritten.
        self.open = Some(Open::Applied);
        Ok(())
    }

    /// Plans to add sequences whose rows a memory then writes, and opens that as a step is opened.
    pub(crate) fn plan_load<T>(
        &mut self,
        plan: impl FnOnce(&CacheSpec, &mut State, &mut Journal) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.check_closed()?;
        let Self { spec, state, journal, .. } = self;
        state.prepare_update(spec);
        let planned = plan(spec, state, journal);
        match planned {
            Ok(_) => self.open = Some(Open::Planned),
            Err(_) => journal.rollback(state, |_| false),
        }
        planned
    }

    /// Ends what [`plan_load`](Self::plan_load) has opened: the sequences stay.
    pub(crate) fn commit_load(&mut self) {
        self.journal.commit(&mut self.state);
        self.open = None;
    }

    pub(crate) fn commit(&mut self) {
        self.journal.commit(&mut self.state);
        self.prefix_hits += self.plan.entries.iter().map(|entry| entry.cached).sum::<usize>();
        self.open = None;
        let Self { spec, state, journal, plan, blocks, .. } = self;
        if let Some(blocks) = blocks {
            blocks.forget_found();
        }
        if spec.window().is_some() {
            let queued = state.queue.len();
            let mut editor = Editor { spec, state, journal, queued };
            plan.entries.iter().for_each(|entry| editor.trim(entry.seq));
            journal.commit(state);
        }
        if let Some(threshold) = spec.defrag_threshold()
            && state.pages.any_freed()
            && state.fragmentation(spec) > threshold
        {
            state.defragment(spec, None);
        }
    }
}
