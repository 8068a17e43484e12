//! A node of a graph, as it is when its kernel is made.

use std::ptr;

use kvcache_op::ElementType;
use kvcache_schema::OperatorAttributes;
use ort::operator::KernelContext;
use ort::sys::{ONNXTensorElementDataType, OrtTypeInfo};
use ort::value::{DynTensorValueType, TensorElementType};
use ort::{AsPointer, ortsys};

use crate::error::Error;
use crate::node_attributes;
use crate::node_types::{NodeTypes, element_type};
use crate::signature::{Role, Signature};

/// A node for which a kernel is being made, on any provider.
pub(crate) struct Node<'a> {
    context: &'a KernelContext<'a>,
    signature: &'static Signature,
    types: NodeTypes,
}

impl<'a> Node<'a> {
    /// The node that `context` describes, for which ONNX Runtime has chosen the operator of these types.
    ///
    /// # Errors
    /// If what the node writes would not be the caller's, or an input is of a type that no operator knows.
    pub(crate) fn new(
        context: &'a KernelContext<'a>,
        signature: &'static Signature,
        types: &NodeTypes,
    ) -> Result<Self, Error> {
        let roles = || signature.inputs.iter().map(|name| (*name, Role::of(name))).enumerate();
        if roles().any(|(_, (_, role))| role.is_state()) && is_cast_inserted(context)? {
            return Err(Error::CastInserted { output: signature.outputs[0] });
        }
        // One without elements holds nothing, and counts as not given.
        let is_held = |index| {
            let constant = context.constant_input::<DynTensorValueType>(index);
            constant.is_ok_and(|tensor| tensor.shape().num_elements() > 0)
        };
        let is_written =
            |role: Role| role.is_state() && !(role == Role::Scale && node_attributes::has_static_scales(context));
        if let Some((_, (name, _))) = roles().find(|&(index, (_, role))| is_written(role) && is_held(index)) {
            return Err(Error::Initializer { name });
        }
        for (index, (name, _)) in roles().filter(|(_, (_, role))| is_written(*role)) {
            let value = if has_input(context, index)? { input_name(context, index)? } else { String::new() };
            if is_made_by_a_tool(&value) {
                return Err(Error::Computed { name, value });
            }
        }
        let types = types.completed(|index| read_type(context, index, signature.inputs[index]))?;
        Ok(Self { context, signature, types })
    }

    pub(crate) fn types(&self) -> &NodeTypes {
        &self.types
    }

    /// The attributes; absent ones have their defaults.
    ///
    /// # Errors
    /// If an attribute is there with another type than its own.
    pub(crate) fn attributes<A: OperatorAttributes>(&self) -> Result<A, Error> {
        node_attributes::of_kernel(self.context)
    }

    /// The type of the input at `index`, which is not optional.
    pub(crate) fn element(&self, index: usize) -> ElementType {
        self.types.input(index).expect("an input that every node has, of a type that was read")
    }

    /// The type of the scale at `index`, if the node has one.
    pub(crate) fn scale(&self, index: usize) -> Option<ElementType> {
        self.types.input(index)
    }

    /// Whether the node has an input at `index`: an optional one may be left out, or have the empty name.
    pub(crate) fn has_input(&self, index: usize) -> Result<bool, Error> {
        has_input(self.context, index)
    }

    /// Whether the node has the optional output: it may be left out, or have the empty name.
    pub(crate) fn has_optional_output(&self) -> Result<bool, Error> {
        let (index, mut count) = (self.signature.outputs.len(), 0);
        ortsys![unsafe KernelInfo_GetOutputCount(self.context.ptr(), &mut count)?];
        Ok(index < count && output_name(self.context, index)?.len() > 1) // the closing NUL counts
    }
}

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
/// ONNX Runtime's cast insertion begins a name so, and the converters to float16 of onnxruntime and onnxconverter-common
/// one of a cast after an input of the graph; before other nodes they append to a value's name, as quantization does.
/// PyTorch's exporter gives the results of nodes, and nothing else, paths.
fn is_made_by_a_tool(name: &str) -> bool {
    let begins = ["InsertedPrecisionFreeCast_", "graph_input_cast"];
    let contains = ["_cast_to_", "_input_cast", "_DequantizeLinear_Output", "_QuantizeLinear_Output"];
    begins.iter().any(|begin| name.starts_with(begin))
        || contains.iter().any(|part| name.contains(part))
        || (name.starts_with('/') && name.contains("_output_"))
}

/// The type of the input at `index`, called `name`; `None` if the node does not have it, or if it is a mask of a type
/// that no operator knows, which may turn out to have no elements.
fn read_type(context: &KernelContext<'_>, index: usize, name: &'static str) -> Result<Option<ElementType>, Error> {
    if !has_input(context, index)? {
        return Ok(None);
    }
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
