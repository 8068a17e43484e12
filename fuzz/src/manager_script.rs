//! Scripts of operations in every mode: after each, invariants hold, and every sequence has the rows that a model says,
//! in the cache too; what is refused changes nothing, and what is saved can be loaded.

use std::path::PathBuf;

use arbitrary::{Arbitrary, Unstructured};
use kvcache_manager::{Append, ContextShift, Create, Error, MAX_POSITION, Manager, Mode, SeqId};

use crate::manager::{Slots, directory};
use crate::manager_model::{Model, New};
use crate::manager_operation::{Count, End, Failure, Managed, Operation, Position, Rows, Start};
use crate::tally;

/// The most operations of a script.
const OPERATIONS: usize = 60;

/// What operations go on.
struct Run {
    managed: Managed,
    manager: Manager,
    memory: Slots,
    model: Model,
    /// All that there were.
    seqs: Vec<SeqId>,
}

impl Run {
    /// The sequence that a number names: mostly one that there is, else one that there was, or never.
    fn seq(&self, i: u8) -> SeqId {
        let (i, live) = (usize::from(i), self.model.seqs().len());
        let seq = match live {
            1.. if i < 240 => self.model.seqs().nth(i % live),
            _ => self.seqs.get(i % (self.seqs.len() + 1)).copied(),
        };
        seq.unwrap_or_default()
    }

    /// Whether positions would not be in order, or too large, after an operation that is refused for that.
    fn is_due(&self, operation: &Operation, error: &Error) -> bool {
        let is_order = matches!(error, Error::PositionOrder { .. });
        if !is_order && !matches!(error, Error::PositionOverflow { .. }) {
            return true;
        }
        let mut model = self.model.clone();
        let positions = match *operation {
            Operation::Add(seq, p0, p1, delta) => {
                model.add(self.seq(seq), p0.get()..p1.get(), delta.get());
                model.positions(self.seq(seq))
            }
            Operation::Divide(seq, p0, p1, divisor) => {
                model.divide(self.seq(seq), p0.get()..p1.get(), divisor.get());
                model.positions(self.seq(seq))
            }
            Operation::Shift(seq, ..) => model.positions(self.seq(seq)),
            _ => return true,
        };
        if is_order { !positions.is_sorted() } else { positions.iter().any(|&position| position > MAX_POSITION) }
    }

    /// Has the manager use its memory, of which a call may fail.
    fn with_memory<T>(&mut self, fails: Failure, operate: impl FnOnce(&mut Manager, &mut Slots) -> T) -> T {
        self.memory.fails_after = fails.get();
        let done = operate(&mut self.manager, &mut self.memory);
        self.memory.fails_after = None;
        done
    }

    fn operate(&mut self, operation: &Operation) -> Result<(), Error> {
        match *operation {
            Operation::Create { reserve, salt } => {
                let salt = &[salt % 8; 2][..usize::from(salt.saturating_sub(127) % 3)];
                self.create(&Create { reserve: reserve.get(), salt });
            }
            Operation::Free(seq) => {
                self.manager.free(self.seq(seq))?;
                self.model.free(self.seq(seq));
            }
            Operation::Fork(src) => {
                let forked = self.manager.fork(self.seq(src));
                let needs_room = matches!(self.manager.spec().mode(), Mode::Runs);
                assert!(forked.is_ok() || needs_room || !self.model.is_intact(self.seq(src)), "{forked:?}");
                let seq = forked?;
                self.model.fork(self.seq(src), seq);
                self.seqs.push(seq);
            }
            Operation::Keep(seq) => {
                self.manager.seq_keep(self.seq(seq))?;
                self.model.keep(self.seq(seq));
            }
            Operation::Remove(seq, p0, p1) => {
                let (seq, range) = (seq.map(|seq| self.seq(seq)), p0.get()..p1.get());
                let removed = self.manager.seq_rm(seq, range.clone())?;
                let expected = self.model.remove(seq, range);
                assert_eq!(removed, expected, "removed rows");
            }
            Operation::Copy(src, dst, p0, p1) => {
                let (src, range) = (self.seq(src), p0.get()..p1.get());
                let dst = dst.map_or_else(|| self.seqs.last().copied().unwrap_or_default(), |dst| self.seq(dst));
                self.manager.seq_cp(src, dst, range.clone())?;
                self.model.copy(src, dst, range);
            }
            Operation::Add(seq, p0, p1, delta) => {
                let (seq, range) = (self.seq(seq), p0.get()..p1.get());
                self.manager.seq_add(seq, range.clone(), delta.get())?;
                self.model.add(seq, range, delta.get());
            }
            Operation::Divide(seq, p0, p1, divisor) => {
                let (seq, range) = (self.seq(seq), p0.get()..p1.get());
                self.manager.seq_div(seq, range.clone(), divisor.get())?;
                self.model.divide(seq, range, divisor.get());
            }
            Operation::Shift(seq, [n_ctx, n_new, n_keep], n_discard) => {
                let (n_ctx, n_new, n_keep) = (n_ctx.get(), n_new.get(), n_keep.get());
                let shift = ContextShift { n_ctx, n_new, n_keep, n_discard: n_discard.map(Position::get) };
                let discarded = self.manager.context_shift(self.seq(seq), &shift)?;
                if discarded > 0 {
                    let behind = n_keep.saturating_add(discarded);
                    self.model.remove(Some(self.seq(seq)), n_keep..behind);
                    self.model.add(self.seq(seq), behind..i64::MAX, -discarded);
                }
            }
            Operation::Defragment(moves) => {
                self.manager.defrag(moves.map(usize::from))?;
            }
            Operation::Compact(pages) => {
                self.manager.compact(pages.into())?;
            }
            Operation::Update { fails } => self.with_memory(fails, |manager, memory| manager.update(memory))?,
            Operation::Step { ref appends, ref end, fails } => self.step(appends, end, fails)?,
            Operation::Prompt { tokens, ref end, fails } => {
                // The latest.
                let seq = (self.model.seqs().len() - 1).min(239) as u8;
                self.step(&[Rows { seq, tokens: Some(tokens), n: Count(0), at: Start(0) }], end, fails)?;
            }
            Operation::Reload { mode } => self.reload(mode)?,
            Operation::Session { seq, alone, fails } => self.session(seq, alone, fails)?,
        }
        Ok(())
    }

