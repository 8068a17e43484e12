//! The element types of one node's tensors.

use kvcache_op::ElementType;
use ort::value::TensorElementType;

use crate::positions::{CACHE, CURRENT_KEY, CURRENT_VALUE, SCALE};

/// The types that differ from node to node. ONNX Runtime chooses among the operators of one name by the types of a
/// node's inputs, and checks what a caller feeds against the model: in a call tensors have the types of the operator
/// chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodeTypes {
    /// T1: `current_key`, `key` and `value`.
    pub(crate) current_key: ElementType,
    /// `current_value`, which must be T1.
    pub(crate) current_value: ElementType,
    /// T2: `cache`.
    pub(crate) cache: ElementType,
    /// T3: `scale`, where there is one.
    pub(crate) scale: ElementType,
}

impl NodeTypes {
    /// Every choice of types that the specification has a name for, legal or not. An illegal one is refused when a
    /// node's kernel is made, in words that name the types: ONNX Runtime's own refusal names neither input nor type.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let currents = ElementType::T1.into_iter().flat_map(|key| ElementType::T1.map(|value| (key, value)));
        let states = ElementType::T2.into_iter().flat_map(|cache| ElementType::T3.map(|scale| (cache, scale)));
        currents.flat_map(move |(current_key, current_value)| {
            states.clone().map(move |(cache, scale)| Self { current_key, current_value, cache, scale })
        })
    }

    /// The type of the input at `index`.
    pub(crate) fn input(self, index: usize) -> ElementType {
        match index {
            CURRENT_KEY => self.current_key,
            CURRENT_VALUE => self.current_value,
            CACHE => self.cache,
            SCALE => self.scale,
            _ => ElementType::Int64, // all others are index inputs
        }
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

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_choice_of_types_is_there_once() {
        let choices: Vec<_> = NodeTypes::all().map(|types| [0, 1, 8, 9].map(|index| types.input(index))).collect();
        assert_eq!(choices.len(), 3 * 3 * 4 * 2);
        assert_eq!(choices.iter().collect::<HashSet<_>>().len(), choices.len());
    }
}
