//! Scripts of operations in every mode: after each, invariants hold, and every sequence has the rows that a model says,
//! in the cache too; what is refused changes nothing, and what is saved can be loaded.

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

/// What a manager manages.
#[derive(Debug, Arbitrary)]
struct Managed {
    mode: u8,
    max_t: u8,
    max_pages: Option<u8>,
    raw: bool,
    rope: bool,
    int4: bool,
    sharing: bool,
    window: Option<(u8, u8, u8)>,
    threshold: Option<u8>,
}

#[derive(Debug, Arbitrary)]
enum Operation {
    Create { reserve: Count, salt: u8 },
    Free(u8),
    Fork(u8),
    Keep(u8),
    Remove(Option<u8>, Position, Position),
    Copy(u8, u8, Position, Position),
    Add(u8, Position, Position, Position),
    Divide(u8, Position, Position, Position),
    Shift(u8, [Position; 3], Option<Position>),
    Defragment(Option<u8>),
    Compact(u8),
    Update { fails: bool },
    Step { appends: Vec<Rows>, end: End },
    Session { index: Option<u8> },
}

#[derive(Debug, Arbitrary)]
struct Rows {
    seq: u8,
    tokens: Option<Tokens>,
    n: Count,
    at: Option<Position>,
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

#[derive(Debug, Arbitrary)]
enum End {
    Commit,
    DropPlanned,
    DropStep,
    Leak,
    Detach,
    Fails,
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
            small => i64::from(small),
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
            small => usize::from(small % 64),
        }
    }
}

fn spec(managed: &Managed) -> Option<CacheSpec> {
    let mode = match managed.mode % 6 {
        0 => Mode::Runs,
        1 | 2 => Mode::Cells,
        pages => Mode::Paged { page_size: [1, 2, 5][usize::from(pages) - 3] },
    };
    let max_t = usize::from(managed.max_t).max(1);
    let mut builder = CacheSpec::builder(Geometry { num_layer: 1, num_heads: 1, head_dim: 4, max_t }).mode(mode);
    if managed.int4 {
        builder = builder.quantized(QuantBit::Four, 4, ElementType::Float16);
    }
    if managed.rope {
        builder = builder.rope(Rope::neox(4, 1e4));
    }
    if let Some((window, sink, slack)) = managed.window {
        builder = builder.window(window.into()).sink(sink.into()).slack(slack.into());
    }
    if let Some(threshold) = managed.threshold {
        builder = builder.defrag_threshold(f64::from(threshold) / 256.0);
    }
    if let Some(max_pages) = managed.max_pages {
        builder = builder.max_pages(max_pages.into());
    }
    let key_form = if managed.raw { KeyForm::Raw } else { KeyForm::Roped };
    builder.key_form(key_form).prefix_sharing(managed.sharing).build().ok()
}

/// What operations go on.
struct Run {
    manager: Manager,
    memory: Slots,
    model: Model,
    seqs: Vec<SeqId>,
}

impl Run {
    /// The sequence that a number names: one that there is, or was.
    fn seq(&self, i: u8) -> SeqId {
        self.seqs.get(usize::from(i) % self.seqs.len().max(1)).copied().unwrap_or_default()
    }