    fn create(&mut self, create: &Create<'_>) -> SeqId {
        let seq = self.manager.create_with(create);
        self.model.create(seq, create.salt);
        self.seqs.push(seq);
        seq
    }

    /// Whether there is room for a step, by a bound: each sequence takes all of its pages anew, or moves.
    fn has_room(&self, appends: &[New]) -> bool {
        let stats = self.manager.stats();
        let rows = |new: &New| self.model.end(new.seq).0.saturating_add(new.len);
        match self.manager.spec().mode() {
            Mode::Paged { page_size } => {
                let more = |new: &New| rows(new).div_ceil(page_size) - self.model.end(new.seq).0 / page_size;
                let need = appends.iter().map(more).fold(0, usize::saturating_add);
                need <= (stats.free + stats.cached) / page_size
            }
            Mode::Cells => appends.iter().map(|new| new.len).fold(0, usize::saturating_add) <= stats.largest_free_run,
            _ => appends.len() == 1 && rows(&appends[0]) <= stats.largest_free_run,
        }
    }

    fn step(&mut self, appends: &[Rows], end: &End, fails: Failure) -> Result<(), Error> {
        let page_size = self.manager.spec().page_size();
        let new = |rows: &Rows| {
            let (seq, tokens) = (self.seq(rows.seq), rows.tokens.map(|tokens| tokens.get(page_size)));
            let len = tokens.as_ref().map_or(rows.n.get(), Vec::len);
            New { seq, len, tokens, at: rows.at.get(self.model.end(seq).1) }
        };
        let mut new: Vec<New> = appends.iter().map(new).collect();
        // Of two appends to one sequence, which are refused, mostly the first.
        if !matches!(end, End::DropPlanned) {
            let mut seen = Vec::new();
            new.retain(|New { seq, .. }| {
                !seen.contains(seq) && {
                    seen.push(*seq);
                    true
                }
            });
        }
        let mut appends = Vec::new();
        for New { seq, len, tokens, at } in &new {
            let append = tokens.as_ref().map_or(Append::count(*seq, *len), |tokens| Append::tokens(*seq, tokens));
            appends.push(at.map_or(append, |at| append.at(at)));
        }
        let (spec, has_room) = (self.manager.spec().clone(), self.has_room(&new));
        let cells = self.model.cells(&self.manager);
        let is_undone = matches!(end, End::DropPlanned | End::DropStep | End::Leak);
        let before = is_undone.then(|| self.manager.clone());
        let planned = self.manager.begin_step(&appends).inspect_err(|error| {
            let is_full = matches!(error, Error::OutOfPages { .. } | Error::NoSlot { .. });
            assert!(!(is_full && has_room), "there is room for a step: {error}");
        })?;
        if let End::DropPlanned = end {
            drop(planned);
            assert!(before.is_some_and(|before| before == self.manager), "a planned step that is dropped stays");
            return Ok(());
        }
        self.memory.fails_after = fails.get();
        let applied = planned.apply(&mut self.memory);
        self.memory.fails_after = None;
        let step = applied?;
        let written = self.model.write(&step, &spec, &new, &cells, &mut self.memory);
        let is_committed = match end {
            End::Commit | End::CommitToo => {
                step.commit();
                true
            }
            End::DropStep | End::DropPlanned => {
                step.rollback();
                false
            }
            End::Leak => {
                step.detach();
                self.manager.rollback_open_step();
                false
            }
            End::Detach => {
                step.detach();
                assert!(matches!(self.manager.seq_rm(None, ..), Err(Error::StepOpen)));
                self.manager.open_step().expect("an open step").commit();
                true
            }
        };
        if is_committed {
            self.model.commit(written, &spec);
        } else if let Some(mut before) = before.filter(|_| !spec.prefix_sharing()) {
            // The step has made the updates that were due. With a prefix index, overwritten pages have left it, too.
            before.update(&mut self.memory.clone())?;
            assert!(before == self.manager, "a step that is rolled back stays");
        }
        Ok(())
    }

