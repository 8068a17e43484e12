//! Sessions of any sequences that cannot be loaded change nothing. (That what is saved is loaded is among the scripts.)

use kvcache_manager::{Manager, SeqId};
use kvcache_testing::manager::memory::{Faults, Memory};
use kvcache_testing::manager::run::Run;
use kvcache_testing::manager::script::{Cache, Operation, drawn, operations};
use proptest::prelude::*;

use crate::session::Path;

/// What a script leaves, with nothing queued.
fn run(cache: &Cache, operations: &[Operation]) -> Run {
    let mut run = Run::new(cache);
    operations.iter().for_each(|operation| run.apply(operation));
    run.create(0, 0);
    run.update();
    run
}

/// Each sequence's positions and rows.
fn contents(manager: &Manager, memory: &Memory, seqs: &[SeqId]) -> Vec<(Vec<i64>, Vec<u8>)> {
    let rows = |seq| memory.read(&manager.slots(seq).unwrap().collect::<Vec<_>>());
    seqs.iter().map(|&seq| (manager.positions(seq).unwrap().collect(), rows(seq))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// A failure at any write leaves sequences, their rows and the pages that were not to be written.
    #[test]
    fn a_failing_memory_changes_nothing(
        cache in drawn(Cache::draw),
        operations in operations(Operation::draw, 25),
        fails_at in 0usize..4,
        panics in any::<bool>(),
    ) {
        let path = Path::new();
        let Run { mut manager, mut memory, ids, .. } = run(&cache, &operations);
        manager.save(path.file(), &memory).unwrap();
        // Some stay, others are cached or free now.
        for &seq in ids.iter().skip(1).step_by(2) {
            manager.free(seq).unwrap();
        }
        let left: Vec<_> = ids.iter().copied().step_by(2).collect();
        let expected = contents(&manager, &memory, &left);
        let (stats, before) = (manager.stats(), manager.clone());
        memory.calls.set(0);
        memory.faults = Faults { fails_at: Some(fails_at), panics };
        let last = ids.len() - 1;
        let load = std::panic::AssertUnwindSafe(|| manager.load_seq(path.file(), &mut memory, last));
        let loaded = std::panic::catch_unwind(load);
        manager.check().unwrap();
        if !matches!(loaded, Ok(Ok(_))) {
            if let Ok(Err(error)) = &loaded {
                prop_assert!(["memory", "no_room", "no_slot", "too_many_pages"].contains(&error.kind()), "{error}");
                prop_assert!(error.kind() == "memory" || manager == before);
            }
            let got = manager.stats();
            prop_assert_eq!((got.used, got.shared, got.sequences), (stats.used, stats.shared, stats.sequences));
            prop_assert_eq!(got.free + got.cached, stats.free + stats.cached);
        }
        prop_assert!(contents(&manager, &memory, &left) == expected);
    }
}
