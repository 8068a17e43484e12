//! Random legal calls of the [conformance kit's](kvcache_conformance::random) generator.

pub use kvcache_conformance::random::{Plan, Unstructured, index_inputs, static_call};
use kvcache_conformance::{Call, Case, Implementation, Operator, Tensor};
use kvcache_schema::ElementType;

/// The case of a call whose results are the reference's, bit for bit.
pub fn case(call: Call) -> Case {
    Case { any_nan: false, ..call.case() }
}

/// The case of a small call, or of a larger one, of `KeyValueCache`: see [`Plan::draw`].
pub fn drawn(seed: u64, max_inner: usize, tokens: usize) -> Case {
    let entropy = &mut Unstructured::seed(seed);
    case(Plan::draw(entropy, max_inner, tokens).call(entropy))
}

/// A call of one sequence of one head, which has all slots of its quantized cache: a scale for each `group` elements.
pub fn one_head(current: [Tensor; 2], cache: Tensor, scale: Tensor, group: usize) -> Call {
    let (new, all) = (current[0].shape()[0], cache.shape()[0]);
    let mut inputs = index_inputs(&[(all - new, new)]);
    inputs.extend(["current_key", "current_value"].into_iter().zip(current));
    inputs.insert("cachestarts", Tensor::of_indices(&[0], &[1]));
    let mut attributes = Operator::KeyValueCache.attributes();
    let is_float8 = cache.element() == ElementType::Float8E4M3Fn;
    attributes.extend([("quant_bit", cache.element().bits() as i64), ("quant_type", is_float8.into())]);
    attributes.insert("quant_group", group as i64);
    let floats = Operator::KeyValueCache.floats();
    Call { operator: Operator::KeyValueCache, attributes, floats, inputs, cache: Some(cache), scale: Some(scale) }
}

/// Says where an implementation differs from a case.
///
/// # Errors
/// The first difference.
pub fn passes(implementation: &impl Implementation, case: &Case) -> Result<(), String> {
    let results = implementation.run(case)?;
    case.difference(&results).map_or(Ok(()), |difference| Err(difference.to_string()))
}
