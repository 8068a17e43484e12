//! Implementations run on cases, and the diagnosis of what they did.

use kvcache_conformance::diagnosis::{KnownMistakes, RunDiagnosis, Trial};
use kvcache_conformance::{CallResult, Case, Demand, Implementation, Suite, cases};

/// The cases, but for most of those that are there for every combination of layouts and types: they take long, and tell
/// few mistakes apart.
pub fn telling() -> Vec<Case> {
    let (every, mut cases): (Vec<_>, Vec<_>) =
        cases().unwrap().into_iter().partition(|case| case.name.starts_with("layout"));
    cases.extend(every.into_iter().step_by(7));
    cases.retain(|case| case.cache.bytes().len() < 6000 || case.name.starts_with("group"));
    cases
}

/// The diagnosis of an implementation, and the rules of the cases that failed.
pub fn diagnosed<A, I>(
    implementation: &dyn Implementation<A, I>,
    cases: &[Case<A, I>],
    known: &KnownMistakes<'_, Case<A, I>>,
) -> (RunDiagnosis, Vec<String>)
where
    Case<A, I>: kvcache_conformance::diagnosis::Diagnosable + Suite<Result = CallResult>,
{
    let results: Vec<_> = cases.iter().map(|case| implementation.run(case).ok()).collect();
    diagnosis_of(&results, cases, known)
}

/// The same of results that there are already; `None` of a case that could not be run.
pub fn diagnosis_of<C: kvcache_conformance::diagnosis::Diagnosable>(
    results: &[Option<Vec<C::Result>>],
    cases: &[C],
    known: &KnownMistakes<'_, C>,
) -> (RunDiagnosis, Vec<String>) {
    let trials: Vec<_> = results
        .iter()
        .enumerate()
        .map(|(case, results)| {
            let results = results.as_deref();
            let passes = |results| cases[case].difference(results, Demand::AsExpected).is_none();
            Trial { case, results, passed: results.is_some_and(passes) }
        })
        .collect();
    let failed = trials.iter().filter(|trial| !trial.passed);
    let rules = failed.flat_map(|trial| cases[trial.case].rules().to_vec()).collect();
    (known.diagnose_run(&trials), rules)
}
