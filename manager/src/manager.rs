//! The manager: sequences come and go, are edited, and steps append to them.

use std::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;

use kvcache_kernels::RowCopy;

use crate::append::Append;
use crate::edit::{ContextShift, Editor};
use crate::error::Error;
use crate::journal::Journal;
use crate::memory::CacheMemory;
use crate::plan::{Plan, Planner};
use crate::seq_id::SeqId;
use crate::spec::{CacheSpec, Mode};
use crate::state::State;
use crate::tensors::Tensors;

/// How far an open step is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    Planned,
    Applied,
}

/// What a new sequence is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Create<'a> {
    /// In the mode `runs`, the cells that its run has at first, if its first append does not need more.
    pub reserve: usize,
    /// It shares prefixes only with sequences of the same salt. Salts are compared by a hash that does not resist
    /// made-up collisions: they are no barrier against an attacker.
    pub salt: &'a [u8],
}

/// Decides which slots hold the tokens of which sequence. It has metadata only; bytes are moved by a [`CacheMemory`],
/// and by the operator.
///
/// Ranges of positions may have any bounds: a start below 0 is 0, and an end below 0 is infinity.
#[derive(Debug, Clone)]
pub struct Manager {
    spec: CacheSpec,
    pub(crate) state: State,
    open: Option<Open>,
    journal: Journal,
    pub(crate) plan: Plan,
    pub(crate) tensors: Tensors,
    pub(crate) prefix_hits: usize,
}

/// A range of positions as the half-open one that it stands for.
pub(crate) fn positions(range: impl RangeBounds<i64>) -> Range<i64> {
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&last) if last >= 0 => last.saturating_add(1),
        Bound::Excluded(&end) if end >= 0 => end,
        _ => i64::MAX,
    };
    start.max(0)..end
}

