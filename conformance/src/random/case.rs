//! What random cases of both operators have in common: which rules a call breaks, and what calls must do.

use super::entropy::has_nan;
use super::plan::Planned;
use crate::case::{After, Case, Expected, NanRule, Step, Types};
use crate::oracle::{Call, Inputs, Oracle, PredictedOutcome, Prediction, State};
use crate::tensor::Tensor;

/// The kind of error of the one rule that a call breaks, if it breaks any: `Err` if it breaks several.
pub(super) fn broken<A, I: Inputs<A>>(
    types: Types,
    attributes: &A,
    inputs: &I,
    cache: &Tensor,
    scale: Option<&Tensor>,
) -> Result<Option<&'static str>, ()> {
    let call = Call { types, attributes, inputs, cache, scale };
    let mut kinds = I::broken_rules(&call);
    kinds.dedup();
    match kinds[..] {
        [] => Ok(None),
        [kind] => Ok(Some(kind)),
        _ => Err(()),
    }
}

/// A case whose calls must do what the oracle does; `inputs` of what is planned are not among them.
pub(super) fn case<A: Clone, I: Inputs<A>>(name: String, about: &str, on: Planned<A, I>, calls: Vec<I>) -> Case<A, I> {
    let Planned { types, attributes, cache, scale, .. } = on;
    let about = about.to_owned();
    let unknown = || Expected::Refusal { kind: String::new(), mentions: Vec::new() };
    let steps = calls.into_iter().map(|inputs| Step { inputs, expected: unknown() }).collect();
    let folder = name.clone().into();
    let mut case =
        Case { name, folder, about, rules: Vec::new(), types, attributes, nan: NanRule::Exact, cache, scale, steps };
    let expected: Vec<_> = Oracle::default().predict(&case).map(expected).collect();
    for (step, expected) in case.steps.iter_mut().zip(expected) {
        step.expected = expected;
    }
    // Arithmetic makes NaN with the bits of the machine; where values are copied they keep theirs.
    let arithmetic = types.t1 != types.t2;
    let outputs = |step: &Step<I>| match &step.expected {
        Expected::Success(after) => after.outputs.iter().chain(&after.cache).chain(&after.scale).any(has_nan),
        Expected::Refusal { .. } => false,
    };
    if arithmetic && case.steps.iter().any(outputs) {
        case.nan = NanRule::Any;
    }
    case
}

pub(super) fn expected(Prediction { outcome, state }: Prediction) -> Expected {
    match (outcome, state.as_deref()) {
        (PredictedOutcome::Done(outputs), Some(State { cache, scale })) => {
            let (cache, scale) = (Some(cache.clone()), scale.clone());
            Expected::Success(Box::new(After { outputs, tolerance: None, unrounded: None, cache, scale }))
        }
        (PredictedOutcome::Refused(kind), _) => Expected::Refusal { kind: kind.to_owned(), mentions: Vec::new() },
        (outcome, _) => unreachable!("the oracle without mistakes knows what a call does: {outcome:?}"),
    }
}

impl<A: Clone, I: Inputs<A>> Planned<A, I> {
    /// The call as a case, which must do what the oracle does.
    pub fn case(self) -> Case<A, I> {
        let calls = vec![self.inputs.clone()];
        case("planned".to_owned(), "A random legal call.", self, calls)
    }
}
