//! Scripts of operations in every mode: after each, invariants hold, and every sequence has the rows that a model says,
//! in the cache too; what is refused changes nothing, and what is saved can be loaded.

use std::path::PathBuf;

use arbitrary::{Arbitrary, Unstructured};
use kvcache_manager::schema::{ElementType, QuantBit};
use kvcache_manager::{
    Append, CacheSpec, ContextShift, Create, Error, Geometry, KeyForm, MAX_POSITION, Manager, Mode, Rope, SeqId,
};

use crate::manager::{Slots, directory};
use crate::manager_model::{Model, New};
use crate::tally;

/// The most operations of a script.
const OPERATIONS: usize = 60;

/// An operation. Sequences are numbers; see [`Run::seq`].
#[derive(Debug)]
enum Operation {
    Create {
        reserve: Count,
        salt: u8,
    },
    Free(u8),
    Fork(u8),
    Keep(u8),
    Remove(Option<u8>, Position, Position),
    /// To a sequence, or to the latest, which is a new one.
    Copy(u8, Option<u8>, Position, Position),
    Add(u8, Position, Position, Delta),
    Divide(u8, Position, Position, Delta),
    Shift(u8, [Position; 3], Option<Position>),
    Defragment(Option<u8>),
    Compact(u8),
    Update {
        fails: Failure,
    },
    Step {
        appends: Vec<Rows>,
        end: End,
        fails: Failure,
    },
    /// All are saved, and loaded into another manager.
    Reload {
        mode: u8,
    },
    /// One of all, or one alone, is saved and loaded beside them.
    Session {
        seq: u8,
        alone: bool,
        fails: Failure,
    },
}

impl<'a> Arbitrary<'a> for Operation {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        Ok(match bytes.int_in_range(0..=39)? {
            0..4 => Self::Create { reserve: bytes.arbitrary()?, salt: bytes.arbitrary()? },
            4..6 => Self::Free(bytes.arbitrary()?),
            6..9 => Self::Fork(bytes.arbitrary()?),
            9 if bytes.ratio(1, 4)? => Self::Keep(bytes.arbitrary()?),
            9..14 => Self::Remove(Self::mostly(bytes)?, bytes.arbitrary()?, bytes.arbitrary()?),
            14..17 => {
                let (src, is_new) = (bytes.arbitrary()?, bytes.ratio(3, 4)?);
                let dst = if is_new { None } else { Some(bytes.arbitrary()?) };
                Self::Copy(src, dst, bytes.arbitrary()?, bytes.arbitrary()?)
            }
            17..20 => Self::Add(bytes.arbitrary()?, bytes.arbitrary()?, bytes.arbitrary()?, bytes.arbitrary()?),
            20 => Self::Divide(bytes.arbitrary()?, bytes.arbitrary()?, bytes.arbitrary()?, bytes.arbitrary()?),
            21 => Self::Shift(bytes.arbitrary()?, bytes.arbitrary()?, bytes.arbitrary()?),
            22 => Self::Defragment(bytes.arbitrary()?),
            23 => Self::Compact(bytes.arbitrary()?),
            24 => Self::Update { fails: bytes.arbitrary()? },
            25 => Self::Reload { mode: bytes.arbitrary()? },
            26 | 27 => Self::Session { seq: bytes.arbitrary()?, alone: bytes.arbitrary()?, fails: bytes.arbitrary()? },
            _ => {
                let appends = (0..bytes.int_in_range(0..=4)?).map(|_| bytes.arbitrary()).collect::<Result<_, _>>()?;
                Self::Step { appends, end: bytes.arbitrary()?, fails: bytes.arbitrary()? }
            }
        })
    }
}

impl Operation {
    /// A sequence, but once in eight times none.
    fn mostly(bytes: &mut Unstructured<'_>) -> arbitrary::Result<Option<u8>> {
        if bytes.ratio(1, 8)? { Ok(None) } else { bytes.arbitrary().map(Some) }
    }
}

/// Rows that a step appends to a sequence.
#[derive(Debug, Arbitrary)]
struct Rows {
    seq: u8,
    tokens: Option<Tokens>,
    n: Count,
    at: Start,
}

/// Tokens, of which the first are the same in all prompts.
#[derive(Debug, Clone, Copy, Arbitrary)]
struct Tokens {
    len: u8,
    prompt: u8,
}

impl Tokens {
    fn get(self) -> Vec<u32> {
        let prompt = u32::from(self.prompt % 4);
        (0..u32::from(self.len % 24)).map(|i| if i < 3 * prompt { 0 } else { prompt }).collect()
    }
}

/// How a step ends.
#[derive(Debug, Arbitrary)]
enum End {
    Commit,
    CommitToo,
    Detach,
    DropPlanned,
    DropStep,
    Leak,
}

