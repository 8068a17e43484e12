//! Whatever remote stores do: what tiers give is what was put, and nobody waits for a store that hangs.

use std::sync::Arc;
use std::time::Duration;

use kvcache_manager::{BlockKind, BlockStore};
use kvcache_testing::manager::store::{Fault, Store};
use kvcache_testing::random::Unstructured;
use kvcache_tiers::{HostTier, Tier, Tiers};
use proptest::prelude::*;

use crate::{block_of, ends, holding, key, keys};

const KEYS: u8 = 12;

#[derive(Debug, Clone)]
enum Op {
    Put(u8),
    Get(u8),
    Chain(u8, u8),
    Prefetch(u8, u8),
    Contains(u8),
    Delete(u8),
    Flush,
}

fn op() -> impl Strategy<Value = Op> {
    let range = || (0..KEYS, 0..KEYS).prop_map(|(a, b)| (a.min(b), a.max(b)));
    prop_oneof![
        6 => (0..KEYS).prop_map(Op::Put),
        4 => (0..KEYS).prop_map(Op::Get),
        4 => range().prop_map(|(from, to)| Op::Chain(from, to)),
        2 => range().prop_map(|(from, to)| Op::Prefetch(from, to)),
        1 => (0..KEYS).prop_map(Op::Contains),
        1 => (0..KEYS).prop_map(Op::Delete),
        2 => Just(Op::Flush),
    ]
}

/// Faults of calls, half of which have none.
fn faults() -> impl Strategy<Value = Vec<Fault>> {
    any::<u64>().prop_map(|seed| {
        let entropy = &mut Unstructured::seed(seed);
        let fault = |_| if entropy.one_in(2) { Fault::None } else { Fault::draw(entropy, true) };
        (0..seed % 12).map(fault).collect()
    })
}

/// Every third block is of one sequence alone.
fn block(i: u8) -> kvcache_manager::Block {
    block_of(if i.is_multiple_of(3) { BlockKind::Private } else { BlockKind::Prefix }, i)
}

fn run(tiers: &Tiers, op: &Op) {
    match *op {
        // It may be that nothing has room for it.
        Op::Put(i) => drop(tiers.put(&key(i), block(i))),
        Op::Get(i) => {
            if let Ok(Some(found)) = tiers.get(&key(i)) {
                assert_eq!(found, block(i));
            }
        }
        Op::Chain(from, to) => {
            let (blocks, error) = tiers.get_chain(&keys(from..to));
            let expected: Vec<_> = (from..to).take(blocks.len()).map(block).collect();
            assert_eq!(blocks, expected);
            assert!(error.is_none() || blocks.len() < usize::from(to - from));
        }
        Op::Prefetch(from, to) => tiers.prefetch(&keys(from..to)),
        Op::Contains(i) => drop(tiers.contains(&key(i))),
        Op::Delete(i) => drop(tiers.delete(&key(i))),
        Op::Flush => drop(tiers.flush(Duration::from_millis(5))),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The gate of those that hang opens only when all is done.
    #[test]
    fn tiers_give_what_was_put_or_nothing(
        ops in prop::collection::vec(op(), 1..30),
        faults in [faults(), faults()],
        capacity in 0u64..800,
    ) {
        let stores = faults.map(|faults| holding(0..0, &faults));
        let remote = stores.clone();
        let (tiers, stats) = ends(move || {
            let tier = |(i, store): (usize, Arc<Store>)| Tier::new(i.to_string(), store);
            let remote = remote.into_iter().enumerate().map(tier).map(|tier| tier.deadline(Duration::from_millis(10)));
            let tiers = Tiers::new(HostTier::new(capacity), remote).unwrap();
            ops.iter().for_each(|op| run(&tiers, op));
            let stats = tiers.stats();
            (tiers, stats)
        });
        for stats in stats {
            prop_assert!(stats.name != "host" || stats.nbytes <= Some(capacity));
        }
        stores.iter().for_each(|store| store.gate.open());
        ends(|| drop(tiers));
    }
}
