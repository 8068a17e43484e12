//! The element types of one node's inputs.

use std::sync::Arc;

use kvcache_op::ElementType;
use ort::value::TensorElementType;

use crate::definition::Role;

/// The types of a node's inputs, by position. ONNX Runtime chooses among the operators of one name by the types of a
/// node's inputs, and checks what a caller feeds against the model: in a call tensors have the types of the operator
/// chosen. An input that may be of any type, and one that the node leaves out, say nothing.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct NodeTypes(Arc<[Option<ElementType>]>);

impl NodeTypes {
    /// Every choice of types that an operator with these inputs is registered for.
    pub(crate) fn all(inputs: &[&str]) -> Vec<Self> {
        let mut choices = vec![Vec::with_capacity(inputs.len())];
        for types in inputs.iter().map(|input| Role::of(input).types()) {
            let longer = |choice: Vec<_>| types.iter().map(move |&element| [choice.as_slice(), &[element]].concat());
            choices = choices.into_iter().flat_map(longer).collect();
        }
        choices.into_iter().map(|choice| Self(choice.into())).collect()
    }

    /// The type of the input at `index`; `None` if it may be any.
    pub(crate) fn input(&self, index: usize) -> Option<ElementType> {
        self.0[index]
    }

    /// T1: the type of the first input, and of every output.
    pub(crate) fn t1(&self) -> ElementType {
        self.0[0].expect("the first input of every operator is of T1")
    }
}

/// ONNX Runtime's name of a type.
pub(crate) fn runtime_type(element: ElementType) -> TensorElementType {
    match element {
        ElementType::Float32 => TensorElementType::Float32,
        ElementType::Float16 => TensorElementType::Float16,
        ElementType::Int8 => TensorElementType::Int8,
        ElementType::Int4 => TensorElementType::Int4,
        ElementType::Int64 => TensorElementType::Int64,
    }
}

/// The type that ONNX Runtime calls so, if the operators know it.
pub(crate) fn element_type(element: TensorElementType) -> Option<ElementType> {
    ElementType::ALL.into_iter().find(|&known| runtime_type(known) == element)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_choice_of_types_is_there_once() {
        for (inputs, expected) in [
            (&["current_key", "seqstarts", "current_value", "cache", "scale"][..], 3 * 3 * 4 * 2),
            (&["query", "key", "attn_mask"], 3 * 3),
        ] {
            let choices = NodeTypes::all(inputs);
            assert_eq!(choices.len(), expected);
            assert_eq!(choices.iter().collect::<HashSet<_>>().len(), expected);
            for (index, input) in inputs.iter().enumerate() {
                assert!(choices.iter().all(|types| Role::of(input).types().contains(&types.input(index))));
            }
        }
    }
}
