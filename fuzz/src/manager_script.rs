//! Scripts of operations in every mode: invariants hold after each, what is refused changes nothing, and what is saved
//! can be loaded.

use crate::manager::{Slots, directory};
use arbitrary::{Arbitrary, Unstructured};
use kvcache_manager::schema::{ElementType, QuantBit};
use kvcache_manager::{
    Append, CacheSpec, ContextShift, Create, Error, Geometry, KeyForm, MAX_POSITION, Manager, Mode, Rope, SeqId,
};

#[derive(Debug, Arbitrary)]
struct Script {
    mode: u8,
    max_t: u8,
    max_pages: Option<u8>,
    raw: bool,
    rope: bool,
    int4: bool,
    sharing: bool,
    window: Option<(u8, u8, u8)>,
    threshold: Option<u8>,
    operations: Vec<Operation>,
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
    tokens: Option<Vec<bool>>,
    n: Count,
    at: Option<Position>,
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

fn spec(script: &Script) -> Option<CacheSpec> {
    let mode = match script.mode % 6 {
        0 => Mode::Runs,
        1 | 2 => Mode::Cells,
        pages => Mode::Paged { page_size: [1, 2, 5][usize::from(pages) - 3] },
    };
    let max_t = usize::from(script.max_t).max(1);
    let mut builder = CacheSpec::builder(Geometry { num_layer: 1, num_heads: 1, head_dim: 4, max_t }).mode(mode);
    if script.int4 {
        builder = builder.quantized(QuantBit::Four, 4, ElementType::Float16);
    }
    if script.rope {
        builder = builder.rope(Rope::neox(4, 1e4));
    }
    if let Some((window, sink, slack)) = script.window {
        builder = builder.window(window.into()).sink(sink.into()).slack(slack.into());
    }
    if let Some(threshold) = script.threshold {
        builder = builder.defrag_threshold(f64::from(threshold) / 256.0);
    }
    if let Some(max_pages) = script.max_pages {
        builder = builder.max_pages(max_pages.into());
    }
    let key_form = if script.raw { KeyForm::Raw } else { KeyForm::Roped };
    builder.key_form(key_form).prefix_sharing(script.sharing).build().ok()
}

/// What operations go on.
struct Run {
    manager: Manager,
    memory: Slots,
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
                self.seqs.push(self.manager.create_with(&Create { reserve: reserve.get(), salt }));
            }
            Operation::Free(seq) => self.manager.free(self.seq(seq))?,
            Operation::Fork(seq) => self.seqs.push(self.manager.fork(self.seq(seq))?),
            Operation::Keep(seq) => self.manager.seq_keep(self.seq(seq))?,
            Operation::Remove(seq, p0, p1) => {
                let seq = seq.map(|seq| self.seq(seq));
                self.manager.seq_rm(seq, p0.get()..p1.get())?;
            }
            Operation::Copy(src, dst, p0, p1) => {
                self.manager.seq_cp(self.seq(src), self.seq(dst), p0.get()..p1.get())?;
            }
            Operation::Add(seq, p0, p1, delta) => {
                self.manager.seq_add(self.seq(seq), p0.get()..p1.get(), delta.get())?;
            }
            Operation::Divide(seq, p0, p1, divisor) => {
                self.manager.seq_div(self.seq(seq), p0.get()..p1.get(), divisor.get())?;
            }
            Operation::Shift(seq, [n_ctx, n_new, n_keep], n_discard) => {
                let (n_ctx, n_new, n_keep) = (n_ctx.get(), n_new.get(), n_keep.get());
                let shift = ContextShift { n_ctx, n_new, n_keep, n_discard: n_discard.map(Position::get) };
                self.manager.context_shift(self.seq(seq), &shift)?;
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
        let tokens: Vec<Option<Vec<u32>>> = appends
            .iter()
            .map(|rows| rows.tokens.as_ref().map(|tokens| tokens.iter().map(|&token| token.into()).collect()))
            .collect();
        let append = |(rows, tokens): (&Rows, &'_ Option<Vec<u32>>)| {
            (self.seq(rows.seq), rows.n.get(), tokens.clone(), rows.at.map(Position::get))
        };
        let appends: Vec<_> = appends.iter().zip(&tokens).map(append).collect();
        let appends: Vec<_> = appends
            .iter()
            .map(|(seq, n, tokens, at)| {
                let append = tokens.as_ref().map_or(Append::count(*seq, *n), |tokens| Append::tokens(*seq, tokens));
                at.map_or(append, |at| append.at(at))
            })
            .collect();
        let planned = self.manager.begin_step(&appends)?;
        if let End::DropPlanned = end {
            return Ok(());
        }
        self.memory.fails = matches!(end, End::Fails);
        let applied = planned.apply(&mut self.memory);
        self.memory.fails = false;
        let step = applied?;
        assert_eq!(step.order().len(), appends.len());
        match end {
            End::Commit | End::Fails => step.commit(),
            End::DropStep | End::DropPlanned => step.rollback(),
            End::Leak => {
                step.detach();
                self.manager.rollback_open_step();
            }
            End::Detach => {
                step.detach();
                assert!(matches!(self.manager.fork(self.seq(0)), Err(Error::StepOpen)));
                self.manager.open_step().expect("an open step").commit();
            }
        }
        Ok(())
    }

    /// Saves all, and loads it into a manager like this one, where it fits; or loads one sequence beside the others.
    fn session(&mut self, index: Option<u8>) -> Result<(), Error> {
        let path = directory().join(format!("manager_script.{}", std::process::id()));
        self.manager.save(&path, &self.memory)?;
        let Some(index) = index else {
            let mut other = Manager::new(self.manager.spec().clone()).expect("a small manager");
            let loaded = other.load(&path, &mut self.memory).expect("room for what was saved from as much");
            other.check().expect("a manager whose invariants hold");
            assert_eq!(loaded.len(), self.manager.stats().sequences);
            assert!(other.stats().used <= self.manager.stats().used);
            return Ok(());
        };
        self.seqs.push(self.manager.load_seq(&path, &mut self.memory, index.into())?);
        Ok(())
    }
}

/// Runs the target on an input.
pub fn run(bytes: &[u8]) {
    let Ok(script) = Script::arbitrary_take_rest(Unstructured::new(bytes)) else { return };
    let Some(spec) = spec(&script) else { return };
    let (manager, memory) = (Manager::new(spec.clone()).expect("a small manager"), Slots::new(&spec));
    let mut run = Run { manager, memory, seqs: Vec::new() };
    for operation in &script.operations {
        let before = run.manager.clone();
        let done = run.operate(operation);
        run.manager.check().unwrap_or_else(|error| panic!("after {operation:?}: {error}"));
        match done {
            Err(Error::Memory { .. }) | Ok(()) => {}
            Err(Error::Broken { .. }) => unreachable!("only a check says so"),
            Err(error) => assert!(run.manager == before, "{operation:?} is refused, and changes something: {error}"),
        }
    }
}
