//! The manager: sequences come and go, steps append to them.

use crate::append::Append;
use crate::error::Error;
use crate::journal::Journal;
use crate::memory::CacheMemory;
use crate::plan::{Plan, Planner};
use crate::prefix;
use crate::seq_id::SeqId;
use crate::sequence::Sequence;
use crate::spec::CacheSpec;
use crate::state::State;
use crate::tensors::Tensors;

/// How far an open step is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    Planned,
    Applied,
}

/// Decides which slots hold the tokens of which sequence. It has metadata only; bytes are moved by a [`CacheMemory`],
/// and by the operator.
#[derive(Debug, Clone)]
pub struct Manager {
    spec: CacheSpec,
    pub(crate) state: State,
    open: Option<Open>,
    journal: Journal,
    plan: Plan,
    tensors: Tensors,
    prefix_hits: usize,
}

impl Manager {
    /// A manager of an empty cache.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn new(spec: CacheSpec) -> Result<Self, Error> {
        Ok(Self {
            state: State::new(spec.num_pages(), spec.page_size())?,
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

    fn check_closed(&self) -> Result<(), Error> {
        if self.open.is_some() { Err(Error::StepOpen) } else { Ok(()) }
    }

    /// A new sequence without rows.
    ///
    /// # Errors
    /// [`Error::StepOpen`].
    pub fn create(&mut self) -> Result<SeqId, Error> {
        self.create_salted(&[])
    }

    /// A new sequence without rows, which shares prefixes only with sequences of the same salt. Salts are compared by a
    /// hash that does not resist made-up collisions: they are no barrier against an attacker.
    ///
    /// # Errors
    /// [`Error::StepOpen`].
    pub fn create_salted(&mut self, salt: &[u8]) -> Result<SeqId, Error> {
        self.check_closed()?;
        Ok(self.state.sequences.insert(Sequence::new(prefix::root(self.spec.fingerprint(), salt))))
    }

    /// A new sequence with the rows of another. No bytes move: pages are shared until one of the two writes.
    ///
    /// # Errors
    /// [`Error::StepOpen`], [`Error::UnknownSeq`].
    pub fn fork(&mut self, seq: SeqId) -> Result<SeqId, Error> {
        self.check_closed()?;
        self.state.fork(seq)
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

    /// Removes the rows of a sequence from position `p0` on: the tokens of a draft that were rejected, say. Gives how
    /// many they were. No bytes move; pages that no other sequence has are free or cached, as by [`free`](Self::free).
    ///
    /// # Errors
    /// [`Error::StepOpen`], [`Error::UnknownSeq`].
    pub fn truncate(&mut self, seq: SeqId, p0: i64) -> Result<usize, Error> {
        self.check_closed()?;
        self.state.truncate(seq, p0, self.spec.page_size())
    }

    /// Empties all other sequences. They stay, without rows.
    ///
    /// # Errors
    /// [`Error::StepOpen`], [`Error::UnknownSeq`].
    pub fn seq_keep(&mut self, seq: SeqId) -> Result<(), Error> {
        self.check_closed()?;
        self.state.keep(seq, self.spec.page_size())
    }

    /// The rows of a sequence.
    ///
    /// # Errors
    /// [`Error::UnknownSeq`].
    pub fn seq_len(&self, seq: SeqId) -> Result<usize, Error> {
        Ok(self.state.sequence(seq)?.len)
    }

    /// The first position of a sequence; none if it is empty.
    ///
    /// # Errors
    /// [`Error::UnknownSeq`].
    pub fn pos_min(&self, seq: SeqId) -> Result<Option<i64>, Error> {
        Ok(self.state.sequence(seq)?.first_position())
    }

    /// The last position of a sequence; none if it is empty.
    ///
    /// # Errors
    /// [`Error::UnknownSeq`].
    pub fn pos_max(&self, seq: SeqId) -> Result<Option<i64>, Error> {
        let sequence = self.state.sequence(seq)?;
        Ok((sequence.len > 0).then(|| sequence.next_position() - 1))
    }

    /// The positions of a sequence's rows.
    ///
    /// # Errors
    /// [`Error::UnknownSeq`].
    pub fn positions(&self, seq: SeqId) -> Result<impl Iterator<Item = i64>, Error> {
        Ok(self.state.sequence(seq)?.positions())
    }

    /// The slots of a sequence's rows.
    ///
    /// # Errors
    /// [`Error::UnknownSeq`].
    pub fn slots(&self, seq: SeqId) -> Result<impl Iterator<Item = usize>, Error> {
        let sequence = self.state.sequence(seq)?;
        let page_size = self.spec.page_size();
        Ok((0..sequence.len).map(move |row| sequence.table[row / page_size] as usize * page_size + row % page_size))
    }

    /// Rows that were found in the prefix index instead of computed, since the manager was made.
    pub fn prefix_hits(&self) -> usize {
        self.prefix_hits
    }

    /// Plans a step, and opens it.
    pub(crate) fn plan_step(&mut self, appends: &[Append<'_>]) -> Result<(), Error> {
        self.check_closed()?;
        let Self { spec, state, journal, plan, .. } = self;
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

    fn rollback(&mut self, written: impl FnMut(u32) -> bool) {
        self.journal.rollback(&mut self.state, written);
        self.tensors.forget_rows();
        self.open = None;
    }

    pub(crate) fn apply(&mut self, memory: &mut (impl CacheMemory + ?Sized)) -> Result<(), Error> {
        // Before the first copy: where the memory panics, evicted pages may have been overwritten.
        self.open = Some(Open::Applied);
        if let Err(source) = if self.plan.copies.is_empty() { Ok(()) } else { memory.copy_rows(&self.plan.copies) } {
            let (written, page_size) = (std::mem::take(&mut self.plan.copies), self.spec.page_size());
            self.rollback(|page| written.iter().any(|copy| copy.dst / page_size == page as usize));
            return Err(Error::Memory { source });
        }
        Ok(())
    }

    pub(crate) fn commit(&mut self) {
        self.journal.commit(&mut self.state);
        self.prefix_hits += self.plan.entries.iter().map(|entry| entry.cached).sum::<usize>();
        self.open = None;
    }

    pub(crate) fn tensors(&self) -> &Tensors {
        &self.tensors
    }

    pub(crate) fn key_positions_into(&self, positions: &mut Vec<i64>) {
        positions.clear();
        for entry in &self.plan.entries {
            positions.extend(self.state.sequences[entry.seq].positions());
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
