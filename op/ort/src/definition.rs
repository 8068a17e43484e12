//! What an operator is: its names, what its inputs are for, and how its nodes are made.

use kvcache_op::{ElementType, Workers};
use kvcache_schema::multi_head_attention;

use crate::call_tensors::CallTensors;
use crate::error::Error;
use crate::node::Node;
use crate::shape_inference::InferShape;

/// One operator of the library. `operators` has the list of them; all else works for any operator of the list.
#[derive(Debug)]
pub(crate) struct Definition {
    pub(crate) signature: Signature,
    /// The shape of its outputs, as far as a graph knows it.
    pub(crate) infer_shape: InferShape,
    /// A node on the CPU provider: checks its attributes and types.
    pub(crate) on_cpu: fn(&Node<'_>) -> Result<Box<dyn Compute>, Error>,
}

/// A node that computes on the CPU. ONNX Runtime calls it from several threads at once.
pub(crate) trait Compute: Send + Sync {
    /// Makes one call of the node, on the threads of `workers`.
    ///
    /// The runtime may refuse an output, and a refused call leaves the cache as it was: nothing is written before the
    /// runtime has given every output.
    fn run(&self, tensors: &CallTensors<'_>, workers: &dyn Workers) -> Result<(), Error>;
}

#[derive(Debug)]
pub(crate) struct Signature {
    pub(crate) name: &'static str,
    pub(crate) domains: [&'static str; 2],
    /// The names of its inputs, by position. The first is of T1.
    pub(crate) inputs: &'static [&'static str],
    /// The names of its outputs, by position. All are of T1 and of one shape.
    pub(crate) outputs: &'static [&'static str],
    /// The name of an output behind these, if there is one: of float32, and a node may leave it out.
    pub(crate) optional_output: Option<&'static str>,
}

impl Signature {
    /// The name of the output at `index`.
    pub(crate) fn output(&self, index: usize) -> &'static str {
        self.outputs.iter().copied().chain(self.optional_output).nth(index).expect("an output that the operator has")
    }

    pub(crate) fn has_state(&self) -> bool {
        self.inputs.iter().any(|input| Role::of(input).is_state())
    }
}

/// What an input is for, which its name tells: every operator calls the same thing by the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Queries, keys or values, of T1.
    Rows,
    /// `cache`, of T2, which the operator writes.
    Cache,
    /// `scale`, of T3, which the operator writes.
    Scale,
    /// `attn_mask`: of T1, or of any type if it has no elements.
    Mask,
    /// Indices, bounds and counts.
    Index,
}

impl Role {
    pub(crate) fn of(input: &str) -> Self {
        match input {
            "query" | "key" | "value" | "current_key" | "current_value" => Self::Rows,
            "cache" => Self::Cache,
            "scale" => Self::Scale,
            "attn_mask" => Self::Mask,
            _ => Self::Index,
        }
    }

    /// The types that some operator takes, legal together or not.
    pub(crate) fn types(self) -> &'static [ElementType] {
        match self {
            Self::Rows => &ElementType::T1,
            Self::Mask => &multi_head_attention::T1,
            Self::Cache => &ElementType::T2,
            Self::Scale => &ElementType::T3,
            Self::Index => &[ElementType::Int64],
        }
    }

    /// Whether a node may leave the input out.
    pub(crate) fn is_optional(self) -> bool {
        matches!(self, Self::Scale | Self::Mask)
    }

    pub(crate) fn is_state(self) -> bool {
        matches!(self, Self::Cache | Self::Scale)
    }
}

/// The position of `name` in `names`, the inputs or outputs of an operator by position. For constants: an operator
/// without that input does not compile.
pub(crate) const fn position(names: &[&str], name: &str) -> usize {
    let mut index = 0;
    while index < names.len() {
        if equal(names[index].as_bytes(), name.as_bytes()) {
            return index;
        }
        index += 1;
    }
    panic!("the operator has no input or output of this name")
}

/// A struct of the positions of these names, as [`position`] gives each.
macro_rules! positions {
    ($(#[$doc:meta])* $positions:ident { $($name:ident),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy)]
        pub(crate) struct $positions {
            $(pub(crate) $name: usize,)*
        }

        impl $positions {
            pub(crate) const fn of(names: &[&str]) -> Self {
                Self { $($name: $crate::definition::position(names, stringify!($name)),)* }
            }
        }
    };
}
pub(crate) use positions;

const fn equal(a: &[u8], b: &[u8]) -> bool {
    let mut index = 0;
    while index < a.len() && index < b.len() && a[index] == b[index] {
        index += 1;
    }
    index == a.len() && index == b.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_that_of_the_whole_name() {
        let names = ["key", "key_value", "", "value"];
        assert_eq!(names.map(|name| position(&names, name)), [0, 1, 2, 3]);
    }
}
