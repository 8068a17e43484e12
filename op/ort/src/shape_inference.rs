//! Shape inference: the outputs' type and shape, as far as a graph knows them before a call.

use std::sync::atomic::{AtomicU64, Ordering};

use kvcache_op::{Dim, Operator};
use kvcache_schema::OperatorKind;
use ort::operator::ShapeInferenceContext;
use ort::value::{Shape, SymbolicDimensions, TensorElementType, ValueType};

use crate::error::Error;
use crate::node_attributes;
use crate::node_types::output_type;

/// Sets the type and shape of the outputs of a node of this operator.
///
/// ONNX Runtime calls the inference function of one operator for all of the same name, so the types of that one say
/// nothing.
///
/// # Errors
/// ONNX Runtime ignores them; making the kernel fails for the same reason.
pub(crate) fn infer_shape(context: &mut ShapeInferenceContext, kind: OperatorKind) -> Result<(), Error> {
    let missing = Error::Missing { name: kind.inputs()[0] };
    let inputs = context.inputs();
    let shapes: Vec<_> = inputs.iter().map(dims).collect();
    let operator = Operator::new(kind, |attributes| {
        node_attributes::of_inference(context, attributes);
        Ok::<_, Error>(())
    })?;
    let shape = operator.infer_shape(&shapes.iter().map(Option::as_deref).collect::<Vec<_>>());
    let (Some(shape), Some(t1)) = (shape, inputs.first().and_then(ValueType::tensor_type)) else {
        return Err(missing);
    };
    let shape: Vec<_> = shape.into_iter().map(|dim| named(dim, kind.name())).collect();
    let output = tensor_type(output_type(kind, t1, TensorElementType::Float32), &shape);
    // Of an optional output the shape stays open: whether the node has it is not known here, and ONNX Runtime 1.20
    // aborts where it has not.
    (0..kind.outputs().len()).try_for_each(|index| Ok(context.set_output(index, &output)?))
}

/// The shape of an input; `None` if its rank is unknown, which ONNX Runtime shows as rank 0, as of a scalar.
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
