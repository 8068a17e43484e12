//! The element types of one node's inputs.

use std::sync::Arc;

use kvcache_op::ElementType;
use ort::value::TensorElementType;

use crate::definition::Role;

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
        let mut choices = vec![Vec::with_capacity(inputs.len())];
        for (index, role) in inputs.iter().map(|input| Role::of(input)).enumerate() {
            let types: Vec<_> = match role {
                Role::Rows if index > 0 => vec![None],
                Role::Scale | Role::Mask => vec![None],
                Role::Rows | Role::Cache | Role::Index => role.types().iter().copied().map(Some).collect(),
            };
            let longer = |choice: Vec<_>| types.iter().map(move |&element| [choice.as_slice(), &[element]].concat());
            choices = choices.into_iter().flat_map(longer).collect();
        }
        choices.into_iter().map(|choice| Self(choice.into())).collect()
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

    /// T1: the type of the first input, and of every output.
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
            (&["current_key", "seqstarts", "current_value", "cache", "scale"][..], 4 * 6),
            (&["query", "key", "attn_mask"], 4),
        ] {
            let choices = NodeTypes::all(inputs);
            assert_eq!(choices.len(), expected);
            assert_eq!(choices.iter().collect::<HashSet<_>>().len(), expected);
            for types in choices {
                let read = types.completed(|index| Ok::<_, ()>(Some(Role::of(inputs[index]).types()[1]))).unwrap();
                for (index, input) in inputs.iter().enumerate() {
                    assert!(Role::of(input).types().contains(&read.input(index).unwrap()));
                    assert!(types.input(index).is_none_or(|known| read.input(index) == Some(known)));
                }
            }
        }
    }
}
