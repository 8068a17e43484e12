//! Mutation testing: kernels with one bug each fail a golden case, or violate the rules for kernels.

use kvcache_emulation_kernels::{ATTENTION, ATTENTION_MUTANTS, Build, EmulatedCuda, FAITHFUL, MUTANTS, Order};

use crate::golden::{attended, stored};

/// How often the golden cases of the suite fail on kernels.
fn failures(build: &'static Build, attends: bool) -> usize {
    let devices = [(false, Order::Forward), (true, Order::Forward), (false, Order::Backward), (true, Order::Backward)];
    let failed = devices.map(|(unaligned, order)| {
        let device = EmulatedCuda { build: Some(build), unaligned, order, ..EmulatedCuda::default() };
        let reports: Vec<_> = match attends {
            true => vec![attended(device, if order == Order::Forward { usize::MAX } else { 0 })],
            false => stored(device).into(),
        };
        assert!(reports.iter().all(|report| report.passed() + report.failed() > 0), "{build:?}: no case has its types");
        reports.iter().map(|report| report.failed()).sum::<usize>()
    });
    failed.into_iter().sum()
}

#[test]
fn every_mutant_fails_a_case() {
    assert!(MUTANTS.len() > 10 && ATTENTION_MUTANTS.len() > 5);
    for (mutants, attends) in [(MUTANTS, false), (ATTENTION_MUTANTS, true)] {
        let survivors: Vec<_> = mutants.iter().filter(|mutant| failures(mutant, attends) == 0).collect();
        assert!(survivors.is_empty(), "{survivors:?}");
    }
}

/// The unchanged kernels pass on the same runner.
#[test]
fn unchanged_kernels_fail_no_case() {
    for (builds, attends) in [(FAITHFUL, false), (ATTENTION, true)] {
        assert!(builds.iter().all(|build| failures(build, attends) == 0));
    }
}
