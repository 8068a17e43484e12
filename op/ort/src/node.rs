//! What is checked of a node when its kernel is made.

use std::ptr;

use kvcache_op::KeyValueCache;
use kvcache_schema::INPUTS;
use ort::operator::KernelContext;
use ort::value::DynTensorValueType;
use ort::{AsPointer, ortsys};

use crate::attributes;
use crate::error::Error;
use crate::node_types::NodeTypes;
use crate::positions::{CACHE, SCALE};

/// A node that has been checked, on any provider.
pub(crate) struct Node {
    pub(crate) operator: KeyValueCache,
    pub(crate) types: NodeTypes,
    pub(crate) has_scale: bool,
}

impl Node {
    /// The node that `context` describes, for which ONNX Runtime has chosen the operator of these types.
    ///
    /// # Errors
    /// All that is wrong with the node itself: attributes, types, and state that the caller would not own.
    pub(crate) fn new(context: &KernelContext<'_>, types: NodeTypes) -> Result<Self, Error> {
        if is_retyped(context)? {
            return Err(Error::Retyped);
        }
        let NodeTypes { current_key, current_value, cache, scale } = types;
        let has_scale = has_input(context, SCALE)?;
        let operator = KeyValueCache::new(attributes::of_kernel(context)?)?;
        let operator = operator.with_types(current_key, current_value, cache, has_scale.then_some(scale))?;
        match [CACHE, SCALE].into_iter().find(|&index| context.constant_input::<DynTensorValueType>(index).is_ok()) {
            Some(index) => Err(Error::Initializer { name: INPUTS[index] }),
            None => Ok(Self { operator, types, has_scale }),
        }
    }
}

/// Runs `f`, which makes the kernel of a node, and names the node if that fails: ONNX Runtime names it when a call
/// fails, but not here.
pub(crate) fn naming_the_node<T>(
    context: &KernelContext<'_>,
    f: impl FnOnce() -> Result<T, Error>,
) -> Result<T, Error> {
    f().map_err(|reason| Error::Node { name: context.node_name().unwrap_or_default(), reason: Box::new(reason) })
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

/// Whether ONNX Runtime has changed a float16 node of the model to float32.
///
/// Its `InsertCastTransformer` does so where neither the nodes before this one nor those behind it have a float16
/// kernel. It puts a `Cast` before every float16 input, `cache` and `scale` included, and one behind each output. The
/// `Cast` keeps the output's name, so the node's own output gets a new one, which no other node has. (Names of inputs
/// say less: a node that is float32 in the model may have such a `current_key`, from a neighbor that was changed; and
/// where T3 is float32, neither an int8 cache nor its scale is cast.)
fn is_retyped(context: &KernelContext<'_>) -> Result<bool, Error> {
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
