//! The known mistakes of attention: each is wrong in some case, and, as an implementation, is diagnosed by its own
//! name.

use std::collections::BTreeSet;

use kvcache_conformance::attention::{Case, Implementation, cases};
use kvcache_conformance::diagnosis::KnownMistakes;
use kvcache_conformance::mistakes::mistakes;
use kvcache_conformance::oracle::Oracle;

use super::trial::diagnosis_of;

/// Some of attention, and a few of those of the cache, each of which its own suite diagnoses.
#[test]
fn each_is_diagnosed() {
    let mut cases = cases().unwrap();
    // The others take most of the time, and tell no mistakes apart that these do not.
    let size = |case: &Case| -> usize {
        case.steps.iter().flat_map(|step| step.inputs.values()).map(|tensor| tensor.bytes().len()).sum()
    };
    cases.retain(|case| size(case) < 6000 && !["layout1", "layout2"].iter().any(|name| case.name.starts_with(name)));
    let known = KnownMistakes::new(&cases);
    let of_attention = mistakes().iter().filter(|mistake| mistake.is_of_attention()).step_by(41);
    let of_cache = mistakes().iter().filter(|mistake| !mistake.is_of_attention()).step_by(127);
    let (mut problems, mut shown) = (Vec::new(), 0);
    for mistake in of_attention.chain(of_cache) {
        let Some(broken) = mistake.rule_on(cases[0].page()) else { continue };
        let (name, of_cache, oracle) = (mistake.name.as_str(), !mistake.is_of_attention(), mistake.oracle());
        let results: Vec<_> = cases.iter().map(|case| Implementation::run(&oracle, case).ok()).collect();
        let (diagnosis, failed) = diagnosis_of(&results, &cases, &known);
        // KeyValueCache has cases of its own, and not every mistake in it shows in attention.
        if of_cache && diagnosis.failed == 0 {
            continue;
        }
        shown += 1;
        // Blocks that are long show in the long cases alone.
        let is_shown = !of_cache && !name.starts_with("streaming");
        if is_shown && !failed.iter().any(|rule| rule == broken) {
            let rules: BTreeSet<_> = failed.iter().collect();
            problems.push(format!("{name} fails no case of rule {broken}, but of {rules:?}"));
        }
        // For the same reason some mistakes in the cache give the same here.
        let is_right = match &diagnosis.explanations[..] {
            [only] => only.mistake == name || of_cache && only.or.contains(&name),
            // Where every wrong access is outside of a tensor, and the oracle fails there, nothing can be told.
            [] => diagnosis.to_string().contains("a place outside of the cache"),
            _ => false,
        };
        if !is_right || !diagnosis.unexplained.is_empty() && !diagnosis.explanations.is_empty() {
            problems.push(format!("{name}: of {} failures: {diagnosis}", diagnosis.failed));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(shown > 3, "{shown}");
}

#[test]
fn the_oracle_without_mistakes_is_not_accused() {
    let cases: Vec<Case> = cases().unwrap();
    let results: Vec<_> = cases.iter().map(|case| Implementation::run(&Oracle::default(), case).ok()).collect();
    let (diagnosis, _) = diagnosis_of(&results, &cases, &KnownMistakes::new(&cases));
    assert_eq!((diagnosis.failed, diagnosis.to_string().as_str()), (0, ""));
}
