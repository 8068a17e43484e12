//! The oracle in Rust against the values of the one in numpy.

use kvcache_golden::oracle::Oracle;
use kvcache_golden::{Implementation, cases, run, static_batching};

#[test]
fn the_oracle_passes_every_case() {
    let report = run(&Oracle::default() as &dyn Implementation, &cases().unwrap());
    assert!(report.failed() == 0 && report.passed() > 500, "{report}");
    let report = run(&Oracle::default(), &static_batching::cases().unwrap());
    assert!(report.failed() == 0 && report.passed() > 200, "{report}");
}
