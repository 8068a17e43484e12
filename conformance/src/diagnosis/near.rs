//! Results that are not the right ones, and so near to them that only roundings can be otherwise.

use kvcache_schema::ElementType;

use crate::case::Types;
use crate::difference::Value;
use crate::oracle::decisions::StoredParts;
use crate::oracle::{Behavior, Oracle, State};
use crate::tensor::Tensor;

/// Two floats of which one comes from another rounding are at most so many floats apart.
const MOST_ULPS: u64 = 2;

/// What differs from what is right by no more than a rounding, or by the sign of zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Near {
    scales: bool,
    codes: bool,
    values: bool,
    zeros: bool,
}

/// What is said of near results, and of which.
pub(super) struct Kind {
    pub(super) name: &'static str,
    pub(super) rule: &'static str,
    pub(super) about: &'static str,
    pub(super) is_of: fn(Near) -> bool,
}

/// What can be said of near results, and of which it can be said: the most specific first.
pub(super) const KINDS: [Kind; 4] = [
    Kind {
        name: "sign-of-zero",
        rule: "conversion.same-type",
        about: "Zeros have the other sign, 0.0 in place of -0.0 or the reverse, and all else is right: every bit is kept, \
                and a code of 0 is loaded as the product with its scale, 0.0.",
        is_of: |near| near.zeros && !near.scales && !near.codes && !near.values,
    },
    Kind {
        name: "codes-off-by-one",
        rule: "quantizing.ties-to-even",
        about: "Codes differ from the specified ones by at most one, and all else follows from that: x / s is computed \
                otherwise, or rounded otherwise, as by an approximate division or at random. It is rounded to T1, and \
                then to the nearest integer, ties to even.",
        is_of: |near| near.codes && !near.scales && !near.values,
    },
    Kind {
        name: "values-off-by-a-unit",
        rule: "dequantizing.converted-to-t1",
        about: "Loaded or converted values differ from the specified ones in the last place alone: look for a rounding \
                to T3 or T1 that is left out, done twice, or is not to nearest, ties to even.",
        is_of: |near| near.values && !near.scales && !near.codes,
    },
    Kind {
        name: "scales-off-by-a-unit",
        rule: "quantizing.amax-quotient",
        about: "Scales differ from the specified ones in the last place alone, and all else follows from that: amax / \
                qmax is computed or rounded otherwise, as by an approximate division.",
        is_of: |near| !near.values && (near.scales || near.codes),
    },
];

/// An oracle that loads what is in the cache, and stores nothing.
pub(super) fn loading() -> Oracle {
    Oracle { behavior: Behavior { stored: StoredParts::Neither, ..Behavior::default() }, ..Oracle::default() }
}

/// How two elements differ.
enum Apart {
    Alike,
    SignOfZero,
    Near,
    Far,
}

impl Near {
    /// Compares `cache` and `scale` after a call with the right ones; `None` if they are too far from these.
    pub(super) fn compare_state(
        &mut self,
        State { cache: right, scale: right_scale }: &State,
        (cache, scale): (&Tensor, Option<&Tensor>),
        quantizes: bool,
    ) -> Option<()> {
        if quantizes {
            self.scales |= self.differ(right_scale.as_ref()?, scale?, |value| value)?;
            self.codes |= self.differ(right, cache, |value| value)?;
            return Some(());
        }
        self.values |= self.differ(right, cache, |value| value)?;
        (right_scale.as_ref() == scale).then_some(())
    }

    /// Compares the outputs of a call with what loads from the cache that it left.
    pub(super) fn compare_outputs(&mut self, right: &[Tensor], outputs: &[Tensor], types: Types) -> Option<()> {
        let is_narrow = [Some(types.t1), Some(types.t2), types.t3].contains(&Some(ElementType::Float16));
        let narrow = |value: Value| if is_narrow { value.rounded(ElementType::Float16) } else { value };
        for (right, output) in right.iter().zip(outputs) {
            self.values |= self.differ(right, output, narrow)?;
        }
        (right.len() == outputs.len()).then_some(())
    }

    /// Whether elements differ by a rounding of `narrow` values; `None` if two differ by more, or the tensors in more
    /// than elements.
    fn differ(&mut self, right: &Tensor, got: &Tensor, narrow: impl Fn(Value) -> Value) -> Option<bool> {
        if (right.element(), right.shape()) != (got.element(), got.shape()) {
            return None;
        }
        let mut differ = false;
        for i in 0..Value::count(right) {
            match apart(Value::at(right, i), Value::at(got, i), &narrow) {
                Apart::Alike => {}
                Apart::SignOfZero => self.zeros = true,
                Apart::Near => differ = true,
                Apart::Far => return None,
            }
        }
        Some(differ)
    }
}

fn apart(right: Value, got: Value, narrow: impl Fn(Value) -> Value) -> Apart {
    if right == got || right.is_nan() && got.is_nan() {
        return Apart::Alike;
    }
    let near = match (right.integer(), got.integer()) {
        (Some(right), Some(got)) => right.abs_diff(got) <= 1,
        _ if right.is_zero() && got.is_zero() => return Apart::SignOfZero,
        _ => narrow(right).ulps(narrow(got)).is_some_and(|ulps| ulps <= MOST_ULPS),
    };
    if near { Apart::Near } else { Apart::Far }
}
