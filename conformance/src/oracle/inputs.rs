//! What an operator's calls have in common.

use kvcache_schema::ElementType;

use crate::case::Types;
use crate::oracle::behavior::Behavior;
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

/// The attributes that both operators have.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "the fields are the operators' attributes")]
pub struct SharedAttributes {
    pub num_layer: i64,
    pub layer_idx: i64,
    pub quant_bit: i64,
    pub quant_group: i64,
    pub num_repeat: i64,
}

/// The inputs of one operator whose attributes are `A`: what the oracle needs to know of it.
pub trait Inputs<A>: Sized + Clone {
    /// Of what is said of dynamic and of static batching, the one of this operator.
    fn of<T>(dynamic: T, static_batching: T) -> T;

    /// The attributes, each read as `behavior` reads them.
    fn read_attributes(attributes: &A, behavior: &Behavior) -> A;

    /// All attributes, by name.
    fn named_attributes(attributes: &A) -> Vec<(&'static str, i64)>;

    /// The attributes that both operators have.
    fn shared(attributes: &A) -> SharedAttributes;

    /// `current_key` and `current_value`.
    fn current(&self) -> [&Tensor; 2];

    /// The rules that a call breaks: those of the first stage that has any. None for a legal call.
    fn broken_rules(call: &Call<'_, A, Self>, behavior: &Behavior) -> Vec<Refusal>;

    /// What a legal call does.
    fn plan(call: &Call<'_, A, Self>, behavior: &Behavior) -> Plan;

    /// Whether `behavior` accepts a call although it breaks a rule.
    fn accepts(call: &Call<'_, A, Self>, refusal: &Refusal, behavior: &Behavior) -> bool;

    /// Whether `behavior` refuses a call although it is legal.
    fn refuses(call: &Call<'_, A, Self>, behavior: &Behavior) -> bool;
}

/// The values of a tensor of indices, each read as `behavior` reads them; none if it is of another type.
pub(crate) fn indices(tensor: &Tensor, behavior: &Behavior) -> Vec<i64> {
    if tensor.element() != ElementType::Int64 {
        return Vec::new();
    }
    let values = tensor.bytes().chunks_exact(8).map(|bytes| {
        let mut index = [0; 8];
        index.copy_from_slice(bytes);
        (behavior.index)(i64::from_le_bytes(index))
    });
    values.collect()
}
