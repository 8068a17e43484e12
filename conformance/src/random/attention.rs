//! Random calls of the attention operators.

use std::collections::BTreeMap;
use std::path::PathBuf;

use kvcache_schema::{AttentionAttributes, CacheAttentionAttributes, ElementType};

use super::defects::{change_current, change_index, expected};
use super::entropy::{Choice, Entropy, floats, indices, values};
use super::plan::{Plan, Planned};
use crate::attention::{Case, Operator};
use crate::case::{Expected, NamedInputs, Step};
use crate::oracle::attention::Attended;
use crate::oracle::{Oracle, PredictedOutcome, Prediction};
use crate::tensor::Tensor;

/// A case of one call, mostly a legal one, which must do what the oracle does: of several causal or other sequences,
/// with masks, ALiBi, or keys of several queries.
pub fn case(entropy: &mut Entropy) -> Case {
    let mut plan = Plan::draw(entropy, 4, 10);
    while !matches!(plan.types.t1, ElementType::Float32 | ElementType::Float16) {
        plan.types = Plan::draw(&mut entropy.fork(), 0, 1).types;
    }
    plan.group = if plan.types.quant_bit == 4 { plan.group.next_multiple_of(2) } else { plan.group }.min(64);
    (plan.num_heads, plan.inner) = (plan.num_heads.max(1), plan.inner.max(1));
    (plan.num_repeat, plan.moderate) = (1, true);
    if let Some((past, _)) = plan.sequences.first_mut().filter(|_| entropy.one_in(8)) {
        // About as many keys as whole blocks of them, or more than are gone through at once.
        *past = 16 * entropy.within(1, 80) + entropy.below(3);
    }
    let operator = entropy.pick(&[Operator::MultiHeadCacheAttention, Operator::MultiHeadAttention]);
    let Planned { types, attributes, inputs, cache, scale } = plan.call(entropy);
    let head_dim = inputs.current_key.shape()[2];
    let queries_per_head = entropy.within(1, 4);
    let num_heads = plan.num_heads * queries_per_head;
    let choice = Choice { group: head_dim, qmax: 127.0, non_finite: false, moderate: true };
    let lengths: Vec<[usize; 2]> = plan.sequences.iter().map(|&(past, current)| [current, past + current]).collect();
    let [tokens, keys] = [0, 1].map(|i| lengths.iter().map(|lengths| lengths[i]).sum::<usize>());

    let mut of: BTreeMap<&'static str, Tensor> =
        inputs.named().into_iter().map(|(name, tensor)| (name, tensor.clone())).collect();
    let random = &mut entropy.fork();
    of.insert("query", values(random, types.t1, &[tokens, num_heads, head_dim], choice));
    of.insert("decoding_batches", indices(&[], &[entropy.below(plan.sequences.len() + 1) as i64]));
    let planes = entropy.pick(&[None, None, Some(1), Some(num_heads)]);
    if let Some(planes) = planes {
        let (mask, width) = mask(random, &lengths, planes);
        let shape = [planes, tokens, width];
        let shape = if planes == 1 && num_heads != 1 { &shape[1..] } else { &shape };
        of.insert("attn_mask", floats(types.t1, shape, &mask));
    }
    if operator == Operator::MultiHeadAttention {
        let rows = [keys, plan.num_heads, head_dim];
        of.insert("key", values(random, types.t1, &rows, choice));
        of.insert("value", values(random, types.t1, &rows, choice));
        of.retain(|name, _| operator.inputs().contains(name));
    }
    if entropy.one_in(3) {
        change(entropy, &mut of);
    }
    let is_cached = operator == Operator::MultiHeadCacheAttention;
    let attention = AttentionAttributes {
        num_heads: num_heads as i64,
        head_dim: head_dim as i64,
        is_causal: entropy.below(2) as i64,
        is_alibi: i64::from(entropy.one_in(4)),
        num_kv_heads: if queries_per_head == 1 { 0 } else { plan.num_heads as i64 },
    };
    let unknown = Expected::Refusal { kind: String::new(), mentions: Vec::new() };
    let mut case = Case {
        name: "random".to_owned(),
        folder: PathBuf::new(),
        about: "A random call.".to_owned(),
        rules: Vec::new(),
        operator,
        attributes: CacheAttentionAttributes { attention, cache: attributes },
        t1: types.t1,
        cache: is_cached.then_some(cache),
        scale: scale.filter(|_| is_cached),
        has_mass: false,
        steps: vec![Step { inputs: of, expected: unknown }],
    };
    case.steps[0].expected = expected_of(&case);
    case
}

fn expected_of(case: &Case) -> Expected {
    let oracle = Oracle::default();
    let Some(Prediction { outcome, state }) = oracle.predict_attention(case, None).next() else {
        unreachable!("a case of one call")
    };
    let (outcome, unrounded) = match outcome {
        PredictedOutcome::Done(attended) => {
            let both = |one: &Attended| {
                let values: Vec<_> = (0..one.values.len()).map(|i| one.expected(i)).collect();
                [&values, &one.tolerance].map(|values| floats(ElementType::Float32, &one.shape, values))
            };
            (PredictedOutcome::Done(both(&attended).into()), attended.unrounded.as_deref().map(both))
        }
        PredictedOutcome::Refused(kind) => (PredictedOutcome::Refused(kind), None),
        outcome => unreachable!("the oracle without mistakes knows what a call does: {outcome:?}"),
    };
    let mut expected = expected(Prediction { outcome, state });
    if let Expected::Success(after) = &mut expected {
        after.tolerance = after.outputs.pop().into_iter().collect();
        after.unrounded = unrounded.map(|pair| pair.map(|tensor| vec![tensor]));
        after.cache = after.cache.take().filter(|_| case.cache.is_some());
    }
    expected
}

/// The values of a mask: NaN wherever nobody may read, and in some columns behind all keys. Some queries see no early
/// key, or only late ones, or none.
fn mask(entropy: &mut Entropy, lengths: &[[usize; 2]], planes: usize) -> (Vec<f64>, usize) {
    let keys: usize = lengths.iter().map(|[_, keys]| keys).sum();
    let width = keys + entropy.below(3);
    let mut mask = Vec::new();
    for _ in 0..planes {
        let mut first = 0;
        for &[queries, keys] in lengths {
            for _ in 0..queries {
                let hidden = entropy.pick(&[0, 0, 0, keys / 2, keys.saturating_sub(3), keys]);
                let value = |entropy: &mut Entropy, key: usize| match entropy.below(6) {
                    _ if key < hidden => f64::NEG_INFINITY,
                    0 => f64::NEG_INFINITY,
                    step => step as f64 / 4.0 - 1.0,
                };
                mask.resize(mask.len() + first, f64::NAN);
                (0..keys).for_each(|key| mask.push(value(entropy, key)));
                mask.resize(mask.len() + width - first - keys, f64::NAN);
            }
            first += keys;
        }
    }
    (mask, width)
}

/// Changes an input, so that the call mostly is illegal.
fn change(entropy: &mut Entropy, of: &mut BTreeMap<&'static str, Tensor>) {
    let names: Vec<_> = of.keys().copied().collect();
    let name = entropy.pick(&names);
    let Some(input) = of.get_mut(name) else { return };
    *input = match input.element() {
        ElementType::Int64 => change_index(entropy, input),
        _ => change_current(entropy, input),
    };
}
