//! The element types of one node's inputs.

use std::sync::Arc;

use kvcache_op::ElementType;
use ort::value::TensorElementType;

use crate::signature::Role;

/// The types of a node's inputs, by position; `None` where a node leaves the input out, or where it may be any.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct NodeTypes(Arc<[Option<ElementType>]>);

impl NodeTypes {
    /// Every choice of types that an operator with these inputs is registered for. ONNX Runtime chooses among them by
    /// the types of a node's inputs; an input whose type is `None` plays no part in that.
    ///
    /// - The first input decides the type of the outputs.
    /// - The cache cannot be left open: the oldest runtimes do not count int4 among all types.
    /// - An index of another type is refused by the runtime itself, which names it and the type.
    /// - All others are read from the node: a refusal then names them and their types, and the operators are few, for
    ///   the runtime goes through all of them for each node.
    pub(crate) fn all(inputs: &[&str]) -> Vec<Self> {
        let caches = if inputs.contains(&"cache") { Role::Cache.types() } else { &[ElementType::Float32] };
        let choice = |t1: ElementType, t2: ElementType| {
            Self(
                inputs
                    .iter()
                    .enumerate()
                    .map(|(index, name)| match Role::of(name) {
                        _ if index == 0 => Some(t1),
                        Role::Cache => Some(t2),
                        role @ (Role::Index | Role::Floats { .. } | Role::Panels) => Some(role.types()[0]),
                        Role::Rows | Role::Scale | Role::Mask => None,
                    })
                    .collect(),
            )
        };
        Role::of(inputs[0])
            .types()
            .iter()
            .flat_map(|&t1| caches.iter().map(move |&t2| (t1, t2)))
            .map(|(t1, t2)| choice(t1, t2))
            .collect()
    }

    /// These types, and of each input without one what `read` gives.
    pub(crate) fn completed<E>(
        &self,
        mut read: impl FnMut(usize) -> Result<Option<ElementType>, E>,
    ) -> Result<Self, E> {
        let complete = |(index, &known): (usize, &Option<_>)| if known.is_some() { Ok(known) } else { read(index) };
        Ok(Self(self.0.iter().enumerate().map(complete).collect::<Result<_, E>>()?))
    }

    pub(crate) fn input(&self, index: usize) -> Option<ElementType> {
        self.0[index]
    }

    /// T1: the type of the first input, and of every output for which the signature says no other.
    pub(crate) fn t1(&self) -> ElementType {
        self.0[0].expect("the first input of every operator is of T1")
    }
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
        let choices = NodeTypes::all(&["current_key", "seqstarts", "current_value", "cache", "scale"]);
        assert_eq!(choices.len(), ElementType::T1.len() * ElementType::T2.len());
        for (choice, other) in choices.iter().zip(&choices[1..]) {
            assert_ne!(choice, other);
            assert!(ElementType::T1.contains(&choice.t1()) && choice.input(1) == Some(ElementType::Int64));
            assert!([2, 4].iter().all(|&open| choice.input(open).is_none()));
        }
        assert_eq!(NodeTypes::all(&["query", "key", "attn_mask"]).len(), ElementType::T1.len());
    }
}