    fn operate(&mut self, operation: &Operation) -> Result<(), Error> {
        match *operation {
            Operation::Create { reserve, salt } => {
                let salt = &[salt; 2][..usize::from(salt % 3)];
                let seq = self.manager.create_with(&Create { reserve: reserve.get(), salt });
                self.model.create(seq, salt);
                self.seqs.push(seq);
            }
            Operation::Free(seq) => {
                self.manager.free(self.seq(seq))?;
                self.model.free(self.seq(seq));
            }
            Operation::Fork(src) => {
                let seq = self.manager.fork(self.seq(src))?;
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
                assert!(removed == expected || self.model.is_lost, "{removed} rows are removed, expected {expected}");
            }
            Operation::Copy(src, dst, p0, p1) => {
                let (src, dst, range) = (self.seq(src), self.seq(dst), p0.get()..p1.get());
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
            Operation::Update { fails } => {
                self.memory.fails = fails;
                let updated = self.manager.update(&mut self.memory);
                self.memory.fails = false;
                updated?;
            }
            Operation::Step { ref appends, ref end } => self.step(appends, end)?,
            Operation::Session { index } => self.session(index)?,
        }
        Ok(())
    }

    fn step(&mut self, appends: &[Rows], end: &End) -> Result<(), Error> {
        let new = |rows: &Rows| {
            let tokens = rows.tokens.map(Tokens::get);
            New { seq: self.seq(rows.seq), len: tokens.as_ref().map_or(rows.n.get(), Vec::len), tokens }
        };
        let new: Vec<New> = appends.iter().map(new).collect();
        let appends: Vec<_> = appends
            .iter()
            .zip(&new)
            .map(|(rows, New { seq, len, tokens })| {
                let append = tokens.as_ref().map_or(Append::count(*seq, *len), |tokens| Append::tokens(*seq, tokens));
                rows.at.map_or(append, |at| append.at(at.get()))
            })
            .collect();
        let spec = self.manager.spec().clone();
        let planned = self.manager.begin_step(&appends)?;
        if let End::DropPlanned = end {
            return Ok(());
        }
        self.memory.fails = matches!(end, End::Fails);
        let applied = planned.apply(&mut self.memory);
        self.memory.fails = false;
        let step = applied?;
        assert_eq!(step.order().len(), appends.len());
        let written =
            if self.model.is_lost { None } else { Some(self.model.write(&step, &spec, &new, &mut self.memory)) };
        let is_committed = match end {
            End::Commit | End::Fails => {
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
                assert!(matches!(self.manager.fork(self.seq(0)), Err(Error::StepOpen)));
                self.manager.open_step().expect("an open step").commit();
                true
            }
        };
        if let Some(written) = written.filter(|_| is_committed) {
            self.model.commit(written, &spec);
        }
        Ok(())
    }

    /// Saves all, and loads it into a manager like this one, where it fits; or loads one sequence beside the others.
    fn session(&mut self, index: Option<u8>) -> Result<(), Error> {
        let path = directory().join(format!("manager_script.{}", std::process::id()));
        self.manager.save(&path, &self.memory)?;
        let Some(index) = index else {
            let spec = self.manager.spec();
            let (mut other, mut memory) = (Manager::new(spec.clone()).expect("a small manager"), Slots::new(spec));
            let loaded = other.load(&path, &mut memory).expect("room for what was saved from as much");
            other.check().expect("a manager whose invariants hold");
            assert!(other.stats().used <= self.manager.stats().used);
            if !self.model.is_lost {
                self.model.check_as(&loaded, other, memory);
            }
            return Ok(());
        };
        let seq = self.manager.load_seq(&path, &mut self.memory, index.into())?;
        self.model.load(index.into(), seq);
        self.seqs.push(seq);
        Ok(())
    }
}

/// Runs the target on an input.
pub fn run(bytes: &[u8]) {
    let mut bytes = Unstructured::new(bytes);
    let Some(spec) = Managed::arbitrary(&mut bytes).ok().and_then(|managed| spec(&managed)) else { return };
    let (manager, memory) = (Manager::new(spec.clone()).expect("a small manager"), Slots::new(&spec));
    let mut run = Run { manager, memory, model: Model::default(), seqs: Vec::new() };
    // The more there are, the longer each takes.
    for _ in 0..OPERATIONS {
        let Some(operation) = Operation::arbitrary(&mut bytes).ok().filter(|_| !bytes.is_empty()) else { return };
        let operation = &operation;
        let before = run.manager.clone();
        let done = run.operate(operation);
        run.manager.check().unwrap_or_else(|error| panic!("after {operation:?}: {error}"));
        tally::count(done.is_ok());
        match done {
            Ok(()) => {}
            Err(Error::Memory { .. }) => run.model.is_lost = true,
            Err(Error::Broken { .. }) => unreachable!("only a check says so"),
            Err(error) => assert!(run.manager == before, "{operation:?} is refused, and changes something: {error}"),
        }
        run.model.check(&run.manager, &run.memory);
    }
}
