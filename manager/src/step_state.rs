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
use crate::error::Error;
use crate::manager::Manager;
use crate::memory::CacheMemory;
use crate::state::{Open, State};
use crate::update::copy;

impl Manager {
    pub(crate) fn plan_step(&mut self, appends: &[Append<'_>]) -> Result<(), Error> {
        self.check_closed()?;
        self.state.prepare_update();
        let planned = self.state.plan_step(appends);
        if let Err(error) = planned.and_then(|()| self.tensors.fill(&self.state, appends)) {
            self.state.rollback(|_| false);
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
        self.state.rollback(written);
        self.state.settle();
        self.tensors.forget_rows();
        self.open = None;
    }

    pub(crate) fn apply(&mut self, memory: &mut (impl CacheMemory + ?Sized)) -> Result<(), Error> {
        self.drain(memory)?;
        let moved = self.load_blocks(memory).and_then(|()| copy(memory, &self.state.plan.copies));
        if moved.is_err() {
            let (page_size, plan) = (self.state.page_size(), &self.state.plan);
            let copied = plan.copies.iter().map(|copy| (copy.dst / page_size) as u32);
            let written: HashSet<u32> = copied.chain(plan.loads.iter().map(|load| load.0)).collect();
            self.rollback(|page| written.contains(&page));
        }
        self.state.plan.loads.clear();
        moved
    }

    /// Writes the blocks that the step has found in the store to their pages.
    fn load_blocks(&mut self, memory: &mut (impl CacheMemory + ?Sized)) -> Result<(), Error> {
        let page_size = self.state.page_size();
        self.state.plan.loads.iter().try_for_each(|(page, block)| {
            let slots: Vec<usize> = (*page as usize * page_size..).take(page_size).collect();
            blocks::load(block, &slots, memory)
        })
    }

    /// Runs what is queued, before the memory writes for the open step, which an error rolls back.
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

    pub(crate) fn commit(&mut self) {
        self.state.commit();
        self.open = None;
        self.state.trim_windows();
        let state = &mut self.state;
        self.prefix_hits += state.plan.entries.iter().map(|entry| entry.cached).sum::<usize>();
        if let Some(blocks) = &mut state.blocks {
            blocks.forget_found();
        }
        if let Some(threshold) = state.spec.defrag_threshold()
            && state.pages.any_freed()
            && state.fragmentation() > threshold
        {
            state.defragment(None);
        }
    }
}
