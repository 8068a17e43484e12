//! Implementations run on cases, and the diagnosis of what they did.

use kvcache_conformance::diagnosis::{Diagnosable, KnownMistakes, RunDiagnosis, Trial};
use kvcache_conformance::{Case, Demand, Implementation, Suite};

use crate::answers::DYNAMIC;

/// Cases that leave open how refusals are worded, as the oracle does.
pub fn unworded<'a, C: Suite + Clone + 'a>(cases: impl IntoIterator<Item = &'a C>) -> Vec<C> {
    let mut cases: Vec<_> = cases.into_iter().cloned().collect();
    cases.iter_mut().for_each(Suite::forget_messages);
    cases
}

/// The cases, but for most of those that are there for every combination of layouts and types: they take long, and tell
/// few mistakes apart.
pub fn telling() -> Vec<Case> {
    let (every, mut cases): (Vec<_>, Vec<_>) =
        unworded(&*DYNAMIC).into_iter().partition(|case| case.name.starts_with("layout"));
    cases.extend(every.into_iter().step_by(7));
    cases.retain(|case| case.cache.bytes().len() < 6000 || case.name.starts_with("group"));
    cases
}

/// The diagnosis of an implementation, and the rules of the cases that failed.
pub fn diagnosed<C: Diagnosable>(
    implementation: &(impl Implementation<C> + ?Sized),
    cases: &[C],
    known: &KnownMistakes<'_, C>,
) -> (RunDiagnosis, Vec<String>) {
    let results: Vec<_> = cases.iter().map(|case| implementation.run(case).ok()).collect();
    let trial = |(case, results): (usize, &'_ Option<Vec<_>>)| {
        let passes = |results: &Vec<_>| cases[case].difference(results, Demand::AsExpected).is_none();
        (case, results.as_ref().is_some_and(passes))
    };
    let passed: Vec<_> = results.iter().enumerate().map(trial).collect();
    let trials: Vec<_> =
        passed.iter().map(|&(case, passed)| Trial { case, results: results[case].as_deref(), passed }).collect();
    let failed = trials.iter().filter(|trial| !trial.passed);
    let rules = failed.flat_map(|trial| cases[trial.case].rules().to_vec()).collect();
    (known.diagnose_run(&trials), rules)
}
