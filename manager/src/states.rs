//! The states of recurrent layers, as Mamba and RWKV have them: a row a sequence, which every step replaces.

use std::collections::HashMap;
use std::ops::{Range, RangeBounds};

use slotmap::SlotMap;

use crate::error::Error;
use crate::manager::positions;
use crate::sequences::SeqId;
use crate::sequences::positions::MAX_POSITION;
use crate::step::{OpenStep, Stepped};

#[derive(Debug, Clone, Default)]
struct State {
    /// The cell that has it; before the first token none has.
    tail: Option<usize>,
    /// The position after its last token.
    next: i64,
    /// A step that wrote its cell was rolled back.
    lost: bool,
}

/// A part of a step in which every sequence has equally many tokens, run before the next part.
///
/// A graph reads the cell `src[i]` as the state of `seqs[i]` before these tokens, zeros for -1, and writes the state
/// after them into cell `dst[i]`. It reads all cells before it writes one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateSplit {
    /// The sequences.
    pub seqs: Vec<SeqId>,
    /// The tokens of each.
    pub n_each: usize,
    /// By sequence: the cell to read, or -1.
    pub src: Vec<i64>,
    /// By sequence: the cell to write.
    pub dst: Vec<i64>,
}

/// What an open step will have changed.
#[derive(Debug, Clone)]
struct Open {
    splits: Vec<StateSplit>,
    /// The sequences, their new cells, and how many tokens they get.
    moves: Vec<(SeqId, usize, usize)>,
}

/// Decides which cells hold the states of which sequences. It has metadata only: cell i is row i of the caller's
/// memory, `row_bytes` of any type.
///
/// Sequences are named by the ids of a [`Manager`](crate::Manager), whose layers of attention the same model has, or by
/// ids of its own. A fork has the state of the other until one of the two is written. As long as a cell is free for
/// each sequence of a step, states are written into free cells, and a rollback restores them; without, they are written
/// where they are, and a rollback loses them.
///
/// Refused without being named below: an id that no sequence has ([`Error::UnknownSeq`]), one whose state is lost
/// ([`Error::Lost`]), and every change while a step is open ([`Error::StepOpen`]).
#[derive(Debug, Clone)]
pub struct StateCache {
    row_bytes: usize,
    own: SlotMap<SeqId, ()>,
    states: HashMap<SeqId, State>,
    /// By cell: how many sequences have it.
    owners: Vec<u32>,
    open: Option<Open>,
}

impl StateCache {
    /// Cells for the states of `size` sequences, each of `row_bytes`.
    ///
    /// # Errors
    /// [`Error::SpecRange`] for a number below 1 or bytes that cannot be counted; [`Error::OutOfMemory`].
    pub fn new(size: usize, row_bytes: usize) -> Result<Self, Error> {
        let most = (isize::MAX as usize).checked_div(row_bytes).unwrap_or(usize::MAX);
        for (name, got, max) in [("row_bytes", row_bytes, isize::MAX as usize), ("size", size, most)] {
            Error::check_spec(name, got, 1, max)?;
        }
        let owners = crate::slots::bits::zeros(size)?;
        Ok(Self { row_bytes, own: SlotMap::with_key(), states: HashMap::new(), owners, open: None })
    }

    /// The cells, which are also the most sequences.
    pub fn size(&self) -> usize {
        self.owners.len()
    }

    /// The bytes of all cells.
    pub fn nbytes(&self) -> usize {
        self.size() * self.row_bytes
    }

    /// Adds a sequence without tokens, under this id, or under one that no sequence here has.
    ///
    /// # Errors
    /// [`Error::KnownSeq`]; [`Error::NoSlot`] for one more than there are cells.
    pub fn create(&mut self, seq: Option<SeqId>) -> Result<SeqId, Error> {
        self.insert(seq, State::default())
    }

