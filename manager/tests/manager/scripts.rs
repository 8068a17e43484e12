//! Scripts of operations on a manager and its model, on caches of all modes.

use kvcache_manager::Mode;
use kvcache_manager::schema::CacheLayout;
use kvcache_testing::manager::rows::Turns;
use kvcache_testing::manager::run::Run;
use kvcache_testing::manager::script::{Cache, End, NewRows, Operation, drawn, operations};
use kvcache_testing::manager::types::{TYPES, layouts};
use proptest::prelude::*;
use proptest::sample::select;

/// Does a script, with all checks after each operation.
fn run(cache: &Cache, operations: &[Operation]) -> Run {
    let mut run = Run::new(cache);
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

/// The modes that must agree, and page sizes.
const MODES: [Mode; 6] = [
    Mode::Runs,
    Mode::Cells,
    Mode::Paged { page_size: 1 },
    Mode::Paged { page_size: 2 },
    Mode::Paged { page_size: 16 },
    Mode::Paged { page_size: 128 },
];

/// A cache with room for all of a short script.
fn roomy(mode: Mode, layout: CacheLayout, types: usize) -> Cache {
    Cache {
        layout,
        types,
        mode,
        max_t: 6000,
        max_pages: None,
        prefix_sharing: matches!(mode, Mode::Paged { .. }),
        window: None,
        turns: Some(Turns { n_rot: 6, base: 1e4, scale: 1.0, neox: true }),
        raw: false,
        shift_limit: Some(None),
        pad: 32,
        defrag_threshold: None,
    }
}

/// Positions, keys and values of all sequences.
fn contents(run: &Run) -> Vec<(Vec<i64>, Vec<u8>)> {
    let positions = |seq: usize| run.manager.positions(run.ids[seq]).unwrap().collect();
    (0..run.ids.len()).map(|seq| (positions(seq), run.rows(seq, &run.memory))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 64, ..ProptestConfig::with_cases(16) })]

    #[test]
    fn one_script_gives_the_same_rows_in_all_modes_layouts_and_page_sizes(
        types in 0..TYPES.len(),
        operations in operations(Operation::draw, 40),
    ) {
        // Which call of a memory fails, and what is lost then, depends on the mode.
        let same =
            |operation: &Operation| !operation.fails() && !matches!(operation, Operation::Copy(..) | Operation::Reload(..));
        let operations: Vec<_> = operations.into_iter().filter(same).collect();
        let mut expected = None;
        for (i, mode) in MODES.into_iter().enumerate() {
            let mut run = Run::new(&roomy(mode, CacheLayout::ALL[i % CacheLayout::ALL.len()], types));
            for operation in &operations {
                run.apply(operation);
            }
            run.update();
            run.check();
            prop_assert_eq!(run.no_room, 0);
            let contents = contents(&run);
            let expected = expected.get_or_insert_with(|| contents.clone());
            prop_assert!(*expected == contents, "{:?} has other rows", mode);
        }
    }
}

/// All modes, with small pages.
const SMALL: [Mode; 4] = [Mode::Runs, Mode::Cells, Mode::Paged { page_size: 1 }, Mode::Paged { page_size: 4 }];

fn append(seq: usize, n: usize, tokens: Option<u32>) -> NewRows {
    NewRows { seq, n: (0, n), tokens, gap: None }
}

fn step(run: &mut Run, rows: &[NewRows]) {
    run.step(rows, End::Commit);
    run.check();
}

#[test]
fn beam_search_by_forks_and_frees() {
    const BEAMS: usize = 4;
    for mode in SMALL {
        let mut run = Run::new(&Cache { max_t: 1200, ..roomy(mode, CacheLayout::HeadMajor, 4) });
        run.create(0, 0);
        step(&mut run, &[append(0, 9, Some(0))]);
        for i in 0..20 {
            // Each beam in as many ways as there are beams; of those, some go on.
            let beams = run.ids.len();
            for beam in 0..beams {
                (1..BEAMS).for_each(|_| run.fork(beam));
            }
            let ways: Vec<NewRows> = (0..run.ids.len()).map(|seq| append(seq, 1, Some(seq as u32))).collect();
            step(&mut run, &ways);
            for _ in BEAMS..run.ids.len() {
                run.free(i * 7 % run.ids.len());
            }
            run.check();
        }
        assert_eq!((run.ids.len(), run.no_room), (BEAMS, 0));
        assert!(run.model.seqs.iter().all(|sequence| sequence.rows.len() == 29));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_chunking_gives_the_same_bytes(
        mode in select(SMALL.to_vec()),
        layout in layouts(),
        types in 0..TYPES.len(),
        chunks in prop::collection::vec(1_usize..12, 1..8),
    ) {
        let n = chunks.iter().sum();
        let cache = Cache { max_t: 256, prefix_sharing: false, ..roomy(mode, layout, types) };
        let mut run = Run::new(&cache);
        run.create(0, 0);
        run.create(0, 0);
        step(&mut run, &[append(0, n, Some(3))]);
        for chunk in chunks {
            step(&mut run, &[append(1, chunk, Some(3))]);
        }
        prop_assert_eq!(run.model.seqs[0].rows.len(), n);
        let contents = contents(&run);
        prop_assert!(contents[0] == contents[1]);
    }

    #[test]
    fn defragmentation_is_dense_and_idempotent_and_keeps_every_row(
        mode in select(SMALL.to_vec()),
        layout in layouts(),
        types in 0..TYPES.len(),
        max_moves in proptest::option::of(1_usize..4),
        operations in operations(Operation::draw, 60),
    ) {
        let cache = Cache { max_t: 160, prefix_sharing: false, ..roomy(mode, layout, types) };
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
