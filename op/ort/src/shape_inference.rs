//! Shape inference: the outputs' type and shape, as far as a graph knows them before a call.

use std::sync::atomic::{AtomicU64, Ordering};

use kvcache_op::Dim;
use kvcache_schema::OperatorAttributes;
use ort::operator::ShapeInferenceContext;
use ort::value::{Shape, SymbolicDimensions, TensorElementType, ValueType};

use crate::error::Error;
use crate::node_attributes;
use crate::node_types::runtime_type;
use crate::signature::Signature;

/// A node whose outputs' shape is asked for.
pub(crate) struct Inference<'a> {
    context: &'a ShapeInferenceContext,
    shapes: Vec<Option<Vec<Dim>>>,
}

impl Inference<'_> {
    /// Its attributes; absent and unreadable ones have their defaults.
    pub(crate) fn attributes<A: OperatorAttributes>(&self) -> A {
        node_attributes::of_inference(self.context)
    }

    /// The shape of its input at `index`, if its rank is known.
    pub(crate) fn shape(&self, index: usize) -> Option<&[Dim]> {
        self.shapes.get(index).and_then(Option::as_deref)
    }
}

/// Sets the type of the outputs of a node, that of its first input or of the signature, and their shape.
///
/// ONNX Runtime calls the inference function of one operator for all of the same name, so the types of that one say
/// nothing.
///
/// # Errors
/// ONNX Runtime ignores them; making the kernel fails for the same reason.
pub(crate) fn infer_shape(
    context: &mut ShapeInferenceContext,
    signature: &Signature,
    infer: fn(&Inference<'_>) -> Result<Vec<Dim>, Error>,
) -> Result<(), Error> {
    let inputs = context.inputs();
    let shapes = inputs.iter().map(dims).collect();
    let shape = infer(&Inference { context, shapes })?;
    let shape: Vec<_> = shape.into_iter().map(|dim| named(dim, signature.name)).collect();
    let missing = Error::Missing { name: signature.inputs[0] };
    let t1 = || inputs.first().and_then(ValueType::tensor_type).ok_or(missing);
    let output = tensor_type(signature.output_type.map(runtime_type).map_or_else(t1, Ok)?, &shape);
    // Of an optional output the shape stays open: whether the node has it is not known here, and ONNX Runtime 1.20 aborts
    // where it has not.
    (0..signature.outputs.len()).try_for_each(|index| Ok(context.set_output(index, &output)?))
}

/// The shape of an input; `None` if its rank is unknown, which ONNX Runtime shows as rank 0, that of a scalar.
fn dims(input: &ValueType) -> Option<Vec<Dim>> {
    match input {
        ValueType::Tensor { shape, dimension_symbols, .. } if !shape.is_empty() => {
            let dim = |(&len, symbol): (&i64, &String)| match usize::try_from(len) {
                Ok(len) => Dim::Known(len),
                Err(_) if symbol.is_empty() => Dim::Unknown,
                Err(_) => Dim::Symbol(symbol.clone()),
            };
            Some(shape.iter().zip(dimension_symbols.iter()).map(dim).collect())
        }
        _ => None,
    }
}

/// `dim`, with a name if it is unknown: for an output with an unnamed dimension ONNX Runtime drops the names that the
/// user has given. The name is a new one, since dimensions of one name are equal.
fn named(dim: Dim, operator: &str) -> Dim {
    static NAMES: AtomicU64 = AtomicU64::new(0);
    match dim {
        Dim::Unknown => Dim::Symbol(format!("{operator}_{}", NAMES.fetch_add(1, Ordering::Relaxed))),
        known => known,
    }
}

fn tensor_type(element: TensorElementType, dims: &[Dim]) -> ValueType {
    let len = |dim: &Dim| match dim {
        Dim::Known(len) => i64::try_from(*len).unwrap_or(-1),
        Dim::Symbol(_) | Dim::Unknown => -1,
    };
    let symbol = |dim: &Dim| match dim {
        Dim::Symbol(name) => name.clone(),
        Dim::Known(_) | Dim::Unknown => String::new(),
    };
    ValueType::Tensor {
        ty: element,
        shape: Shape::new(dims.iter().map(len)),
        dimension_symbols: SymbolicDimensions::new(dims.iter().map(symbol)),
    }
}