    /// Adds a sequence, as [`create`](Self::create), with the state of another. No bytes move.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn fork(&mut self, src: SeqId, seq: Option<SeqId>) -> Result<SeqId, Error> {
        let state = self.intact(src)?.clone();
        let tail = state.tail;
        let seq = self.insert(seq, state)?;
        tail.into_iter().for_each(|cell| self.owners[cell] += 1);
        Ok(seq)
    }

    fn insert(&mut self, seq: Option<SeqId>, state: State) -> Result<SeqId, Error> {
        self.check_closed()?;
        if let Some(seq) = seq.filter(|seq| self.states.contains_key(seq)) {
            return Err(Error::KnownSeq { seq });
        }
        if self.states.len() >= self.size() {
            return Err(Error::NoSlot { need: 1, largest: 0, free: 0 });
        }
        let mut seq = seq.unwrap_or_else(|| self.own.insert(()));
        // An own id may equal a manager's id that is here.
        while self.states.contains_key(&seq) {
            seq = self.own.insert(());
        }
        self.states.insert(seq, state);
        Ok(seq)
    }

    /// Removes a sequence.
    pub fn free(&mut self, seq: SeqId) -> Result<(), Error> {
        self.empty(seq)?;
        self.states.remove(&seq);
        self.own.remove(seq);
        Ok(())
    }

    /// The cell with a sequence's state; none before its first token.
    pub fn tail(&self, seq: SeqId) -> Result<Option<usize>, Error> {
        Ok(self.intact(seq)?.tail)
    }

    /// The position of a sequence's last token; none before its first token.
    pub fn pos_max(&self, seq: SeqId) -> Result<Option<i64>, Error> {
        let State { tail, next, .. } = *self.intact(seq)?;
        Ok(tail.map(|_| next - 1))
    }

    /// Removes the tokens whose positions are in a range. A state has all of them or none: where only some would go
    /// nothing changes. All of a state that is lost may go.
    ///
    /// # Errors
    /// [`Error::PartialState`].
    pub fn seq_rm(&mut self, seq: SeqId, range: impl RangeBounds<i64>) -> Result<(), Error> {
        self.check_closed()?;
        let Range { start: p0, end: p1 } = positions(range);
        let State { next, lost, .. } = *self.known(seq)?;
        if p0 >= p1 || (p0 >= next && !lost) {
            return Ok(());
        }
        if p0 > 0 || p1 < next {
            self.intact(seq)?;
            return Err(Error::PartialState { pos: next - 1, p0, p1 });
        }
        self.empty(seq)
    }

    /// Adds to the position of a sequence's last token, where it is in a range. Below 0 its state is removed.
    ///
    /// # Errors
    /// [`Error::PositionOverflow`].
    pub fn seq_add(&mut self, seq: SeqId, range: impl RangeBounds<i64>, delta: i64) -> Result<(), Error> {
        self.move_to(seq, range, |pos| pos.saturating_add(delta))
    }

    /// Divides the position of a sequence's last token, where it is in a range.
    ///
    /// # Errors
    /// [`Error::Range`] for a divisor below 1, and as [`seq_add`](Self::seq_add).
    pub fn seq_div(&mut self, seq: SeqId, range: impl RangeBounds<i64>, divisor: i64) -> Result<(), Error> {
        Error::check_range("d", divisor, 1, i64::MAX)?;
        self.move_to(seq, range, |pos| pos / divisor)
    }

    /// Opens a step that appends tokens to sequences: all of them, or none.
    ///
    /// # Errors
    /// [`Error::EmptyAppend`], [`Error::DuplicateSeq`], [`Error::PositionOverflow`].
    pub fn begin_step(&mut self, appends: &[(SeqId, usize)]) -> Result<StateStep<'_>, Error> {
        self.check_closed()?;
        let mut first = HashMap::with_capacity(appends.len());
        for (append, &(seq, n)) in appends.iter().enumerate() {
            let next = self.intact(seq)?.next;
            if n == 0 {
                return Err(Error::EmptyAppend { append });
            }
            if let Some(other) = first.insert(seq, append) {
                return Err(Error::DuplicateSeq { append, other });
            }
            if i64::try_from(n).ok().and_then(|n| next.checked_add(n)).is_none_or(|next| next - 1 > MAX_POSITION) {
                return Err(Error::PositionOverflow { append: Some(append), first: next, n, max: MAX_POSITION });
            }
        }
        let cells = self.cells(appends);
        self.open = Some(Open {
            splits: self.splits(appends, &cells),
            moves: appends.iter().zip(cells).map(|(&(seq, n), cell)| (seq, cell, n)).collect(),
        });
        Ok(OpenStep(self))
    }

    /// The step that was [detached](StateStep::detach).
    pub fn open_step(&mut self) -> Option<StateStep<'_>> {
        if self.open.is_some() { Some(OpenStep(self)) } else { None }
    }

    /// The cells that a step writes: free ones for those without a cell of their own, then for others while there are.
    fn cells(&self, appends: &[(SeqId, usize)]) -> Vec<usize> {
        let tail = |seq: &SeqId| self.states[seq].tail;
        let mut owners = self.owners.clone();
        let mut free = (0..self.size()).filter(|&cell| self.owners[cell] == 0);
        let mut cells: Vec<_> = appends
            .iter()
            .map(|(seq, _)| match tail(seq) {
                Some(cell) if owners[cell] == 1 => None,
                shared => {
                    shared.into_iter().for_each(|cell| owners[cell] -= 1);
                    free.next()
                }
            })
            .collect();
        // Sequences are no more than cells. So one without a cell of its own, or with others, finds a free one.
        cells.iter_mut().zip(appends).for_each(|(cell, (seq, _))| *cell = cell.or_else(|| free.next()).or(tail(seq)));
        cells.into_iter().flatten().collect()
    }

    /// The parts of a step: each has as many tokens of every sequence that has some left as the least has left.
    fn splits(&self, appends: &[(SeqId, usize)], cells: &[usize]) -> Vec<StateSplit> {
        let number = |cell: Option<usize>| cell.map_or(-1, |cell| cell as i64);
        let mut ends: Vec<_> = appends.iter().map(|&(_, n)| n).collect();
        ends.sort_unstable();
        ends.dedup();
        let mut done = 0;
        let split = |end| {
            let begun = std::mem::replace(&mut done, end);
            let rest = || appends.iter().zip(cells).filter(move |((_, n), _)| *n >= end);
            let src = |&((seq, _), &cell): &(&(SeqId, usize), &usize)| {
                number(if begun == 0 { self.states[seq].tail } else { Some(cell) })
            };
            StateSplit {
                seqs: rest().map(|(&(seq, _), _)| seq).collect(),
                n_each: end - begun,
                src: rest().map(|entry| src(&entry)).collect(),
                dst: rest().map(|(_, &cell)| number(Some(cell))).collect(),
            }
        };
        ends.into_iter().map(split).collect()
    }

    fn check_closed(&self) -> Result<(), Error> {
        if self.open.is_some() { Err(Error::StepOpen) } else { Ok(()) }
    }

    fn known(&self, seq: SeqId) -> Result<&State, Error> {
        self.states.get(&seq).ok_or(Error::UnknownSeq { seq })
    }

    fn intact(&self, seq: SeqId) -> Result<&State, Error> {
        self.known(seq).and_then(|state| if state.lost { Err(Error::Lost { seq }) } else { Ok(state) })
    }

    fn empty(&mut self, seq: SeqId) -> Result<(), Error> {
        self.check_closed()?;
        let state = self.states.get_mut(&seq).ok_or(Error::UnknownSeq { seq })?;
        let emptied = std::mem::take(state);
        emptied.tail.into_iter().for_each(|cell| self.owners[cell] -= 1);
        Ok(())
    }

    fn move_to(
        &mut self,
        seq: SeqId,
        range: impl RangeBounds<i64>,
        moved: impl FnOnce(i64) -> i64,
    ) -> Result<(), Error> {
        self.check_closed()?;
        let Some(pos) = self.pos_max(seq)?.filter(|pos| positions(range).contains(pos)) else {
            return Ok(());
        };
        match moved(pos) {
            first if first > MAX_POSITION => {
                Err(Error::PositionOverflow { append: None, first, n: 1, max: MAX_POSITION })
            }
            pos if pos < 0 => self.empty(seq),
            pos => {
                self.states.entry(seq).and_modify(|state| state.next = pos + 1);
                Ok(())
            }
        }
    }
}

/// A step of recurrent states. Rolled back, the sequences whose cells it wrote are [lost](Error::Lost), and the others
/// have the states that they had.
pub type StateStep<'c> = OpenStep<'c, StateCache>;

impl StateStep<'_> {
    /// Its parts, in the order in which they are run.
    pub fn splits(&self) -> &[StateSplit] {
        self.0.open.as_ref().map_or(&[], |open| &open.splits)
    }

    /// Ends the step: its sequences have the states that it has written.
    pub fn commit(self) {
        let StateCache { open, states, owners, .. } = &mut *self.0;
        for (seq, cell, n) in open.take().into_iter().flat_map(|open| open.moves) {
            let state = states.entry(seq).or_default();
            owners[cell] += 1;
            state.tail.replace(cell).into_iter().for_each(|before| owners[before] -= 1);
            state.next += n as i64; // checked when it was opened
        }
    }
}

impl Stepped for StateCache {
    fn rollback_open_step(&mut self) {
        let Self { open, states, .. } = self;
        let written: Vec<_> = open.take().into_iter().flat_map(|open| open.moves).map(|(_, cell, _)| cell).collect();
        for state in states.values_mut() {
            state.lost |= state.tail.is_some_and(|cell| written.contains(&cell));
        }
    }
}
