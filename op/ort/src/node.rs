//! A node of a graph, as it is when its kernel is made.

use std::ptr;

use kvcache_op::{ElementType, Operator};
use kvcache_schema::{OperatorKind, Role};
use ort::operator::KernelContext;
use ort::sys::{ONNXTensorElementDataType, OrtTypeInfo};
use ort::value::{DynTensorValueType, TensorElementType};
use ort::{AsPointer, ortsys};

use crate::error::Error;
use crate::node_attributes;
use crate::node_types::{NodeTypes, element_type};

/// A node for which a kernel has been made, on any provider.
pub(crate) struct Node {
    pub(crate) operator: Operator,
    /// The inputs that the node has, by position.
    pub(crate) inputs: Vec<Option<Input>>,
    /// How many outputs it has: an optional one may be left out, or have the empty name.
    pub(crate) outputs: usize,
}

/// An input of a node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Input {
    pub(crate) name: &'static str,
    pub(crate) role: Role,
    /// The type; a mask's is known in the call.
    pub(crate) element: Option<ElementType>,
}

impl Node {
    /// The node that `context` describes, for which ONNX Runtime has chosen the operator of these types.
    ///
    /// # Errors
    /// All that is wrong with the node itself: attributes, types, and state that the caller would not own.
    pub(crate) fn new(context: &KernelContext<'_>, kind: OperatorKind, types: &NodeTypes) -> Result<Self, Error> {
        check_state(context, kind)?;
        let input = |(index, &name): (usize, &&'static str)| {
            let role = Role::of(name);
            if !has_input(context, index)? {
                return Ok(None);
            }
            let element =
                types.input(index).map_or_else(|| read_type(context, index, name), |known| Ok(Some(known)))?;
            Ok(Some(Input { name, role, element }))
        };
        let inputs = kind.inputs().iter().enumerate().map(input).collect::<Result<Vec<_>, Error>>()?;
        let operator = Operator::new(kind, |attributes| node_attributes::of_kernel(context, attributes))?;
        let outputs = kind.outputs().len();
        let outputs = outputs + usize::from(kind.optional_output().is_some() && has_output(context, outputs)?);
        let node = Self { operator, inputs, outputs };
        node.operator.check_types(&node.types())?;
        Ok(node)
    }

    /// The types of the inputs, by position.
    pub(crate) fn types(&self) -> Vec<Option<ElementType>> {
        self.inputs.iter().map(|input| input.as_ref()?.element).collect()
    }
}

/// Checks that the caller owns what the node writes.
fn check_state(context: &KernelContext<'_>, kind: OperatorKind) -> Result<(), Error> {
    let state: Vec<_> = kind.inputs().iter().enumerate().filter(|(_, name)| Role::of(name).is_state()).collect();
    if !state.is_empty() && is_cast_inserted(context)? {
        return Err(Error::CastInserted { output: kind.outputs()[0] });
    }
    // One without elements holds nothing, and counts as not given.
    let is_held = |index| {
        let constant = context.constant_input::<DynTensorValueType>(index);
        constant.is_ok_and(|tensor| tensor.shape().num_elements() > 0)
    };
    let is_read = |name| Role::of(name) == Role::Scale && node_attributes::has_static_scales(context);
    let written: Vec<_> = state.into_iter().filter(|(_, name)| !is_read(name)).collect();
    if let Some((_, name)) = written.iter().find(|(index, _)| is_held(*index)) {
        return Err(Error::Initializer { name });
    }
    for (index, name) in written {
        let value = if has_input(context, index)? { input_name(context, index)? } else { String::new() };
        if is_made_by_a_tool(&value) {
            return Err(Error::Computed { name, value });
        }
    }
    Ok(())
}

/// Whether the node has the output at `index`.
fn has_output(context: &KernelContext<'_>, index: usize) -> Result<bool, Error> {
    let mut count = 0;
    ortsys![unsafe KernelInfo_GetOutputCount(context.ptr(), &mut count)?];
    Ok(index < count && output_name(context, index)?.len() > 1) // the closing NUL counts
}

/// Whether the node has an input at `index`: an optional one may be left out, or have the empty name.
fn has_input(context: &KernelContext<'_>, index: usize) -> Result<bool, Error> {
    // `KernelContext::inputs` would do, but fails for an input with the empty name.
    let (mut count, mut name_len) = (0, 0);
    ortsys![unsafe KernelInfo_GetInputCount(context.ptr(), &mut count)?];
    if index >= count {
        return Ok(false);
    }
    ortsys![unsafe KernelInfo_GetInputName(context.ptr(), index, ptr::null_mut(), &mut name_len)?];
    Ok(name_len > 1) // the closing NUL counts
}

