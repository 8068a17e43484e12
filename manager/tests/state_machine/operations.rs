//! Random caches, and random operations on them.

use kvcache_manager::Mode;
use kvcache_manager::schema::CacheLayout;
use proptest::prelude::*;
use proptest::sample::select;
use proptest_state_machine::ReferenceStateMachine;

use crate::model::rows::Turns;
use crate::model::sequences::Window;
use crate::types::{TYPES, layouts};

/// The cache that a script is run on.
#[derive(Debug, Clone)]
pub struct Cache {
    pub layout: CacheLayout,
    pub types: usize,
    pub mode: Mode,
    pub max_t: usize,
    pub max_pages: Option<usize>,
    pub prefix_sharing: bool,
    pub window: Option<Window>,
    pub turns: Option<Turns>,
    pub raw: bool,
    /// As the specification's default, none, or so many.
    pub shift_limit: Option<Option<u32>>,
    pub pad: usize,
    pub defrag_threshold: Option<f64>,
}

/// How a step ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Commit,
    DropPlanned,
    DropStep,
    /// Left open, found again, and committed.
    Detach,
    /// Forgotten while it is open; all else is refused meanwhile.
    Leak,
    /// This call of the memory fails.
    Fail(usize),
}

/// Rows for a sequence.
#[derive(Debug, Clone)]
pub struct NewRows {
    pub seq: usize,
    /// In fours, and some.
    pub n: (usize, usize),
    /// The seed of the tokens, if they are known: the same seed gives the same ones.
    pub tokens: Option<u32>,
    pub gap: Option<i64>,
}

/// A range of positions, seen from those of a sequence: where it begins, and how long it is, or that it has no end.
#[derive(Debug, Clone, Copy)]
pub struct Span(pub usize, pub Option<usize>);

impl Span {
    /// The range in a sequence of positions `first..next`: from one before the first on.
    pub fn of(self, first: i64, next: i64) -> (i64, i64) {
        let p0 = first - 1 + (self.0 % (next - first + 3) as usize) as i64;
        (p0, self.1.map_or(-1, |len| p0 + len as i64 - 1))
    }
}

/// One operation. Sequences are chosen by number, modulo those that there are.
#[derive(Debug, Clone)]
pub enum Operation {
    Create {
        salt: u8,
        reserve: usize,
    },
    Fork(usize),
    Free(usize),
    /// Of a sequence, or of all.
    Rm(Option<usize>, usize, Span),
    /// The last rows.
    Cut(usize, i64),
    /// To a sequence of its own, or to one that there is.
    Cp(usize, Option<usize>, Span),
    Add(usize, Span, i64),
    Div(usize, Span, i64),
    /// Empties all others.
    Keep(usize),
    ContextShift {
        seq: usize,
        n_keep: i64,
        n_discard: Option<i64>,
    },
    Defrag(Option<usize>),
    Compact(usize),
    Update,
    /// An update of which a call of the memory fails.
    FailUpdate(usize),
    Stale(usize),
    Step(Vec<NewRows>, End),
    /// So many rows for a new sequence, with the seed of their tokens.
    Prompt(usize, Option<u32>),
    /// Saves all, and goes on with a new manager of another mode and layout that has loaded it.
    Reload(Mode, CacheLayout, LoadFault),
    /// Saves a sequence, turns rows of it if there is a delta, and loads what was saved.
    Copy(usize, i64, LoadFault),
}

/// Which call of the memory fails in a load.
pub type LoadFault = Option<usize>;

pub struct Operations;

fn modes() -> impl Strategy<Value = Mode> {
    prop_oneof![
        3 => select(vec![1, 2, 3, 16]).prop_map(|page_size| Mode::Paged { page_size }),
        2 => Just(Mode::Runs),
        2 => Just(Mode::Cells),
    ]
}