/// Which of the next calls of the memory fails: mostly none.
#[derive(Debug, Clone, Copy, Arbitrary)]
struct Failure(u8);

impl Failure {
    fn get(self) -> Option<usize> {
        self.0.checked_sub(232).map(|after| usize::from(after % 3))
    }
}

/// A position that is mostly small, but also one of those at which numbers end.
#[derive(Debug, Clone, Copy, Arbitrary)]
struct Position(i8);

impl Position {
    fn get(self) -> i64 {
        match self.0 {
            i8::MIN => i64::MIN,
            i8::MAX => i64::MAX,
            near @ 116..i8::MAX => MAX_POSITION + 4 - i64::from(i8::MAX - near),
            small => i64::from(small / 2),
        }
    }
}

/// What is added to positions, or divides them.
#[derive(Debug, Clone, Copy, Arbitrary)]
struct Delta(i8);

impl Delta {
    fn get(self) -> i64 {
        if (-100..100).contains(&self.0) { (self.0 % 12).into() } else { Position(self.0).get() }
    }
}

/// Where a step's rows begin: behind the last row, mostly.
#[derive(Debug, Clone, Copy, Arbitrary)]
struct Start(u8);

impl Start {
    fn get(self, next: i64) -> Option<i64> {
        match self.0 {
            0..200 => None,
            200..240 => Some(next.saturating_add(i64::from(self.0 % 4))),
            _ => Some(Position(self.0 as i8).get()),
        }
    }
}

/// A number of rows or cells: mostly small, else as large as can be.
#[derive(Debug, Clone, Copy, Arbitrary)]
struct Count(u8);

impl Count {
    fn get(self) -> usize {
        match self.0 {
            u8::MAX => usize::MAX,
            254 => i64::MAX as usize,
            253 => MAX_POSITION as usize,
            small if small < 192 => usize::from(small % 12),
            small => usize::from(small % 64),
        }
    }
}

/// What a manager manages.
#[derive(Debug, Clone, Arbitrary)]
struct Managed {
    mode: u8,
    max_t: u8,
    max_pages: Option<u8>,
    raw: bool,
    no_rope: bool,
    int4: bool,
    sharing: bool,
    window: Option<(u8, u8, u8)>,
    threshold: Option<u8>,
}

impl Managed {
    fn spec(&self) -> Option<CacheSpec> {
        let mode = match self.mode % 8 {
            0 | 1 => Mode::Runs,
            2 | 3 => Mode::Cells,
            pages => Mode::Paged { page_size: [1, 2, 3, 5][usize::from(pages) - 4] },
        };
        let max_t = 1 + usize::from(self.max_t);
        let mut builder = CacheSpec::builder(Geometry { num_layer: 1, num_heads: 1, head_dim: 4, max_t }).mode(mode);
        if self.int4 {
            builder = builder.quantized(QuantBit::Four, 4, ElementType::Float16);
        }
        if !self.no_rope || !self.raw {
            builder = builder.rope(Rope::neox(4, 1e4));
        }
        if let Some((window, sink, slack)) = self.window.filter(|(window, ..)| window % 2 == 0) {
            builder = builder.window((window % 32).into()).sink((sink % 8).into()).slack((slack % 8).into());
        }
        if let Some(threshold) = self.threshold {
            builder = builder.defrag_threshold(f64::from(threshold) / 256.0);
        }
        if let Some(max_pages) = self.max_pages {
            builder = builder.max_pages(max_pages.into());
        }
        let key_form = if self.raw { KeyForm::Raw } else { KeyForm::Roped };
        builder.key_form(key_form).prefix_sharing(self.sharing).build().ok()
    }

    /// One of another mode, with as much room as there can be.
    fn other(&self, mode: u8) -> Self {
        Self { mode, max_t: u8::MAX, max_pages: None, ..self.clone() }
    }
}

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
                let salt = &[salt % 8; 2][..usize::from(salt % 3)];
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
        let new = |rows: &Rows| {
            let (seq, tokens) = (self.seq(rows.seq), rows.tokens.map(Tokens::get));
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
        let planned = self.manager.begin_step(&appends).inspect_err(|error| {
            let is_full = matches!(error, Error::OutOfPages { .. } | Error::NoSlot { .. });
            assert!(!(is_full && has_room), "there is room for a step: {error}");
        })?;
        if let End::DropPlanned = end {
            return Ok(());
        }
        self.memory.fails_after = fails.get();
        let applied = planned.apply(&mut self.memory);
        self.memory.fails_after = None;
        let step = applied?;
        let written = self.model.write(&step, &spec, &new, &mut self.memory);
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
        if let Operation::Copy(_, None, ..) = operation {
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
            Err(error) => assert!(run.manager == before, "{operation:?} is refused, and changes something: {error}"),
        }
        run.model.check(&run.manager, &run.memory);
    }
}
