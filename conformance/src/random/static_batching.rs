//! Random cases of static batching.

use kvcache_schema::{StaticAttributes, StaticCacheDims, StaticCacheLayout, TypeCombination};

use super::defects::{attribute, case, change_current, change_index};
use super::entropy::{Entropy, bits, indices, scales, values};
use super::plan::{Planned, choice, group, head_dim};
use crate::case::Types;
use crate::oracle::Inputs;
use crate::static_batching::{Case, StepInputs};

/// So many cases of a seed, named `random-SEED-I`.
pub fn cases(n: usize, seed: u64) -> Vec<Case> {
    (0..n).map(|i| case_of(&mut Entropy::case(!seed, i), format!("random-{seed}-{i}"))).collect()
}

/// A case of small calls, all of them legal or one that breaks a rule.
pub fn any_case(entropy: &mut Entropy) -> Case {
    case_of(entropy, "any".to_owned())
}

/// A legal call of sequences with fewer past and current tokens than `tokens`, and heads of up to `max_inner` groups.
pub fn call(entropy: &mut Entropy, max_inner: usize, tokens: usize) -> Planned<StaticAttributes, StepInputs> {
    let types = entropy.pick(&TypeCombination::LEGAL);
    let layout = entropy.pick(&StaticCacheLayout::ALL);
    let (num_layer, group) = (entropy.within(1, 3), group(entropy, types.quant_bit));
    let (inner, num_heads) = (entropy.below(max_inner + 1), entropy.below(4));
    let head_dim = head_dim(types, inner, group, 300);
    let (batch, start_pos, seqlen) = (entropy.below(4), entropy.below(tokens), entropy.below(tokens));
    let choice = choice(entropy, types.t2, group);
    let dims = StaticCacheDims {
        max_b: batch + entropy.below(3),
        max_s: start_pos + seqlen + entropy.below(3),
        num_layer,
        num_heads,
        inner: head_dim,
    };
    let attributes = StaticAttributes {
        num_layer: num_layer as i64,
        layer_idx: entropy.below(num_layer) as i64,
        quant_bit: types.quant_bit,
        quant_group: group as i64,
        num_repeat: entropy.within(1, 4) as i64,
        cache_layout: layout.code(),
        quant_type: types.quant_type(),
    };
    let entropy = &mut entropy.fork();
    let current = [batch, seqlen, num_heads, head_dim];
    let (cache, scale) = (layout.shape(dims), layout.shape(StaticCacheDims { inner: head_dim / group, ..dims }));
    Planned {
        types: Types { t1: types.t1, t2: types.t2, t3: types.t3 },
        attributes,
        inputs: StepInputs {
            current_key: values(entropy, types.t1, &current, choice),
            current_value: values(entropy, types.t1, &current, choice),
            start_pos: indices(&[], &[start_pos as i64]),
        },
        cache: if types.t3.is_some() {
            bits(entropy, types.t2, &cache)
        } else {
            values(entropy, types.t2, &cache, choice)
        },
        scale: types.t3.map(|t3| scales(entropy, t3, &scale)),
    }
}

fn case_of(entropy: &mut Entropy, name: String) -> Case {
    let tokens = if entropy.one_in(24) { 150 } else { 6 };
    let mut on = call(entropy, 2, tokens).with_unused_scale(entropy);
    // Other calls of fewer sequences and tokens on the same node.
    let &[batch, _, num_heads, head_dim] = on.inputs.current_key.shape() else { unreachable!("it has four axes") };
    let (kvlen, t1) = (on.inputs.kvlen() as usize, on.types.t1);
    let choice = choice(entropy, on.types.t2, on.attributes.quant_group as usize);
    let other = |entropy: &mut Entropy| {
        let seqlen = entropy.below(kvlen + 1);
        let shape = [entropy.below(batch + 1), seqlen, num_heads, head_dim];
        let start_pos = indices(entropy.pick(&[&[][..], &[1][..]]), &[entropy.below(kvlen - seqlen + 1) as i64]);
        let [current_key, current_value] = [(); 2].map(|()| values(&mut entropy.fork(), t1, &shape, choice));
        StepInputs { current_key, current_value, start_pos }
    };
    let mut calls: Vec<_> = (0..entropy.below(3)).map(|_| other(entropy)).collect();
    calls.insert(0, on.inputs.clone());
    let mut about = "Random legal calls.";
    if entropy.one_in(3) {
        on.defect(entropy, change);
        calls = vec![on.inputs.clone()];
        about = "A random call that is not legal, or one that is.";
    }
    case(name, about, on, calls)
}

fn change(entropy: &mut Entropy, call: &mut Planned<StaticAttributes, StepInputs>) {
    match entropy.below(8) {
        0 => {
            let spec = &StaticAttributes::SPEC[entropy.below(StaticAttributes::SPEC.len())];
            let value = attribute(entropy, spec.value(&call.attributes));
            assert!(call.attributes.set(spec.name, value), "an attribute's own name");
        }
        1 => call.change_types(entropy, call.attributes.quant_bit),
        2 => call.change_state(entropy),
        3 => call.inputs.current_value = change_current(entropy, &call.inputs.current_value),
        4 => call.inputs.current_key = change_current(entropy, &call.inputs.current_key),
        5 | 6 => call.inputs.start_pos = change_index(entropy, &call.inputs.start_pos),
        _ => {
            // More sequences, or more positions, than the cache has.
            let inputs = &mut call.inputs;
            let mut shape = inputs.current_key.shape().to_vec();
            shape[entropy.below(2)] += 5;
            inputs.current_key = bits(&mut entropy.fork(), inputs.current_key.element(), &shape);
            inputs.current_value = inputs.current_key.clone();
        }
    }
}
