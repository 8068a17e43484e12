//! The manager: sequences come and go, are edited, and steps append to them.

use std::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;

use kvcache_kernels::RowCopy;

use crate::error::Error;
use crate::memory::CacheMemory;
use crate::memory::blocks::{Blocks, rows_of_a_block};
use crate::memory::store::BlockStore;
use crate::sequences::SeqId;
use crate::sequences::edit::ContextShift;
use crate::spec::{CacheSpec, Mode};
use crate::state::{Open, State};
use crate::step::tensors::Tensors;

/// The properties of a new sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Create<'a> {
    /// In the mode `runs`, the cells that its run has at first, if its first append does not need more.
    pub reserve: usize,
    /// It shares prefixes only with sequences of the same salt, which is a part of their SHA-256.
    pub salt: &'a [u8],
}

/// Decides which slots hold the tokens of which sequence. It has metadata only; bytes are moved by a [`CacheMemory`],
/// and by the operator.
///
/// Ranges of positions may have any bounds: a start below 0 is 0, and an end below 0 is infinity.
///
/// Refused without being named below: an id that no sequence has ([`Error::UnknownSeq`]); the use of a sequence whose
/// rows are lost ([`Error::Lost`]) or swapped out ([`Error::Swapped`]); every change while a step is open
/// ([`Error::StepOpen`]).
#[derive(Debug, Clone)]
pub struct Manager {
    pub(crate) state: State,
    pub(crate) open: Option<Open>,
    pub(crate) tensors: Tensors,
    pub(crate) prefix_hits: usize,
}

