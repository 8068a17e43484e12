//! Random operations.

use kvcache_conformance::random::Unstructured;
use kvcache_manager::{MAX_POSITION, Mode};
use proptest::prelude::*;

use crate::manager::cache::{modes, some};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Commit,
    DropPlanned,
    DropStep,
    /// Left open, found again, and committed.
    Detach,
    /// Forgotten while it is open; all else is refused meanwhile.
    Leak,
    Fail(usize),
}

#[derive(Debug, Clone)]
pub struct NewRows {
    pub seq: usize,
    /// In fours, and some.
    pub n: (usize, usize),
    /// The seed of the tokens, if they are known: the same seed gives the same ones.
    pub tokens: Option<u32>,
    pub gap: Option<i64>,
}

#[derive(Debug, Clone, Copy)]
pub enum Span {
    /// Relative to a sequence's positions: where it begins, and how long it is; `None` has no end.
    Of(usize, Option<usize>),
    Is(i64, i64),
}

impl Span {
    /// The range in a sequence of positions `first..next`: from one before the first on.
    pub fn of(self, first: i64, next: i64) -> (i64, i64) {
        match self {
            Self::Of(from, len) => {
                let p0 = first - 1 + (from % (next - first + 3) as usize) as i64;
                (p0, len.map_or(-1, |len| p0 + len as i64 - 1))
            }
            Self::Is(p0, p1) => (p0, p1),
        }
    }

    fn draw(entropy: &mut Unstructured) -> Self {
        match entropy.one_in(24) {
            true => Self::Is(entropy.pick(&FAR), entropy.pick(&FAR)),
            false => Self::Of(entropy.below(40), some(entropy, 7, 10, |entropy| entropy.below(20))),
        }
    }
}

/// Numbers at which positions, or their type, end.
const FAR: [i64; 8] =
    [0, -1, MAX_POSITION, MAX_POSITION + 1, MAX_POSITION - 3, i64::MAX, i64::MIN, i64::MAX - MAX_POSITION];

/// One operation. Sequences are chosen by number, modulo those that there are.
#[derive(Debug, Clone)]
pub enum Operation {
    Create {
        salt: u8,
        reserve: usize,
    },
    Fork(usize),
    Free(usize),
    Rm(Option<usize>, usize, Span),
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
    FailUpdate(usize),
    Stale(usize),
    Step(Vec<NewRows>, End),
    SwapOut(usize),
    SwapIn(usize),
    OffloadPrefix,
    /// So many rows for a new sequence, with the seed of their tokens.
    Prompt(usize, Option<u32>),
    /// Saves all, and continues with a new manager of another mode that has loaded it.
    Reload(Mode, LoadFault),
    /// Saves a sequence, turns rows of it if there is a delta, and loads what was saved.
    Copy(usize, i64, LoadFault),
}

/// The call of a memory that fails while sequences are saved and loaded, and whether it panics.
pub type LoadFault = Option<(usize, bool)>;

impl End {
    fn draw(entropy: &mut Unstructured) -> Self {
        match entropy.below(15) {
            10 => Self::DropPlanned,
            11 => Self::DropStep,
            12 => Self::Detach,
            13 => Self::Leak,
            14 => Self::Fail(entropy.below(4)),
            _ => Self::Commit,
        }
    }
}

impl NewRows {
    fn draw(entropy: &mut Unstructured) -> Self {
        Self {
            seq: entropy.below(8),
            n: if entropy.one_in(4) { (entropy.below(4), entropy.below(6)) } else { (0, 1) },
            tokens: some(entropy, 4, 5, |entropy| entropy.below(3) as u32),
            gap: some(entropy, 1, 10, |entropy| match entropy.one_in(8) {
                true => MAX_POSITION - entropy.below(9) as i64,
                false => entropy.below(7) as i64 - 2,
            }),
        }
    }
}

