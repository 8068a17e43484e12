//! What an operator's calls have in common.

use kvcache_schema::ElementType;

use crate::case::Types;
use crate::key_value_cache::CaseInputs;
use crate::oracle::decisions::Behavior;
use crate::oracle::plan::Plan;
use crate::oracle::refusal::Refusal;
use crate::tensor::Tensor;

/// A call of the operator with attributes `A` and inputs `I`.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "the fields are what a call is given")]
pub struct Call<'a, A, I> {
    pub types: Types,
    pub attributes: &'a A,
    pub inputs: &'a I,
    pub cache: &'a Tensor,
    pub scale: Option<&'a Tensor>,
}

/// The attributes that matter to both operators.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "the fields are the operators' attributes")]
pub struct SharedAttributes {
    pub num_layer: i64,
    pub layer_idx: i64,
    pub quant_bit: i64,
    pub quant_group: i64,
    pub num_repeat: i64,
    /// `None` in static batching.
    pub cache_mode: Option<i64>,
}

/// The inputs of one operator whose attributes are `A`: what the oracle needs to know of it.
pub trait Inputs<A>: CaseInputs<A> + Sized + Clone {
    /// The attributes that both operators have.
    fn shared(attributes: &A) -> SharedAttributes;

    /// The tokens of the longest sequence behind the call, as far as its shapes and indices say.
    fn kvlen(&self) -> i64;

    /// The rules that a call breaks: those of the first stage that has any. None for a legal call.
    fn broken_rules(call: &Call<'_, A, Self>) -> Vec<Refusal>;

    /// What a legal call does.
    fn plan(call: &Call<'_, A, Self>, behavior: &Behavior) -> Plan;
}

/// The values of a tensor of indices; none if it is of another type.
pub(crate) fn indices(tensor: &Tensor) -> Vec<i64> {
    match tensor.element() {
        ElementType::Int64 => tensor.bytes().as_chunks().0.iter().map(|&bytes| i64::from_le_bytes(bytes)).collect(),
        _ => Vec::new(),
    }
}

/// The first of them; 0 if there is none.
pub(crate) fn number(tensor: &Tensor) -> i64 {
    indices(tensor).first().copied().unwrap_or_default()
}