    fn path() -> PathBuf {
        directory().join(format!("manager_script.{}", std::process::id()))
    }

    /// Saves all, and loads it into a manager like this one, where it fits, or of another mode.
    fn reload(&mut self, mode: u8) -> Result<(), Error> {
        self.manager.save(Self::path(), &self.memory)?;
        let is_like = mode < 128;
        let other = if is_like { self.managed.clone() } else { self.managed.other(mode) };
        let Some(spec) = other.spec() else { return Ok(()) };
        let (mut other, mut memory) = (Manager::new(spec.clone()).expect("a small manager"), Slots::new(&spec));
        let rows: usize = self.model.seqs().map(|seq| self.model.end(seq).0).sum();
        // A sequence's last page may have one row.
        let has_room = rows + self.model.seqs().len() * (spec.page_size() - 1) <= spec.num_pages() * spec.page_size();
        let loaded = match other.load(Self::path(), &mut memory) {
            Ok(loaded) => loaded,
            Err(error) if is_like || has_room => panic!("there is room for what was saved: {error}"),
            Err(_) => return Ok(()),
        };
        other.check().expect("a manager whose invariants hold");
        assert!(!is_like || other.stats().used <= self.manager.stats().used);
        self.model.check_as(&loaded, other, memory);
        Ok(())
    }

    /// Saves one sequence, alone or with all, and loads it beside them.
    fn session(&mut self, seq: u8, alone: bool, fails: Failure) -> Result<(), Error> {
        let seq = self.seq(seq);
        let index = if alone {
            self.manager.save_seq(Self::path(), &self.memory, seq)?;
            0
        } else {
            self.manager.save(Self::path(), &self.memory)?;
            self.model.seqs().position(|other| other == seq).unwrap_or(usize::MAX)
        };
        let new = self.with_memory(fails, |manager, memory| manager.load_seq(Self::path(), memory, index))?;
        self.model.load(seq, new, &self.manager, &self.memory);
        self.seqs.push(new);
        Ok(())
    }
}

/// Runs the target on an input.
pub fn run(bytes: &[u8]) {
    let mut bytes = Unstructured::new(bytes);
    let Ok(managed) = Managed::arbitrary(&mut bytes) else { return };
    let Some(spec) = managed.spec() else { return };
    let (manager, memory) = (Manager::new(spec.clone()).expect("a small manager"), Slots::new(&spec));
    let mut run = Run { managed, manager, memory, model: Model::default(), seqs: Vec::new() };
    // The more there are, the longer each takes.
    for _ in 0..OPERATIONS {
        let Some(operation) = Operation::arbitrary(&mut bytes).ok().filter(|_| !bytes.is_empty()) else { return };
        let operation = &operation;
        if let Operation::Copy(_, None, ..) | Operation::Prompt { .. } = operation {
            run.create(&Create::default());
        }
        let before = run.manager.clone();
        let done = run.operate(operation);
        run.manager.check().unwrap_or_else(|error| panic!("after {operation:?}: {error}"));
        tally::count(done.is_ok());
        match done {
            Ok(()) => {}
            Err(Error::Memory { .. }) => run.model.lose(&run.manager, &run.memory),
            Err(Error::Broken { .. }) => unreachable!("only a check says so"),
            Err(error) => {
                assert!(run.manager == before, "{operation:?} is refused, and changes something: {error}");
                assert!(run.is_due(operation, &error), "{operation:?} is refused without a reason: {error}");
            }
        }
        run.model.check(&run.manager, &run.memory);
    }
}
