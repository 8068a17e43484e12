//! The element types of a node's inputs.

use std::sync::Arc;

use kvcache_op::ElementType;
use kvcache_schema::{OperatorKind, Role};
use ort::value::TensorElementType;

/// The types that an operator is registered for, of its inputs by position; `None` where a node may have any.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct NodeTypes(Arc<[Option<ElementType>]>);

impl NodeTypes {
    /// Every choice of types that an operator is registered for. ONNX Runtime chooses among them by the types of a
    /// node's inputs; an input whose type is `None` plays no part in that.
    ///
    /// - The first input decides the type of the outputs.
    /// - The cache cannot be left open: the oldest runtimes do not count int4 among all types.
    /// - An index of another type is refused by the runtime itself, which names it and the type.
    /// - All others are read from the node: a refusal then names them and their types, and the operators are few, for
    ///   the runtime goes through all of them for each node.
    pub(crate) fn all(kind: OperatorKind) -> Vec<Self> {
        let inputs = kind.inputs();
        let caches = if inputs.contains(&"cache") { Role::Cache.types() } else { &[ElementType::Float32] };
        let of = |(at, name): (usize, &&str), t1: ElementType, t2: ElementType| match Role::of(name) {
            _ if at == 0 => Some(t1),
            Role::Cache => Some(t2),
            role @ (Role::Index | Role::Floats | Role::Panels) => Some(role.types()[0]),
            Role::Rows | Role::Scale | Role::Mask => None,
        };
        let choice = |t1, t2| Self(inputs.iter().enumerate().map(|input| of(input, t1, t2)).collect());
        let t1s = Role::of(inputs[0]).types().iter();
        t1s.flat_map(|&t1| caches.iter().map(move |&t2| (t1, t2))).map(|(t1, t2)| choice(t1, t2)).collect()
    }

    pub(crate) fn input(&self, index: usize) -> Option<ElementType> {
        self.0[index]
    }
}

/// The type of an operator's outputs that are not optional, whose first input has this type.
pub(crate) fn output_type<T>(kind: OperatorKind, first: T, float32: T) -> T {
    // The first input of `QuantizedGather` are indices.
    if kind == OperatorKind::QuantizedGather { float32 } else { first }
}

/// A type's name in `ort`.
pub fn runtime_type(element: ElementType) -> TensorElementType {
    match element {
        ElementType::Float32 => TensorElementType::Float32,
        ElementType::Float16 => TensorElementType::Float16,
        ElementType::BFloat16 => TensorElementType::Bfloat16,
        ElementType::Float8E4M3Fn => TensorElementType::Float8E4M3FN,
        ElementType::Int8 => TensorElementType::Int8,
        ElementType::Int4 => TensorElementType::Int4,
        ElementType::Int64 => TensorElementType::Int64,
        ElementType::UInt8 => TensorElementType::Uint8,
    }
}

/// The type that ONNX Runtime calls so, if the operators know it.
pub(crate) fn element_type(element: TensorElementType) -> Option<ElementType> {
    ElementType::ALL.into_iter().find(|&known| runtime_type(known) == element)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_of_types_is_one_of_t1_and_of_the_cache() {
        let choices = NodeTypes::all(OperatorKind::KeyValueCache);
        assert_eq!(choices.len(), ElementType::T1.len() * ElementType::T2.len());
        for (choice, other) in choices.iter().zip(&choices[1..]) {
            assert_ne!(choice, other);
            assert!(choice.input(0).is_some_and(|t1| ElementType::T1.contains(&t1)));
            assert_eq!(choice.input(2), Some(ElementType::Int64)); // seqstarts
            assert!([1, 9].iter().all(|&open| choice.input(open).is_none())); // current_value, scale
        }
        assert_eq!(NodeTypes::all(OperatorKind::MultiHeadAttention).len(), ElementType::T1.len());
    }
}
