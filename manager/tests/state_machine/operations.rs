//! Random caches, and random operations on them.

use kvcache_manager::schema::CacheLayout;
use proptest::prelude::*;
use proptest_state_machine::ReferenceStateMachine;

use crate::common::{TYPES, layouts};

/// The cache that a sequence of transitions is run on.
#[derive(Debug, Clone)]
pub struct Cache {
    pub layout: CacheLayout,
    pub types: usize,
    pub page_size: usize,
    pub num_pages: usize,
    pub max_pages: Option<usize>,
    pub prefix_sharing: bool,
}

/// How a step ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Commit,
    DropPlanned,
    DropStep,
    Leak,
    FailCopies(usize),
}

#[derive(Debug, Clone)]
pub struct NewRows {
    pub seq: usize,
    /// In tokens of a page, and some.
    pub n: (usize, usize),
    /// The seed of the tokens, if they are known: the same seed gives the same ones.
    pub tokens: Option<u32>,
    pub gap: Option<i64>,
}

/// One operation. Sequences are chosen by number, modulo those that there are.
#[derive(Debug, Clone)]
pub enum Operation {
    Create {
        salt: u8,
    },
    Fork(usize),
    Free(usize),
    /// Which one, and how many positions.
    Truncate(usize, i64),
    /// Empties all others.
    Keep(usize),
    Stale(usize),
    Step(Vec<NewRows>, End),
}

pub struct Operations;

impl ReferenceStateMachine for Operations {
    type State = Cache;
    type Transition = Operation;

    fn init_state() -> BoxedStrategy<Cache> {
        let page_size = proptest::sample::select(vec![1, 2, 3, 16]);
        let max_pages = proptest::option::weighted(0.3, 3_usize..10);
        (layouts(), 0..TYPES.len(), page_size, 4_usize..24, max_pages, proptest::bool::weighted(0.9))
            .prop_map(|(layout, types, page_size, num_pages, max_pages, prefix_sharing)| Cache {
                layout,
                types,
                page_size,
                num_pages,
                max_pages,
                prefix_sharing,
            })
            .boxed()
    }

    fn transitions(_: &Cache) -> BoxedStrategy<Operation> {
        let end = prop_oneof![
            8 => Just(End::Commit),
            1 => Just(End::DropPlanned),
            1 => Just(End::DropStep),
            1 => Just(End::Leak),
            1 => (0_usize..2).prop_map(End::FailCopies),
        ];
        let n = prop_oneof![3 => Just((0, 1)), 1 => (0_usize..4, 0_usize..4)];
        let gap = proptest::option::weighted(0.1, -2_i64..5);
        let rows = (0_usize..8, n, proptest::option::weighted(0.8, 0_u32..3), gap);
        let rows = rows.prop_map(|(seq, n, tokens, gap)| NewRows { seq, n, tokens, gap });
        prop_oneof![
            2 => (0_u8..2).prop_map(|salt| Operation::Create { salt }),
            2 => (0_usize..8).prop_map(Operation::Fork),
            2 => (0_usize..8).prop_map(Operation::Free),
            1 => (0_usize..8, 0_i64..20).prop_map(|(seq, n)| Operation::Truncate(seq, n)),
            1 => (0_usize..8).prop_map(Operation::Stale),
            1 => (0_usize..8).prop_map(Operation::Keep),
            12 => (prop::collection::vec(rows, 0..5), end).prop_map(|(rows, end)| Operation::Step(rows, end)),
        ]
        .boxed()
    }

    fn apply(state: Cache, _: &Operation) -> Cache {
        state
    }
}
