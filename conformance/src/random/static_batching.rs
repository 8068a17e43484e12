//! Random cases of static batching.

use kvcache_schema::{StaticAttributes, StaticCacheDims, StaticCacheLayout};

use super::case::{Node, case};
use super::defects::{Defective, attribute, break_current, break_index, break_state, break_types};
use super::entropy::Entropy;
use super::values::{bits, indices};
use crate::static_batching::{Case, StepInputs};

/// So many cases of a seed, named `random-SEED-I`.
pub fn cases(n: usize, seed: u64) -> Vec<Case> {
    (0..n).map(|i| random_case(seed, i)).collect()
}

fn random_case(seed: u64, i: usize) -> Case {
    let mut entropy = Entropy::case(!seed, i);
    let entropy = &mut entropy;
    let node = Node::new(entropy);
    let layout = entropy.pick(&StaticCacheLayout::ALL);
    let (max_b, max_s) = (entropy.within(1, 4), entropy.within(1, 9));
    let mut attributes = StaticAttributes {
        num_layer: node.num_layer as i64,
        layer_idx: node.layer_idx as i64,
        quant_bit: node.quant_bit,
        quant_group: node.quant_group as i64,
        num_repeat: node.num_repeat as i64,
        cache_layout: layout.code(),
    };
    let dims =
        StaticCacheDims { max_b, max_s, num_layer: node.num_layer, num_heads: node.num_heads, inner: node.head_dim };
    let cache = node.cache(entropy, &layout.shape(dims));
    let scale = node.scale(entropy, &layout.shape(StaticCacheDims { inner: node.groups(), ..dims }));
    let mut call = || {
        let kvlen = entropy.below(max_s + 1);
        let seqlen = entropy.below(kvlen + 1);
        let shape = [entropy.below(max_b + 1), seqlen, node.num_heads, node.head_dim];
        StepInputs {
            current_key: node.current(entropy, &shape),
            current_value: node.current(entropy, &shape),
            start_pos: indices(entropy.pick(&[&[][..], &[1][..]]), &[(kvlen - seqlen) as i64]),
        }
    };
    let mut calls = vec![call(), call(), call()];
    calls.truncate(entropy.within(1, 3));
    let mut types = node.types;
    let mut state = (cache, scale);
    let mut about = "Random legal calls.";
    if entropy.one_in(3) {
        let inputs = calls.swap_remove(0);
        let mut defective = Defective { types, attributes, inputs, state };
        defective.defect(entropy, break_something);
        Defective { types, attributes, state, .. } = defective;
        calls = vec![defective.inputs];
        about = "A random call that is not legal, or one that is.";
    }
    case((seed, i), about.to_owned(), types, attributes, state, calls)
}

fn break_something(entropy: &mut Entropy, call: &mut Defective<StaticAttributes, StepInputs>) {
    let inputs = &mut call.inputs;
    match entropy.below(8) {
        0 => {
            let spec = &StaticAttributes::SPEC[entropy.below(StaticAttributes::SPEC.len())];
            let value = attribute(entropy, spec.value(&call.attributes));
            assert!(call.attributes.set(spec.name, value), "an attribute's own name");
        }
        1 => break_types(entropy, &mut call.types, &mut call.state, call.attributes.quant_bit),
        2 => break_state(entropy, &mut call.state),
        3 => inputs.current_value = break_current(entropy, &inputs.current_value),
        4 => inputs.current_key = break_current(entropy, &inputs.current_key),
        5 | 6 => inputs.start_pos = break_index(entropy, &inputs.start_pos),
        _ => {
            // More sequences, or more positions, than the cache has.
            let mut shape = inputs.current_key.shape().to_vec();
            shape[entropy.below(2)] += 5;
            inputs.current_key = bits(entropy, inputs.current_key.element(), &shape);
            inputs.current_value = inputs.current_key.clone();
        }
    }
}
