//! Random cases of dynamic batching.

use super::defects::{case, change_inputs, change_node};
use super::entropy::Entropy;
use super::plan::{Plan, Planned};
use crate::case::Case;

/// So many cases of a seed, named `random-SEED-I`.
pub fn cases(n: usize, seed: u64) -> Vec<Case> {
    (0..n).map(|i| case_of(&mut Entropy::case(seed, i), format!("random-{seed}-{i}"))).collect()
}

/// A case of small calls, all of them legal or one that breaks a rule.
pub fn any_case(entropy: &mut Entropy) -> Case {
    case_of(entropy, "any".to_owned())
}

fn case_of(entropy: &mut Entropy, name: String) -> Case {
    let mut plan = Plan::small(entropy);
    let mut inputs = |entropy: &mut Entropy| {
        plan.draw_sequences(entropy);
        plan.inputs(entropy)
    };
    let (mut calls, max_ts): (Vec<_>, Vec<_>) = (0..entropy.within(1, 4)).map(|_| inputs(entropy)).unzip();
    let max_t = max_ts.into_iter().max().unwrap_or_default();
    let mut on = plan.planned(entropy, calls[0].clone(), max_t).with_unused_scale(entropy);
    let mut about = "Random legal calls.";
    match entropy.below(6) {
        3 => {
            on.defect(entropy, change_node);
            calls = vec![on.inputs.clone()];
            about = "A random call on a node that is not legal, or on one that is.";
        }
        4 | 5 => {
            let at = entropy.below(calls.len());
            let mut call = Planned { inputs: calls[at].clone(), ..on.clone() };
            call.defect(entropy, change_inputs);
            calls.insert(at, call.inputs);
            about = "Random legal calls, and one that is refused between them.";
        }
        _ => {}
    }
    case(name, about, on, calls)
}