fn turns() -> impl Strategy<Value = Turns> {
    let turns = (select(vec![2, 4, 6, 8]), select(vec![1e4, 5e5]), select(vec![1.0, 0.25]), any::<bool>());
    turns.prop_map(|(n_rot, base, scale, neox)| Turns { n_rot, base, scale, neox })
}

fn windows() -> impl Strategy<Value = Window> {
    let windows = (1_usize..12, 0_usize..5, 0_usize..4);
    windows.prop_map(|(width, sink, slack)| Window { width, sink, slack: slack.max(2_usize.saturating_sub(width)) })
}

/// So many cases, unless `PROPTEST_CASES` says otherwise.
pub fn cases(cases: u32) -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(cases);
    ProptestConfig { cases, ..ProptestConfig::default() }
}

/// Any cache.
pub fn caches() -> impl Strategy<Value = Cache> {
    let weighted = proptest::bool::weighted;
    let some = |p: f64| weighted(p);
    let shape = (layouts(), 0..TYPES.len(), modes(), 4_usize..24, proptest::option::weighted(0.2, 3_usize..10));
    let keys = (proptest::option::weighted(0.9, turns()), some(0.2), select(vec![None, Some(None), Some(Some(2))]));
    let threshold = proptest::option::weighted(0.2, select(vec![0.0, 0.3]));
    let rest = (some(0.7), proptest::option::weighted(0.3, windows()), select(vec![4_usize, 32]), threshold);
    (shape, keys, rest).prop_map(|(shape, keys, rest)| {
        let (layout, types, mode, size, max_pages) = shape;
        let (turns, raw, shift_limit) = keys;
        let (prefix_sharing, window, pad, defrag_threshold) = rest;
        let (max_t, max_pages) = match mode {
            // The last slots are no whole page.
            Mode::Paged { page_size } => (size * page_size + page_size / 2, max_pages),
            // Enough for fragmentation to be counted, sometimes.
            _ => (8 * size, None),
        };
        let max_pages = max_pages.map(|max_pages| max_pages.min(max_t));
        let prefix_sharing = prefix_sharing && matches!(mode, Mode::Paged { .. });
        Cache {
            layout,
            types,
            mode,
            max_t,
            max_pages,
            prefix_sharing,
            window,
            turns,
            raw,
            shift_limit,
            pad,
            defrag_threshold,
        }
    })
}

fn spans() -> impl Strategy<Value = Span> {
    (0_usize..40, proptest::option::weighted(0.7, 0_usize..20)).prop_map(|(from, len)| Span(from, len))
}

fn sessions() -> impl Strategy<Value = Operation> {
    let fault = || proptest::option::weighted(0.3, 0_usize..4);
    prop_oneof![
        (modes(), layouts(), fault()).prop_map(|(mode, layout, fault)| Operation::Reload(mode, layout, fault)),
        (0_usize..8, 0_i64..3, fault()).prop_map(|(seq, delta, fault)| Operation::Copy(seq, delta, fault)),
    ]
}