/// Any range of positions as a half-open one from 0 on.
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
        Self::with_blocks(spec, None)
    }

    /// A manager of an empty cache that also has a store: sequences can be swapped out, and full pages that are
    /// evicted are stored, to be found by prompts of the same tokens later, also by other managers that have the store.
    ///
    /// Blocks are shared by managers whose specifications agree in geometry, types, key form, rope, page size and
    /// fingerprint. Where other models use the store, give a fingerprint of the model.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::Random`].
    pub fn with_store(spec: CacheSpec, store: Arc<dyn BlockStore>) -> Result<Self, Error> {
        let blocks = Blocks::new(&spec, rows_of_a_block(&spec), store)?;
        Self::with_blocks(spec, Some(blocks))
    }

    fn with_blocks(spec: CacheSpec, blocks: Option<Blocks>) -> Result<Self, Error> {
        Ok(Self { state: State::new(spec, blocks)?, open: None, tensors: Tensors::default(), prefix_hits: 0 })
    }

    /// The specification of the cache that it manages.
    pub fn spec(&self) -> &CacheSpec {
        &self.state.spec
    }

    /// Refuses a change while a step is open. Every change begins with it, since it also finds the sequences that a
    /// memory may have damaged when it panicked in an update.
    pub(crate) fn check_closed(&mut self) -> Result<(), Error> {
        if self.open.is_some() {
            return Err(Error::StepOpen);
        }
        self.state.settle();
        Ok(())
    }

    /// The blocks of a manager that has a store.
    pub(crate) fn blocks(&mut self) -> Result<&mut Blocks, Error> {
        self.state.blocks.as_mut().ok_or(Error::NoTiers)
    }

    /// An edit: all of it, or nothing.
    pub(crate) fn edit<T>(&mut self, edit: impl FnOnce(&mut State) -> Result<T, Error>) -> Result<T, Error> {
        self.check_closed()?;
        self.state.begin();
        let edited = edit(&mut self.state);
        match edited {
            Ok(_) => self.state.commit(),
            Err(_) => self.state.rollback(|_| false),
        }
        edited
    }

    /// A new sequence without rows, reserve and salt. Also while a step is open that was detached: it is in no step.
    pub fn create(&mut self) -> SeqId {
        self.create_with(&Create::default())
    }

    /// A new sequence without rows.
    pub fn create_with(&mut self, create: &Create<'_>) -> SeqId {
        let sequence = self.state.new_sequence(Arc::from(create.salt), create.reserve);
        self.state.sequences.insert(sequence)
    }

    /// A new sequence with the rows of another, its salt, and the number of its updates. No bytes move but in the mode
    /// `runs`: pages and cells are shared until one of the two writes or edits them.
    ///
    /// # Errors
    /// In the mode `runs` [`Error::NoSlot`].
    pub fn fork(&mut self, seq: SeqId) -> Result<SeqId, Error> {
        self.edit(|state| state.fork(seq))
    }

    /// Removes a sequence. Pages that no other sequence has are free, or stay cached for prompts that begin with the
    /// same tokens.
    pub fn free(&mut self, seq: SeqId) -> Result<(), Error> {
        self.check_closed()?;
        self.state.free(seq)?;
        self.delete_dropped();
        Ok(())
    }

    /// Removes the rows whose positions are in a range, of a sequence or of all that are not lost (`None`): the tokens
    /// of a draft that were rejected, say. Returns how many they were. Those that are left keep their positions, and
    /// close up: `start_pos` and the slots of later rows change. At the end of a sequence nothing moves; elsewhere as
    /// few rows as the mode allows, by copies that [`update`](Self::update) or the next step makes.
    ///
    /// # Errors
    /// [`Error::WindowLost`]; where shared pages have to be copied [`Error::OutOfPages`].
    pub fn seq_rm(&mut self, seq: impl Into<Option<SeqId>>, range: impl RangeBounds<i64>) -> Result<usize, Error> {
        let range = positions(range);
        match seq.into() {
            Some(seq) => self.edit(|state| state.remove_positions(seq, range)),
            None => self.edit(|state| {
                let intact = state.sequences.iter().filter(|(_, sequence)| !sequence.lost);
                let seqs: Vec<SeqId> = intact.map(|(seq, _)| seq).collect();
                seqs.into_iter().try_fold(0, |rows, seq| Ok(rows + state.remove_positions(seq, range.clone())?))
            }),
        }
    }

    /// Copies the rows of `src` whose positions are in a range to `dst`, which has no rows. Returns how many they are.
    /// They are shared in the mode `cells`, and with pages from row 0 on; else they are copied.
    ///
    /// # Errors
    /// [`Error::NotEmpty`], [`Error::OutOfPages`], [`Error::NoSlot`].
    pub fn seq_cp(&mut self, src: SeqId, dst: SeqId, range: impl RangeBounds<i64>) -> Result<usize, Error> {
        self.edit(|state| state.copy_positions(src, dst, positions(range)))
    }

    /// Empties all other sequences. They stay, without rows.
    pub fn seq_keep(&mut self, seq: SeqId) -> Result<(), Error> {
        self.check_closed()?;
        self.state.intact(seq)?;
        self.state.keep(seq);
        self.delete_dropped();
        Ok(())
    }

    /// Adds `delta` to the positions in a range. Rows that would come below 0 are removed. Keys that are stored rotated
    /// are pending: [`update`](Self::update) or the next step rotates them, each row once whatever was added. Rows that
    /// others have are copied first.
    ///
    /// # Errors
    /// [`Error::NotShiftable`], [`Error::ShiftLimit`], [`Error::PositionOverflow`], [`Error::PositionOrder`] where
    /// positions would fall along the rows, [`Error::OutOfPages`], [`Error::NoSlot`].
    pub fn seq_add(&mut self, seq: SeqId, range: impl RangeBounds<i64>, delta: i64) -> Result<(), Error> {
        self.edit(|state| state.add_to_positions(seq, positions(range), delta))?;
        self.state.pages.settle_head();
        Ok(())
    }

    /// Divides the positions in a range, rounding down. Rows move, and keys are rotated, as after
    /// [`seq_add`](Self::seq_add).
    ///
    /// # Errors
    /// [`Error::Range`] for a divisor below 1, and as [`seq_add`](Self::seq_add).
    pub fn seq_div(&mut self, seq: SeqId, range: impl RangeBounds<i64>, divisor: i64) -> Result<(), Error> {
        self.edit(|state| state.divide_positions(seq, positions(range), divisor))
    }

    /// Makes room for a conversation that outgrows its context, if it does: removes positions after those to keep and
    /// moves the rest down. Returns how many were discarded; 0 where there is room. What follows is not what a new
    /// prefill would give, only cheaper.
    ///
    /// # Errors
    /// [`Error::Range`], [`Error::NoProgress`], and as [`seq_rm`](Self::seq_rm) and [`seq_add`](Self::seq_add).
    pub fn context_shift(&mut self, seq: SeqId, shift: &ContextShift) -> Result<i64, Error> {
        self.edit(|state| state.context_shift(seq, shift))
    }

    /// Self-extend: lets a model see beyond the context that it was trained for, by giving neighboring tokens that are
    /// far behind one position. Where `ga_w` positions or more are not grouped yet, every `ga_n` of these become one, a
    /// whole number of `ga_w` at a time; later ones move down. Returns the position of the next token. No rows are
    /// freed. To be called before each step; how far the groups go is kept with the sequence.
    ///
    /// # Errors
    /// [`Error::Range`], [`Error::GroupWidth`], and as [`seq_div`](Self::seq_div).
    pub fn self_extend(&mut self, seq: SeqId, ga_n: i64, ga_w: i64) -> Result<i64, Error> {
        self.edit(|state| state.self_extend(seq, ga_n, ga_w))
    }

    /// Moves rows together: cells into the first holes, runs and pages down. Returns the copies, at most `max_moves`,
    /// that [`update`](Self::update) or the next step makes.
    pub fn defrag(&mut self, max_moves: Option<usize>) -> Result<Vec<RowCopy>, Error> {
        self.check_closed()?;
        Ok(self.state.defragment(max_moves))
    }

    /// Moves the highest page that is used to the lowest free one below it, `pages` times at most. Returns the copies,
    /// as [`defrag`](Self::defrag). In other modes than pages there is nothing to do.
    pub fn compact(&mut self, pages: usize) -> Result<Vec<RowCopy>, Error> {
        self.check_closed()?;
        match self.spec().mode {
            Mode::Paged { .. } => Ok(self.state.compact(pages)),
            Mode::Runs | Mode::Cells => Ok(Vec::new()),
        }
    }

    /// Runs queued copies, then rotates pending keys. A step does so by itself.
    ///
    /// # Errors
    /// [`Error::Memory`]: the sequences whose rows may be damaged are [lost](Error::Lost) then.
    ///
    /// # Panics
    /// If the memory does. Sequences are then lost as well.
    pub fn update(&mut self, memory: &mut (impl CacheMemory + ?Sized)) -> Result<(), Error> {
        self.check_closed()?;
        self.state.prepare_update();
        let updated = self.state.update(memory);
        self.state.settle();
        updated
    }
}

/// Equal in all that later operations depend on: the specification, the sequences with their rows, pages and positions,
/// the free pages and the cached ones in the order in which they will be taken.
impl PartialEq for Manager {
    fn eq(&self, other: &Self) -> bool {
        self.state == other.state && self.open == other.open && self.prefix_hits == other.prefix_hits
    }
}
