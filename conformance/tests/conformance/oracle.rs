//! The oracle in Rust against the values of the one in numpy.

use kvcache_conformance::oracle::Oracle;
use kvcache_conformance::oracle::PredictedOutcome;
use kvcache_conformance::{Expected, Implementation, Tensor, attention, cases, run, static_batching};

#[test]
fn the_oracle_passes_every_case() {
    let report = run(&Oracle::default() as &dyn Implementation, &cases().unwrap());
    assert!(report.failed() == 0 && report.passed() > 500, "{report}");
    let report = run(&Oracle::default(), &static_batching::cases().unwrap());
    assert!(report.failed() == 0 && report.passed() > 200, "{report}");
}

#[test]
fn the_oracle_of_attention_passes_every_case() {
    let report = attention::run(&Oracle::default(), &attention::cases().unwrap());
    assert!(report.failed() == 0 && report.passed() > 300, "{report}");
}

/// The elements of a float32 tensor.
fn numbers(tensor: &Tensor) -> impl Iterator<Item = f64> + Clone {
    tensor.bytes().as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes).into())
}

#[test]
fn outputs_and_tolerances_of_attention_are_those_of_numpy() {
    let oracle = Oracle::default();
    let mut elements = 0;
    for case in attention::cases().unwrap() {
        for (step, prediction) in case.steps.iter().zip(oracle.predict_attention(&case, &[])) {
            let (Expected::Success(after), PredictedOutcome::Done(output)) = (&step.expected, prediction.outcome)
            else {
                continue;
            };
            // Both sum in float64, and the files have float32.
            let close = |a: f64, b: f64| a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= 2e-7 * b.abs() + 1e-12;
            assert!(numbers(&after.attn_output).zip(&output.values).all(|(a, &b)| close(a, b)), "{}", case.name);
            // The files' tolerance covers the rounding of the output to float32.
            let enough =
                |(file, own): &(f64, f64)| *own <= file * 1.001 + 1e-44 && (file - own).abs() <= 0.3 * file + 1e-44;
            let pairs = numbers(&after.tolerance).zip(output.tolerance.iter().copied());
            assert_eq!(pairs.clone().find(|pair| !enough(pair)), None, "{}", case.name);
            elements += pairs.count();
        }
    }
    assert!(elements > 200_000);
}