/// The name of the value that is the input at `index`, without the closing NUL.
fn input_name(context: &KernelContext<'_>, index: usize) -> Result<String, Error> {
    let mut len = 0;
    ortsys![unsafe KernelInfo_GetInputName(context.ptr(), index, ptr::null_mut(), &mut len)?];
    let mut name = vec![0; len];
    ortsys![unsafe KernelInfo_GetInputName(context.ptr(), index, name.as_mut_ptr().cast(), &mut len)?];
    name.pop();
    Ok(String::from_utf8_lossy(&name).into_owned())
}

/// Whether this is a name that tools give to the results of nodes which they put before others. A node does not know
/// who computes its inputs, so no other results of nodes can be refused here; `check_model` of the package does.
///
/// ONNX Runtime's cast insertion begins a name so, and the converters to float16 of onnxruntime and
/// onnxconverter-common one of a cast after an input of the graph; before other nodes they append to a value's name, as
/// quantization does. PyTorch's exporter gives the results of nodes, and nothing else, paths.
fn is_made_by_a_tool(name: &str) -> bool {
    let begins = ["InsertedPrecisionFreeCast_", "graph_input_cast"];
    let contains = ["_cast_to_", "_input_cast", "_DequantizeLinear_Output", "_QuantizeLinear_Output"];
    begins.iter().any(|begin| name.starts_with(begin))
        || contains.iter().any(|part| name.contains(part))
        || (name.starts_with('/') && name.contains("_output_"))
}

/// The type of the input at `index`, called `name`; `None` if it is a mask of a type that no operator knows, which may
/// turn out to have no elements.
fn read_type(context: &KernelContext<'_>, index: usize, name: &'static str) -> Result<Option<ElementType>, Error> {
    let (role, got) = (Role::of(name), runtime_type_of(context, index)?);
    match element_type(got) {
        None if role != Role::Mask => Err(Error::ElementType { name, got, expected: role.types() }),
        // The operator refuses one of another role.
        known => Ok(known),
    }
}

/// The type of the elements of the input at `index`, a tensor, which every input is by the operators' definitions.
fn runtime_type_of(context: &KernelContext<'_>, index: usize) -> Result<TensorElementType, Error> {
    /// The runtime's description of an input's type.
    struct Info(*mut OrtTypeInfo);

    impl Drop for Info {
        fn drop(&mut self) {
            ortsys![unsafe ReleaseTypeInfo(self.0)];
        }
    }

    let mut info = ptr::null_mut();
    ortsys![unsafe KernelInfo_GetInputTypeInfo(context.ptr(), index, &mut info)?];
    let (info, mut tensor) = (Info(info), ptr::null());
    ortsys![unsafe CastTypeInfoToTensorInfo(info.0, &mut tensor)?];
    let mut element = ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
    if !tensor.is_null() {
        ortsys![unsafe GetTensorElementType(tensor, &mut element)?];
    }
    Ok(element.into())
}

/// Whether ONNX Runtime has changed a float16 node of the model to float32.
///
/// Its `InsertCastTransformer` does so where neither the nodes before this one nor those after it have a float16
/// kernel. It puts a `Cast` before every float16 input, `cache` and `scale` included, and one after each output. The
/// `Cast` keeps the output's name, so the node's own output gets a new one, which no other node has. (Names of inputs
/// say less: a node that is float32 in the model may have such a first input, from a neighbor that was changed; and
/// where T3 is float32, neither an int8 cache nor its scale is cast.)
fn is_cast_inserted(context: &KernelContext<'_>) -> Result<bool, Error> {
    Ok(output_name(context, 0)?.starts_with(b"InsertedPrecisionFreeCast_"))
}

/// The name of the node's output at `index`, with the closing NUL.
fn output_name(context: &KernelContext<'_>, index: usize) -> Result<Vec<u8>, Error> {
    let mut len = 0;
    ortsys![unsafe KernelInfo_GetOutputName(context.ptr(), index, ptr::null_mut(), &mut len)?];
    let mut name = vec![0; len];
    ortsys![unsafe KernelInfo_GetOutputName(context.ptr(), index, name.as_mut_ptr().cast(), &mut len)?];
    Ok(name)
}