/// Any operation.
pub fn operations() -> impl Strategy<Value = Operation> {
    let end = prop_oneof![
        10 => Just(End::Commit),
        1 => Just(End::DropPlanned),
        1 => Just(End::DropStep),
        1 => Just(End::Detach),
        1 => Just(End::Leak),
        1 => (0_usize..4).prop_map(End::Fail),
    ];
    let n = prop_oneof![3 => Just((0, 1)), 1 => (0_usize..4, 0_usize..6)];
    let gap = proptest::option::weighted(0.1, -2_i64..5);
    let rows = (0_usize..8, n, proptest::option::weighted(0.8, 0_u32..3), gap);
    let rows = rows.prop_map(|(seq, n, tokens, gap)| NewRows { seq, n, tokens, gap });
    let seq = || 0_usize..8;
    let discard = proptest::option::weighted(0.3, 0_i64..6);
    prop_oneof![
        2 => (0_u8..2, 0_usize..12).prop_map(|(salt, reserve)| Operation::Create { salt, reserve }),
        2 => seq().prop_map(Operation::Fork),
        2 => seq().prop_map(Operation::Free),
        2 => (proptest::bool::weighted(0.1), seq(), spans())
            .prop_map(|(all, seq, span)| Operation::Rm((!all).then_some(seq), seq, span)),
        1 => (seq(), 0_i64..6).prop_map(|(seq, n)| Operation::Cut(seq, n)),
        1 => (seq(), proptest::option::weighted(0.3, seq()), spans())
            .prop_map(|(src, dst, span)| Operation::Cp(src, dst, span)),
        2 => (seq(), spans(), -8_i64..9).prop_map(|(seq, span, delta)| Operation::Add(seq, span, delta)),
        1 => (seq(), spans(), 0_i64..4).prop_map(|(seq, span, d)| Operation::Div(seq, span, d)),
        1 => (seq(), 0_i64..6, discard)
            .prop_map(|(seq, n_keep, n_discard)| Operation::ContextShift { seq, n_keep, n_discard }),
        1 => proptest::option::weighted(0.5, 0_usize..3).prop_map(Operation::Defrag),
        1 => (0_usize..3).prop_map(Operation::Compact),
        1 => Just(Operation::Update),
        1 => (0_usize..2).prop_map(Operation::FailUpdate),
        1 => seq().prop_map(Operation::Stale),
        1 => seq().prop_map(Operation::Keep),
        14 => (prop::collection::vec(rows, 0..5), end).prop_map(|(rows, end)| Operation::Step(rows, end)),
        1 => sessions(),
    ]
}

/// Small caches of pages of which prompts share the prefixes.
pub fn prefix_caches() -> impl Strategy<Value = Cache> {
    (caches(), select(vec![2, 4]), 5_usize..12).prop_map(|(cache, page_size, num_pages)| Cache {
        mode: Mode::Paged { page_size },
        max_t: page_size * num_pages,
        max_pages: None,
        prefix_sharing: true,
        window: None,
        ..cache
    })
}

/// Operations that leave cached pages, pages that are used in part, pages that move, and lost sequences; and prompts
/// that find them.
pub fn prefix_operations() -> impl Strategy<Value = Operation> {
    let seq = || 0_usize..4;
    // Others leave holes.
    let tokens = || proptest::option::weighted(0.7, Just(1));
    let end = prop_oneof![6 => Just(End::Commit), 1 => Just(End::DropStep), 2 => (0_usize..3).prop_map(End::Fail)];
    let prompt = (3_usize..13, tokens()).prop_map(|(n, tokens)| Operation::Prompt(n, tokens));
    prop_oneof![
        6 => prompt,
        4 => seq().prop_map(Operation::Free),
        1 => seq().prop_map(Operation::Fork),
        3 => (seq(), 1_i64..6).prop_map(|(seq, n)| Operation::Cut(seq, n)),
        4 => (1_usize..3).prop_map(Operation::Compact),
        1 => (seq(), spans(), 0_i64..4).prop_map(|(seq, span, delta)| Operation::Add(seq, span, delta)),
        1 => Just(Operation::Update),
        4 => (0_usize..2).prop_map(Operation::FailUpdate),
        2 => (prop::collection::vec((seq(), 1_usize..11, tokens()), 1..3), end).prop_map(move |(rows, end)| {
            let rows = rows.into_iter().map(|(seq, n, tokens)| NewRows { seq, n: (0, n), tokens, gap: None });
            Operation::Step(rows.collect(), end)
        }),
        1 => (seq(), 0_i64..3, proptest::option::of(0_usize..3))
            .prop_map(|(seq, delta, fault)| Operation::Copy(seq, delta, fault)),
    ]
}

impl ReferenceStateMachine for Operations {
    type State = Cache;
    type Transition = Operation;

    fn init_state() -> BoxedStrategy<Cache> {
        caches().boxed()
    }

    fn transitions(_: &Cache) -> BoxedStrategy<Operation> {
        operations().boxed()
    }

    fn apply(state: Cache, _: &Operation) -> Cache {
        state
    }
}
