//! What random cases of both operators have in common: the node's types and attributes, and what its calls must do.

use kvcache_schema::{ElementType, TypeCombination};

use super::entropy::Entropy;
use super::values::{Choice, bits, has_nan, scales, values};
use crate::case::{After, Case, Expected, NanRule, Step, Types};
use crate::oracle::{Call, Inputs, Oracle, PredictedOutcome, PredictedState};
use crate::tensor::Tensor;

/// The types and sizes of a node.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) types: Types,
    pub(super) quant_bit: i64,
    pub(super) quant_group: usize,
    pub(super) num_layer: usize,
    pub(super) layer_idx: usize,
    pub(super) num_heads: usize,
    pub(super) head_dim: usize,
    pub(super) num_repeat: usize,
    pub(super) choice: Choice,
}

impl Node {
    pub(super) fn new(entropy: &mut Entropy) -> Self {
        let TypeCombination { quant_bit, t1, t2, t3 } = entropy.pick(&TypeCombination::LEGAL);
        // Without quantization a scale may be given all the same.
        let t3 = t3.or_else(|| entropy.one_in(6).then(|| entropy.pick(&ElementType::T3)));
        let quant_group = match quant_bit {
            0 => entropy.within(1, 9),
            4 => 2 * entropy.within(1, 4),
            _ => entropy.within(1, 8),
        };
        let head_dim = if quant_bit == 0 { entropy.within(1, 9) } else { quant_group * entropy.within(1, 3) };
        let num_layer = entropy.within(1, 3);
        let qmax = if quant_bit == 4 { 7.0 } else { 127.0 };
        Self {
            types: Types { t1, t2, t3 },
            quant_bit,
            quant_group,
            num_layer,
            layer_idx: entropy.below(num_layer),
            num_heads: entropy.within(1, 3),
            head_dim,
            num_repeat: entropy.pick(&[1, 1, 2, 3, 4]),
            choice: Choice { group: quant_group, qmax, non_finite: entropy.one_in(8) },
        }
    }

    /// Current keys or values of this shape.
    pub(super) fn current(&self, entropy: &mut Entropy, shape: &[usize]) -> Tensor {
        if self.copies() && entropy.one_in(3) {
            return bits(entropy, self.types.t1, shape);
        }
        values(entropy, self.types.t1, shape, self.choice)
    }

    /// What is in the cache before.
    pub(super) fn cache(&self, entropy: &mut Entropy, shape: &[usize]) -> Tensor {
        if self.copies() || self.quant_bit != 0 {
            return bits(entropy, self.types.t2, shape);
        }
        values(entropy, self.types.t2, shape, self.choice)
    }

    /// What is in the scale before, if there is one. `shape` is that of scales that are used.
    pub(super) fn scale(&self, entropy: &mut Entropy, shape: &[usize]) -> Option<Tensor> {
        let t3 = self.types.t3?;
        // What is not used may have any shape.
        let any = [entropy.below(4), 3];
        Some(scales(entropy, t3, if self.quant_bit == 0 { &any } else { shape }))
    }

    /// Groups of a head, where they are used.
    pub(super) fn groups(&self) -> usize {
        self.head_dim / self.quant_group.max(1)
    }

    fn copies(&self) -> bool {
        self.quant_bit == 0 && self.types.t1 == self.types.t2
    }
}

/// The kind of error of the one rule that a call breaks, if it breaks any: `Err` if it breaks several.
pub(super) fn broken<A, I: Inputs<A>>(
    types: Types,
    attributes: &A,
    inputs: &I,
    cache: &Tensor,
    scale: Option<&Tensor>,
) -> Result<Option<&'static str>, ()> {
    let call = Call { types, attributes, inputs, cache, scale };
    let mut kinds: Vec<_> = I::broken_rules(&call, &Oracle::default().behavior).iter().map(|rule| rule.kind).collect();
    kinds.dedup();
    match kinds[..] {
        [] => Ok(None),
        [kind] => Ok(Some(kind)),
        _ => Err(()),
    }
}

/// A case whose calls must do what the oracle does.
pub(super) fn case<A, I: Inputs<A>>(
    (seed, i): (u64, usize),
    about: String,
    types: Types,
    attributes: A,
    (cache, scale): (Tensor, Option<Tensor>),
    calls: Vec<I>,
) -> Case<A, I> {
    let name = format!("random-{seed}-{i}");
    let unknown = || Expected::Refusal { kind: String::new(), mentions: Vec::new() };
    let steps = calls.into_iter().map(|inputs| Step { inputs, expected: unknown() }).collect();
    let folder = name.clone().into();
    let mut case =
        Case { name, folder, about, rules: Vec::new(), types, attributes, nan: NanRule::Exact, cache, scale, steps };
    let expected: Vec<_> = Oracle::default()
        .predict(&case)
        .into_iter()
        .map(|prediction| match (prediction.outcome, prediction.state) {
            (PredictedOutcome::Done(outputs), PredictedState::Known(cache, scale)) => {
                Expected::Success(Box::new(After { outputs: *outputs, cache, scale }))
            }
            (PredictedOutcome::Refused(kind, _), _) => {
                Expected::Refusal { kind: kind.to_owned(), mentions: Vec::new() }
            }
            (outcome, _) => unreachable!("the oracle without mistakes knows what a call does: {outcome:?}"),
        })
        .collect();
    for (step, expected) in case.steps.iter_mut().zip(expected) {
        step.expected = expected;
    }
    // Arithmetic makes NaN with the bits of the machine; where values are copied they keep theirs.
    let arithmetic = types.t1 != types.t2;
    let outputs = |step: &Step<I>| match &step.expected {
        Expected::Success(after) => {
            let After { outputs, cache, scale } = &**after;
            [&outputs.key, &outputs.value, cache].into_iter().chain(scale).any(has_nan)
        }
        Expected::Refusal { .. } => false,
    };
    if arithmetic && case.steps.iter().any(outputs) {
        case.nan = NanRule::Any;
    }
    case
}