impl Operation {
    pub fn draw(entropy: &mut Unstructured) -> Self {
        let fault = |entropy: &mut Unstructured| some(entropy, 3, 10, |entropy| (entropy.below(4), entropy.one_in(4)));
        let (which, seq) = (entropy.below(37), entropy.below(8));
        match which {
            0..14 => {
                let rows = (0..entropy.below(5)).map(|_| NewRows::draw(entropy)).collect();
                Self::Step(rows, End::draw(entropy))
            }
            14 | 15 => Self::Create { salt: entropy.below(2) as u8, reserve: entropy.below(12) },
            16 | 17 => Self::Fork(seq),
            18 | 19 => Self::Free(seq),
            20 | 21 => Self::Rm((!entropy.one_in(10)).then_some(seq), seq, Span::draw(entropy)),
            22 => Self::Cut(seq, entropy.below(6) as i64),
            23 => Self::Cp(seq, some(entropy, 3, 10, |entropy| entropy.below(8)), Span::draw(entropy)),
            24 | 25 => {
                let (span, far) = (Span::draw(entropy), entropy.one_in(24));
                Self::Add(seq, span, if far { entropy.pick(&FAR) } else { entropy.below(17) as i64 - 8 })
            }
            26 => {
                let (span, far) = (Span::draw(entropy), entropy.one_in(24));
                Self::Div(seq, span, if far { entropy.pick(&FAR) } else { entropy.below(4) as i64 })
            }
            27 => {
                let n_discard = some(entropy, 3, 10, |entropy| entropy.below(6) as i64);
                Self::ContextShift { seq, n_keep: entropy.below(6) as i64, n_discard }
            }
            28 => Self::Defrag(some(entropy, 1, 2, |entropy| entropy.below(3))),
            29 => Self::Compact(entropy.below(3)),
            30 => Self::Update,
            31 => Self::FailUpdate(entropy.below(2)),
            32 => Self::Stale(seq),
            33 => Self::Keep(seq),
            34 => Self::Prompt(entropy.within(1, 30), some(entropy, 4, 5, |_| 1)),
            35 => Self::Reload(modes(entropy), fault(entropy)),
            _ => Self::Copy(seq, entropy.below(3) as i64, fault(entropy)),
        }
    }

    /// Operations that leave cached pages, pages that are used in part, pages that move, and lost sequences; and
    /// prompts that find them.
    pub fn draw_of_prefixes(entropy: &mut Unstructured) -> Self {
        // Others leave holes.
        let tokens = |entropy: &mut Unstructured| some(entropy, 7, 10, |_| 1);
        let (which, seq) = (entropy.below(30), entropy.below(4));
        match which {
            0..6 => Self::Prompt(entropy.within(3, 12), tokens(entropy)),
            6..10 => Self::Free(seq),
            10 => Self::Fork(seq),
            11..14 => Self::Cut(seq, entropy.within(1, 5) as i64),
            14..18 => Self::Compact(entropy.within(1, 2)),
            18 => Self::Add(seq, Span::draw(entropy), entropy.below(4) as i64),
            19 => Self::Update,
            20..24 => Self::FailUpdate(entropy.below(2)),
            24..27 => {
                let rows = |entropy: &mut Unstructured| NewRows {
                    seq: entropy.below(4),
                    n: (0, entropy.within(1, 10)),
                    tokens: tokens(entropy),
                    gap: None,
                };
                let rows = (0..entropy.within(1, 2)).map(|_| rows(entropy)).collect();
                let end = match entropy.below(9) {
                    6 => End::DropStep,
                    7 | 8 => End::Fail(entropy.below(3)),
                    _ => End::Commit,
                };
                Self::Step(rows, end)
            }
            _ => {
                let fault = some(entropy, 1, 2, |entropy| (entropy.below(3), entropy.one_in(4)));
                Self::Copy(seq, entropy.below(3) as i64, fault)
            }
        }
    }
}

impl Operation {
    /// Operations of a manager with a store: as `draw`, without reloads, and with swaps, offloads and
    /// operations of prefixes.
    pub fn draw_with_store(entropy: &mut Unstructured) -> Self {
        match entropy.below(12) {
            0 | 1 => Self::SwapOut(entropy.below(8)),
            2 | 3 => Self::SwapIn(entropy.below(8)),
            4 if entropy.one_in(4) => Self::OffloadPrefix,
            4..9 => Self::draw_of_prefixes(entropy),
            _ => match Self::draw(entropy) {
                Self::Reload(..) => Self::Update,
                operation => operation,
            },
        }
    }
}

/// What a seed draws. It does not shrink: another seed draws something else, nothing simpler.
pub fn drawn<T: std::fmt::Debug>(draw: fn(&mut Unstructured) -> T) -> impl Strategy<Value = T> {
    any::<u64>().no_shrink().prop_map(move |seed| draw(&mut Unstructured::seed(seed)))
}

/// Scripts of fewer operations than this, which shrink to fewer.
pub fn operations(draw: fn(&mut Unstructured) -> Operation, end: usize) -> impl Strategy<Value = Vec<Operation>> {
    prop::collection::vec(drawn(draw), 1..end)
}
