//! The model's comparisons fail where there is a mistake, in the memory or in the model.

use kvcache_manager::Mode;
use kvcache_manager::schema::CacheLayout;

use kvcache_testing::manager::rows::Turns;
use kvcache_testing::manager::run::Run;
use kvcache_testing::manager::script::{Cache, End, NewRows};
use kvcache_testing::manager::sequences::Window;

fn cache(types: usize) -> Cache {
    Cache {
        layout: CacheLayout::LayerMajor,
        types,
        mode: Mode::Paged { page_size: 4 },
        max_t: 32,
        max_pages: None,
        prefix_sharing: true,
        window: None,
        turns: Some(Turns { n_rot: 8, base: 1e4, scale: 1.0, neox: true }),
        raw: false,
        shift_limit: None,
        pad: 32,
        defrag_threshold: None,
    }
}

fn rows(seq: usize, n: usize) -> NewRows {
    NewRows { seq, n: (0, n), tokens: Some(1), gap: None }
}

fn step(run: &mut Run, rows: &[NewRows]) {
    run.step(rows, End::Commit);
    run.check();
}

/// A sequence of six rows.
fn six_rows(cache: &Cache) -> Run {
    let mut run = Run::new(cache);
    run.create(0, 0);
    step(&mut run, &[rows(0, 6)]);
    run
}

/// A fork whose two sequences go on.
fn fork(run: &mut Run) {
    run.fork(0);
    step(run, &[rows(0, 1), rows(1, 1)]);
}

/// An edit that moves and turns rows.
fn edit(run: &mut Run) {
    run.rm(Some(0), 0, 1);
    run.add(0, 0, -1, -1);
    run.update();
    run.check();
}

#[test]
#[should_panic(expected = "row 4 of layer 0")]
fn no_copy_on_write() {
    let mut run = six_rows(&cache(0));
    run.faults.no_copies = true;
    fork(&mut run);
}

#[test]
#[should_panic(expected = "of layer 0")]
fn a_copy_without_scales() {
    let mut run = six_rows(&cache(3));
    run.faults.no_scales = true;
    fork(&mut run);
}

#[test]
#[should_panic(expected = "other bytes")]
fn a_rotation_without_scales() {
    let mut run = six_rows(&cache(5));
    run.faults.no_scales = true;
    run.add(0, 0, -1, 3);
    run.update();
    run.check();
}

#[test]
#[should_panic(expected = "other bytes")]
fn a_delta_that_is_applied_twice() {
    let mut run = six_rows(&cache(1));
    run.model.rules.turns = Some(Turns { scale: 2.0, ..run.cache.turns.unwrap() });
    edit(&mut run);
}

#[test]
#[should_panic(expected = "positions of sequence 0")]
fn a_window_off_by_one() {
    let window = |width| Some(Window { width, sink: 0, slack: 0 });
    let mut run = Run::new(&Cache { window: window(5), mode: Mode::Runs, prefix_sharing: false, ..cache(0) });
    run.model.rules.window = window(4);
    run.create(0, 0);
    for _ in 0..8 {
        step(&mut run, &[rows(0, 1)]);
    }
}
