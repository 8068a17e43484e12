//! Mutation testing: kernels with one bug each fail a golden case, or violate the rules for kernels.

// A sanitizer ends the process at a mutant's bug.
#![cfg(not(feature = "sanitize"))]

#[path = "common/golden.rs"]
mod golden;

use golden::Player;
use kvcache_conformance::{CallResult, Case, Implementation, Report, Types, run, static_batching};
use kvcache_emulation_kernels::{Build, EmulatedCuda, FAITHFUL, MUTANTS, Order};
use kvcache_op::{ElementType, StaticAttributes};

/// Kernels for one combination of types.
struct Partial(Player, &'static Build);

impl Implementation for Partial {
    fn run(&self, case: &Case) -> Result<Vec<CallResult>, String> {
        self.0.run(case)
    }

    fn cannot_run(&self, case: &Case) -> Option<String> {
        self.lacks(case.types, case.attributes.quant_bit)
    }
}

impl Implementation<StaticAttributes, static_batching::StepInputs> for Partial {
    fn run(&self, case: &static_batching::Case) -> Result<Vec<CallResult>, String> {
        self.0.run(case)
    }

    fn cannot_run(&self, case: &static_batching::Case) -> Option<String> {
        self.lacks(case.types, case.attributes.quant_bit)
    }
}

impl Partial {
    /// Why a case of these types cannot be run, if so.
    fn lacks(&self, types: Types, quant_bit: i64) -> Option<String> {
        let t3 = types.t3.filter(|_| quant_bit != 0);
        let types: Vec<_> =
            [Some(types.t1), Some(types.t2), t3].into_iter().flatten().map(ElementType::short_name).collect();
        (types.join("_") != self.1.types).then(|| "other types".to_owned())
    }
}

/// How often the golden cases fail on kernels, and the first failure.
fn failures(build: &'static Build) -> (usize, String) {
    let cases = kvcache_conformance::cases().expect("the golden cases can be read");
    let static_cases = static_batching::cases().expect("the golden cases can be read");
    let mut found = (0, String::new());
    for unaligned in [false, true] {
        for order in [Order::Forward, Order::Backward] {
            let kernel = EmulatedCuda { build: Some(build), unaligned, order, ..EmulatedCuda::default() };
            let partial = Partial(Player(kernel), build);
            let reports: [Report; 2] = [run(&partial, &cases), run(&partial, &static_cases)];
            for report in reports {
                assert!(report.passed() + report.failed() > 2, "{build:?}: no case has its types");
                if let Some((entry, difference)) = report.failures().next().filter(|_| found.0 == 0) {
                    found.1 = format!("{}: {difference}", entry.case);
                }
                found.0 += report.failed();
            }
        }
    }
    found
}

#[test]
fn every_mutant_fails_a_case() {
    let survivors: Vec<_> = MUTANTS
        .iter()
        .filter(|mutant| {
            let (count, first) = failures(mutant);
            println!("{mutant:?}: {count} failures, the first is {first}");
            count == 0
        })
        .collect();
    assert!(survivors.is_empty(), "{survivors:?}");
}

/// The unchanged kernels pass on the same runner.
#[test]
fn unchanged_kernels_fail_no_case() {
    for build in &FAITHFUL {
        let (count, first) = failures(build);
        assert_eq!(count, 0, "{build:?}: {first}");
    }
}
