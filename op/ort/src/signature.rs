//! What ONNX Runtime is told about an operator: its names, and the names and types of its inputs and outputs.

use kvcache_op::ElementType;
use kvcache_schema::multi_head_attention;

#[derive(Debug)]
pub(crate) struct Signature {
    pub(crate) name: &'static str,
    pub(crate) domains: &'static [&'static str],
    /// The names of the inputs, by position. The first is of T1.
    pub(crate) inputs: &'static [&'static str],
    /// The names of the outputs, by position. All are of T1, or of `output_type`, and of one shape.
    pub(crate) outputs: &'static [&'static str],
    /// The name of an output after these, if there is one: of float32, and a node may leave it out.
    pub(crate) optional_output: Option<&'static str>,
    /// The type of the outputs, if it is not T1.
    pub(crate) output_type: Option<ElementType>,
    /// Whether the CUDA provider has it, too.
    pub(crate) on_cuda: bool,
}

impl Signature {
    /// The name of the output at `index`.
    pub(crate) fn output(&self, index: usize) -> &'static str {
        self.outputs.iter().copied().chain(self.optional_output).nth(index).expect("an output that the operator has")
    }
}

/// What an input is for. Its name tells: every operator calls the same thing by the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Queries, keys or values, of T1.
    Rows,
    /// `cache`, of T2, which the operator writes.
    Cache,
    /// `scale`, of T3, which the operator writes.
    Scale,
    /// `attn_mask` and `head_sink`: of T1, or of any type if it has no elements.
    Mask,
    /// Indices, bounds and counts.
    Index,
    /// What is of float32 in every node of `QuantizedMatMul` and `QuantizedGather`, and may be left out.
    Floats { optional: bool },
    /// Codes of a quantized matrix.
    Panels,
}

impl Role {
    pub(crate) fn of(input: &str) -> Self {
        match input {
            "query" | "key" | "value" | "current_key" | "current_value" => Self::Rows,
            "cache" => Self::Cache,
            "scale" => Self::Scale,
            "attn_mask" | "head_sink" => Self::Mask,
            "x" | "scales" => Self::Floats { optional: false },
            "minima" | "bias" => Self::Floats { optional: true },
            "panels" => Self::Panels,
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
            Self::Floats { .. } => &[ElementType::Float32],
            Self::Panels => &[ElementType::UInt8],
        }
    }

    /// Whether a node may leave the input out.
    pub(crate) fn is_optional(self) -> bool {
        matches!(self, Self::Scale | Self::Mask | Self::Floats { optional: true })
    }

    /// Whether the operator writes the input.
    pub(crate) fn is_state(self) -> bool {
        matches!(self, Self::Cache | Self::Scale)
    }
}

/// The position of `name` in `names`. An operator that asks for an input that it does not have does not compile.
pub(crate) const fn position(names: &[&str], name: &str) -> usize {
    let mut index = 0;
    while !equal(names[index].as_bytes(), name.as_bytes()) {
        index += 1;
    }
    index
}

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
