//! Results that are not the right ones, and so near to them that only roundings can be otherwise.

use kvcache_schema::ElementType;

use crate::case::{Case, Outputs, Types};
use crate::difference::Value;
use crate::implementation::{CallResult, Outcome};
use crate::mistakes::{Mistake, near};
use crate::oracle::{Behavior, Inputs, Oracle, PredictedOutcome, PredictedState};
use crate::tensor::Tensor;

/// Two floats of which one comes from another rounding are at most so many floats apart.
const MOST_ULPS: u64 = 2;

/// What differs from what is right by no more than a rounding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Near {
    pub(super) scales: bool,
    pub(super) codes: bool,
    pub(super) values: bool,
}

/// What is said of near results, and of which.
pub(super) type Kind = (&'static Mistake, fn(Near) -> bool);

/// What can be said of near results, and of which it can be said: the most specific first.
pub(super) const KINDS: [Kind; 3] = [
    (&near::CODES, |near| !near.scales && !near.values),
    (&near::VALUES, |near| !near.scales && !near.codes),
    (&near::SCALES, |near| !near.values),
];

/// An oracle that loads what is in the cache, and stores nothing.
pub(super) fn loading() -> Oracle {
    Oracle { behavior: Behavior { stored: [None, None], ..Behavior::default() } }
}

/// What differs in the results of a case, each call being given the state that the one before left: `None` if nothing
/// does, or more than a rounding explains.
pub(super) fn near<A, I: Inputs<A>>(case: &Case<A, I>, results: &[CallResult]) -> Option<Near> {
    if results.len() != case.steps.len() {
        return None;
    }
    let quantizes = I::shared(&case.attributes).quant_bit != 0;
    let (mut near, mut before) = (Near::default(), (&case.cache, case.scale.as_ref()));
    for (step, CallResult { outcome, cache, scale }) in case.steps.iter().zip(results) {
        let after = (cache, scale.as_ref());
        let right = Oracle::default().predict_one(case, step, before);
        match (right.outcome, outcome) {
            (PredictedOutcome::Done(_), Outcome::Done(outputs)) => {
                let PredictedState::Known(right_cache, right_scale) = &right.state else { return None };
                near.compare_state((right_cache, right_scale.as_ref()), after, quantizes)?;
                let loaded = loading().predict_one(case, step, after);
                let PredictedOutcome::Done(loaded) = loaded.outcome else { return None };
                near.compare_outputs(&loaded, outputs, case.types)?;
            }
            (PredictedOutcome::Refused(..), Outcome::Refused { .. }) if before == after => {}
            _ => return None,
        }
        before = after;
    }
    Some(near).filter(|near| *near != Near::default())
}

impl Near {
    /// Compares `cache` and `scale` after a call with the right ones; `None` if they are too far from these.
    pub(super) fn compare_state(
        &mut self,
        (right, right_scale): (&Tensor, Option<&Tensor>),
        (cache, scale): (&Tensor, Option<&Tensor>),
        quantizes: bool,
    ) -> Option<()> {
        if quantizes {
            self.scales |= differ(right_scale?, scale?, is_next)?;
            self.codes |= differ(right, cache, |right, got| {
                right.integer().zip(got.integer()).is_some_and(|(right, got)| right.abs_diff(got) <= 1)
            })?;
            return Some(());
        }
        self.values |= differ(right, cache, is_next)?;
        (right_scale == scale).then_some(())
    }

    /// Compares the outputs of a call with what loads from the cache that it left.
    fn compare_outputs(&mut self, right: &Outputs, outputs: &Outputs, types: Types) -> Option<()> {
        let is_narrow = [Some(types.t1), Some(types.t2), types.t3].contains(&Some(ElementType::Float16));
        let is_near = |right: Value, got: Value| {
            let narrow = |value: Value| if is_narrow { value.rounded(ElementType::Float16) } else { value };
            is_next(narrow(right), narrow(got))
        };
        self.values |= differ(&right.key, &outputs.key, is_near)?;
        self.values |= differ(&right.value, &outputs.value, is_near)?;
        Some(())
    }
}

/// Whether any elements differ; `None` if two differ too much, or the tensors in more than elements.
fn differ(right: &Tensor, got: &Tensor, is_near: impl Fn(Value, Value) -> bool) -> Option<bool> {
    if (right.element(), right.shape()) != (got.element(), got.shape()) {
        return None;
    }
    let pairs = (0..Value::count(right)).map(|i| (Value::at(right, i), Value::at(got, i)));
    let mut others = pairs.filter(|(right, got)| right != got && !(right.is_nan() && got.is_nan())).peekable();
    let differ = others.peek().is_some();
    others.all(|(right, got)| is_near(right, got)).then_some(differ)
}

/// Whether a float is one that another rounding may give.
fn is_next(right: Value, got: Value) -> bool {
    right.ulps(got).is_some_and(|ulps| ulps <= MOST_ULPS)
}