impl Manager {
    /// A manager of an empty cache.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn new(spec: CacheSpec) -> Result<Self, Error> {
        Ok(Self {
            state: State::new(&spec)?,
            spec,
            open: None,
            journal: Journal::default(),
            plan: Plan::default(),
            tensors: Tensors::default(),
            prefix_hits: 0,
        })
    }

    /// What it manages.
    pub fn spec(&self) -> &CacheSpec {
        &self.spec
    }

    /// Changes are refused while a step is open. Comes first: it also finds out what a memory that has panicked in an
    /// update may have damaged.
    pub(crate) fn check_closed(&mut self) -> Result<(), Error> {
        if self.open.is_some() {
            return Err(Error::StepOpen);
        }
        self.state.settle(&self.spec);
        Ok(())
    }

    /// An edit: all of it, or nothing.
    fn edit<T>(&mut self, edit: impl FnOnce(&mut Editor<'_>) -> Result<T, Error>) -> Result<T, Error> {
        self.check_closed()?;
        let Self { spec, state, journal, .. } = self;
        let queued = state.queue.len();
        let edited = edit(&mut Editor { spec, state, journal, queued });
        match edited {
            Ok(_) => journal.commit(state),
            Err(_) => {
                journal.rollback(state, |_| false);
                state.queue.truncate(queued);
            }
        }
        edited
    }

    /// A new sequence without rows, reserve and salt. Also while a step is open that was detached: it is in no step.
    pub fn create(&mut self) -> SeqId {
        self.create_with(&Create::default())
    }

    /// A new sequence without rows.
    pub fn create_with(&mut self, create: &Create<'_>) -> SeqId {
        let sequence = self.state.new_sequence(&self.spec, Arc::from(create.salt), create.reserve);
        self.state.sequences.insert(sequence)
    }

    /// A new sequence with the rows of another, its salt, and the number of its updates. No bytes move but in the mode
    /// `runs`: pages and cells are shared until one of the two writes or edits them.
    ///
    /// # Errors
    /// [`Error::StepOpen`], [`Error::UnknownSeq`], [`Error::Lost`]; in the mode `runs` [`Error::NoSlot`].
    pub fn fork(&mut self, seq: SeqId) -> Result<SeqId, Error> {
        self.edit(|editor| editor.fork(seq))
    }

    /// Removes a sequence. Pages that no other sequence has are free, or stay cached for prompts that begin with the
    /// same tokens.
    ///
    /// # Errors
    /// [`Error::StepOpen`], [`Error::UnknownSeq`].
    pub fn free(&mut self, seq: SeqId) -> Result<(), Error> {
        self.check_closed()?;
        self.state.free(seq)
    }

    /// Removes the rows whose positions are in a range, of a sequence or of all that are not lost (`None`): the tokens
    /// of a draft that were rejected, say. Gives how many they were. Those that are left keep their positions, and
    /// close up: `start_pos` and the slots of later rows change. At the end of a sequence nothing moves; elsewhere as
    /// few rows as the mode allows, by copies that [`update`](Self::update) or the next step makes.
    ///
    /// # Errors
    /// [`Error::StepOpen`], [`Error::UnknownSeq`], [`Error::Lost`], [`Error::WindowLost`]; where shared pages have to
    /// be copied [`Error::OutOfPages`].
    pub fn seq_rm(&mut self, seq: impl Into<Option<SeqId>>, range: impl RangeBounds<i64>) -> Result<usize, Error> {
        let range = positions(range);
        match seq.into() {
            Some(seq) => self.edit(|editor| editor.remove_positions(seq, range)),
            None => self.edit(|editor| {
                let intact = editor.state.sequences.iter().filter(|(_, sequence)| !sequence.lost);
                let seqs: Vec<SeqId> = intact.map(|(seq, _)| seq).collect();
                seqs.into_iter().try_fold(0, |rows, seq| Ok(rows + editor.remove_positions(seq, range.clone())?))
            }),
        }
    }

    /// Gives `dst`, which has no rows, those of `src` whose positions are in a range. Gives how many they are. They are
    /// shared in the mode `cells`, and with pages from row 0 on; else they are copied.
    ///
    /// # Errors
    /// [`Error::StepOpen`], [`Error::UnknownSeq`], [`Error::Lost`], [`Error::NotEmpty`], [`Error::OutOfPages`],
    /// [`Error::NoSlot`].
    pub fn seq_cp(&mut self, src: SeqId, dst: SeqId, range: impl RangeBounds<i64>) -> Result<usize, Error> {
        self.edit(|editor| editor.copy_positions(src, dst, positions(range)))
    }

    /// Empties all other sequences. They stay, without rows.
    ///
    /// # Errors
    /// [`Error::StepOpen`], [`Error::UnknownSeq`], [`Error::Lost`].
    pub fn seq_keep(&mut self, seq: SeqId) -> Result<(), Error> {
        self.check_closed()?;
        self.state.intact(seq)?;
        self.state.keep(seq);
        Ok(())
    }

    /// Adds `delta` to the positions in a range. Rows that would come below 0 are removed. Keys that are stored rotated
    /// are pending: [`update`](Self::update) or the next step rotates them, each row once whatever was added. Rows that
    /// others have are copied first.
    ///
    /// # Errors
    /// [`Error::StepOpen`], [`Error::UnknownSeq`], [`Error::Lost`], [`Error::NotShiftable`], [`Error::ShiftLimit`],
    /// [`Error::PositionOverflow`], [`Error::PositionOrder`] where positions would fall along the rows,
    /// [`Error::OutOfPages`], [`Error::NoSlot`].
    pub fn seq_add(&mut self, seq: SeqId, range: impl RangeBounds<i64>, delta: i64) -> Result<(), Error> {
        self.edit(|editor| editor.add(seq, positions(range), delta))?;
        self.state.pages.settle_head();
        Ok(())
    }

    /// Divides the positions in a range, rounding down. Rows move, and keys are rotated, as after
    /// [`seq_add`](Self::seq_add).
    ///
    /// # Errors
    /// [`Error::Range`] for a divisor below 1, and those of [`seq_add`](Self::seq_add).
    pub fn seq_div(&mut self, seq: SeqId, range: impl RangeBounds<i64>, divisor: i64) -> Result<(), Error> {
        self.edit(|editor| editor.divide(seq, positions(range), divisor))
    }

    /// Makes room for a conversation that outgrows its context, if it does: removes positions behind those to keep and
    /// moves the rest down. Gives how many were discarded; 0 where there is room. What follows is not what a new
    /// prefill would give, only cheaper.
    ///
    /// # Errors
    /// [`Error::Range`], [`Error::NoProgress`], and those of [`seq_rm`](Self::seq_rm) and [`seq_add`](Self::seq_add).
    pub fn context_shift(&mut self, seq: SeqId, shift: &ContextShift) -> Result<i64, Error> {
        self.edit(|editor| editor.context_shift(seq, shift))
    }

    /// Self-extend: lets a model see beyond the context that it was trained for, by giving neighboring tokens that are
    /// far behind one position. Where `ga_w` positions or more are not grouped yet, every `ga_n` of these become one, a
    /// whole number of `ga_w` at a time; those behind them move down. Gives the position of the next token. No rows are
    /// freed. To be called before each step; how far the groups go is kept with the sequence.
    ///
    /// # Errors
    /// [`Error::Range`], [`Error::GroupWidth`], [`Error::StepOpen`], [`Error::UnknownSeq`], [`Error::Lost`],
    /// [`Error::NotShiftable`], [`Error::ShiftLimit`], [`Error::OutOfPages`], [`Error::NoSlot`].
    pub fn self_extend(&mut self, seq: SeqId, ga_n: i64, ga_w: i64) -> Result<i64, Error> {
        self.edit(|editor| editor.self_extend(seq, ga_n, ga_w))
    }

    /// Moves rows together: cells into the first holes, runs and pages down. Gives the copies, at most `max_moves`,
    /// that [`update`](Self::update) or the next step makes.
    ///
    /// # Errors
    /// [`Error::StepOpen`].
    pub fn defrag(&mut self, max_moves: Option<usize>) -> Result<Vec<RowCopy>, Error> {
        self.check_closed()?;
        Ok(self.state.defragment(&self.spec, max_moves))
    }

    /// Moves the highest page that is used to the lowest free one below it, `pages` times at most. Gives the copies, as
    /// [`defrag`](Self::defrag). In other modes than pages there is nothing to do.
    ///
    /// # Errors
    /// [`Error::StepOpen`].
    pub fn compact(&mut self, pages: usize) -> Result<Vec<RowCopy>, Error> {
        self.check_closed()?;
        match self.spec.mode() {
            Mode::Paged { .. } => Ok(self.state.compact(&self.spec, pages)),
            Mode::Runs | Mode::Cells => Ok(Vec::new()),
        }
    }

    /// Has the memory make the copies that are queued, then rotate the keys that are pending. A step does so by itself.
    ///
    /// # Errors
    /// [`Error::StepOpen`]; [`Error::Memory`]: the sequences whose rows may be damaged are [lost](Error::Lost) then.
    ///
    /// # Panics
    /// If the memory does. Sequences are lost then, too.
    pub fn update(&mut self, memory: &mut (impl CacheMemory + ?Sized)) -> Result<(), Error> {
        self.check_closed()?;
        self.state.prepare_update(&self.spec);
        let updated = self.state.update(&self.spec, memory);
        self.state.settle(&self.spec);
        updated
    }

    /// Plans a step, and opens it.
    pub(crate) fn plan_step(&mut self, appends: &[Append<'_>]) -> Result<(), Error> {
        self.check_closed()?;
        let Self { spec, state, journal, plan, .. } = self;
        state.prepare_update(spec);
        let planned = (Planner { spec, state, journal, plan }).plan(appends);
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

    /// Whether a step is open.
    pub(crate) fn is_applied(&self) -> bool {
        self.open == Some(Open::Applied)
    }

    fn rollback(&mut self, written: impl FnMut(u32) -> bool) {
        self.journal.rollback(&mut self.state, written);
        self.state.settle(&self.spec);
        self.tensors.forget_rows();
        self.open = None;
    }

    pub(crate) fn apply(&mut self, memory: &mut (impl CacheMemory + ?Sized)) -> Result<(), Error> {
        self.drain(memory)?;
        if let Err(source) = if self.plan.copies.is_empty() { Ok(()) } else { memory.copy_rows(&self.plan.copies) } {
            let (written, page_size) = (std::mem::take(&mut self.plan.copies), self.spec.page_size());
            self.rollback(|page| written.iter().any(|copy| copy.dst / page_size == page as usize));
            return Err(Error::Memory { source });
        }
        Ok(())
    }

    /// Has the memory make what is queued, before it writes for what is open. After an error that is rolled back.
    pub(crate) fn drain(&mut self, memory: &mut (impl CacheMemory + ?Sized)) -> Result<(), Error> {
        // What an update rotates was live before the plan; pages that its copies were to write when they failed leave the
        // prefix index when it is settled.
        if let Err(error) = self.state.update(&self.spec, memory) {
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
        let Self { spec, state, journal, plan, .. } = self;
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

/// Equal in all that later operations depend on: the specification, the sequences with their rows, pages and positions,
/// the free pages and the cached ones in the order in which they will be taken.
impl PartialEq for Manager {
    fn eq(&self, other: &Self) -> bool {
        self.spec == other.spec
            && self.state == other.state
            && self.open == other.open
            && self.prefix_hits == other.prefix_hits
    }
}
