//! Scripts of operations on a manager and its model, on caches of all modes.

use std::sync::Arc;

use kvcache_manager::Mode;
use kvcache_testing::manager::cache::Cache;
use kvcache_testing::manager::run::Run;
use kvcache_testing::manager::script::{Operation, drawn, operations};
use kvcache_testing::manager::store::Store;
use proptest::prelude::*;
use proptest::sample::select;

/// Does a script, with all checks after each operation.
fn run(cache: &Cache, operations: &[Operation]) -> Run {
    follow(Run::new(cache), operations)
}

fn follow(mut run: Run, operations: &[Operation]) -> Run {
    for operation in operations {
        run.apply(operation);
        run.check();
    }
    run
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_manager_is_the_model(cache in drawn(Cache::draw), operations in operations(Operation::draw, 50)) {
        run(&cache, &operations);
    }

    #[test]
    fn no_prompt_finds_a_page_without_its_bytes(
        cache in drawn(Cache::draw_of_prefixes),
        operations in operations(Operation::draw_of_prefixes, 50),
    ) {
        run(&cache, &operations);
    }

    #[test]
    fn a_window_that_keeps_rows_is_the_model(
        cache in drawn(Cache::draw_of_kept_rows),
        has_store: bool,
        operations in operations(Operation::draw_with_store, 50),
    ) {
        let store = has_store.then(Arc::<Store>::default);
        follow(store.map_or_else(|| Run::new(&cache), |store| Run::with_store(&cache, store)), &operations);
    }

    /// Whatever a store does, rows are the model's.
    #[test]
    fn tiers_change_no_row(
        cache in prop_oneof![drawn(Cache::draw), drawn(Cache::draw_of_prefixes)],
        faults in proptest::option::of(any::<u64>()),
        operations in operations(Operation::draw_with_store, 60),
    ) {
        let store = faults.map_or_else(Store::default, Store::faulty);
        follow(Run::with_store(&cache, Arc::new(store)), &operations);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Many operations, which fill caches; then all is freed.
    #[test]
    fn long_scripts(cache in drawn(Cache::draw), operations in prop::collection::vec(drawn(Operation::draw), 400)) {
        let mut run = run(&cache, &operations);
        while !run.ids.is_empty() {
            run.free(0);
        }
        run.check();
        prop_assert_eq!((run.manager.stats().used, run.manager.stats().shared), (0, 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn defragmentation_is_dense_and_idempotent_and_keeps_every_row(
        mode in select(&[Mode::Runs, Mode::Cells, Mode::Paged { page_size: 1 }, Mode::Paged { page_size: 4 }][..]),
        cache in drawn(Cache::draw),
        max_moves in proptest::option::of(1_usize..4),
        operations in operations(Operation::draw, 60),
    ) {
        let cache = Cache {
            mode,
            max_t: 160,
            max_pages: None,
            prefix_sharing: false,
            window: None,
            keep_rows: false,
            defrag_threshold: None,
            ..cache
        };
        let mut run = Run::new(&cache);
        for operation in operations.iter().filter(|operation| !matches!(operation, Operation::Reload(..))) {
            run.apply(operation);
        }
        run.check();
        let (mut rounds, at_most) = (0, if max_moves.is_none() { 1 } else { cache.max_t });
        while !run.manager.defrag(max_moves).unwrap().is_empty() {
            // Before the moves are made, and after them.
            run.check();
            if rounds % 2 == 0 {
                run.update();
                run.check();
            }
            rounds += 1;
            prop_assert!(rounds <= at_most);
        }
        let stats = run.manager.stats();
        prop_assert_eq!(stats.largest_free_run, stats.free);
        prop_assert!(run.live().iter().all(|&slot| slot < stats.used), "rows are at the front");
        prop_assert_eq!(run.manager.defrag(None).unwrap(), []);
    }
}
