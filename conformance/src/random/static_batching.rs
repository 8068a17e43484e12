//! Random legal calls of static batching.

use kvcache_schema::{StaticCacheDims, StaticCacheLayout, TypeCombination};

use super::plan::{choice, group, head_dim};
use super::unstructured::Unstructured;
use super::values::{bits, scales, values};
use crate::case::{Call, FloatValues, Operator, Tensors};
use crate::tensor::Tensor;

/// A legal call of sequences with fewer past and current tokens than `tokens`, and heads of up to `max_inner` groups.
pub fn static_call(unstructured: &mut Unstructured, max_inner: usize, tokens: usize) -> Call {
    let types = unstructured.pick(&TypeCombination::LEGAL);
    let layout = unstructured.pick(&StaticCacheLayout::ALL);
    let (num_layer, group) = (unstructured.within(1, 3), group(unstructured, types.quant_bit));
    let (inner, num_heads) = (unstructured.below(max_inner + 1), unstructured.below(4));
    let head_dim = head_dim(types, inner, group, 300);
    let [batch, start_pos, seqlen] = [4, tokens, tokens].map(|end| unstructured.below(end));
    let choice = choice(unstructured, types.t2, group);
    let dims = StaticCacheDims {
        max_b: batch + unstructured.below(3),
        max_s: start_pos + seqlen + unstructured.below(3),
        num_layer,
        num_heads,
        inner: head_dim,
    };
    let attributes = [
        ("num_layer", num_layer as i64),
        ("layer_idx", unstructured.below(num_layer) as i64),
        ("quant_bit", types.quant_bit),
        ("quant_group", group as i64),
        ("num_repeat", unstructured.within(1, 4) as i64),
        ("cache_layout", layout.code()),
        ("quant_type", types.quant_type()),
    ];
    let unstructured = &mut unstructured.fork();
    let current = [batch, seqlen, num_heads, head_dim];
    let (cache, scale) = (layout.shape(dims), layout.shape(StaticCacheDims { inner: head_dim / group, ..dims }));
    Call {
        operator: Operator::StaticKeyValueCache,
        attributes: attributes.into_iter().collect(),
        floats: FloatValues::new(),
        inputs: Tensors::from([
            ("current_key", values(unstructured, types.t1, &current, choice)),
            ("current_value", values(unstructured, types.t1, &current, choice)),
            ("start_pos", Tensor::of_indices(&[start_pos as i64], &[])),
        ]),
        cache: Some(match types.t3 {
            Some(_) => bits(unstructured, types.t2, &cache),
            None => values(unstructured, types.t2, &cache, choice),
        }),
        scale: types.t3.map(|t3| scales(unstructured, t3, &scale)),
    }
}

/// The inputs of another call on the same node, of as many sequences and tokens or fewer.
pub(super) fn another(unstructured: &mut Unstructured, call: &Call) -> Tensors {
    let &[batch, seqlen, num_heads, head_dim] = call.inputs["current_key"].shape() else {
        unreachable!("it has four axes");
    };
    let kvlen = seqlen + call.inputs["start_pos"].indices()[0] as usize;
    let seqlen = unstructured.below(kvlen + 1);
    let shape = [unstructured.below(batch + 1), seqlen, num_heads, head_dim];
    let rank = unstructured.pick(&[&[][..], &[1][..]]);
    let start_pos = Tensor::of_indices(&[unstructured.below(kvlen - seqlen + 1) as i64], rank);
    let choice = choice(unstructured, call.cache().element(), call.attributes["quant_group"] as usize);
    let [current_key, current_value] = [(); 2].map(|()| values(&mut unstructured.fork(), call.t1(), &shape, choice));
    Tensors::from([("current_key", current_key), ("current_value", current_value), ("start_pos", start_pos)])
}
