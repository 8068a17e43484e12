//! One node of a graph: the operator as ONNX Runtime runs it.

use std::ptr;
use std::sync::LazyLock;
use std::thread::available_parallelism;

use kvcache_op::{IndexInputs, Inputs, KeyValueCache, Outputs};
use kvcache_schema::INPUTS;
use ort::operator::{ComputeContext, Kernel, KernelContext};
use ort::value::DynTensorValueType;
use ort::{AsPointer, ortsys};

use crate::attributes;
use crate::border::guard;
use crate::error::Error;
use crate::inputs::{
    CACHE, CACHESTARTS, CURRENT_KEY, CURRENT_VALUE, KVSTARTS, MAX_KVLEN, MAX_SEQLEN, SCALE, SEQSTARTS, START_POS,
};
use crate::operator::TypedOperator;
use crate::tensor::Operands;
use crate::workers::Pool;

/// The threads that the machine runs at once, found out once.
static THREADS: LazyLock<usize> = LazyLock::new(|| available_parallelism().map_or(1, usize::from));

/// One node of a graph.
///
/// Nothing in it changes after creation: ONNX Runtime calls one kernel from several threads at once, whatever the trait
/// [`Kernel`] says of exclusive access.
pub(crate) struct NodeKernel {
    operator: KeyValueCache,
}

impl NodeKernel {
    /// The kernel of the node that `context` describes, for which ONNX Runtime has chosen these types.
    ///
    /// # Errors
    /// All that is wrong with the node itself: attributes, types, and state that the caller would not own.
    pub(crate) fn new(context: &KernelContext<'_>, types: TypedOperator) -> Result<Self, Error> {
        Ok(Self { operator: checked_operator(context, types)? })
    }

    fn run(&self, context: &ComputeContext) -> Result<(), Error> {
        let operands = Operands(context);
        let inputs = Inputs {
            current_key: operands.read(CURRENT_KEY)?,
            current_value: operands.read(CURRENT_VALUE)?,
            indices: IndexInputs {
                seqstarts: operands.read(SEQSTARTS)?,
                kvstarts: operands.read(KVSTARTS)?,
                cachestarts: operands.read(CACHESTARTS)?,
                start_pos: operands.read(START_POS)?,
                max_seqlen: operands.read(MAX_SEQLEN)?,
                max_kvlen: operands.read(MAX_KVLEN)?,
            },
        };
        let cache = operands.modify(CACHE)?.ok_or_else(|| Error::Missing { name: INPUTS[CACHE] })?;
        let scale = operands.modify(SCALE)?;
        let call = self.operator.check(&inputs, cache, scale)?;
        // The runtime may refuse an output, and a refused call leaves the cache as it was: nothing is written before both.
        let shape = call.output_shape();
        let outputs = Outputs { key: operands.write(0, shape)?, value: operands.write(1, shape)? };
        Ok(call.run(outputs, &Pool::new(context, *THREADS))?)
    }
}

impl Kernel for NodeKernel {
    fn compute(&mut self, context: &ComputeContext) -> ort::Result<()> {
        guard(|| self.run(context))
    }
}

/// The operator of the node that `context` describes, for these types.
///
/// # Errors
/// All that is wrong with the node itself: attributes, types, and state that the caller would not own.
pub(crate) fn checked_operator(context: &KernelContext<'_>, types: TypedOperator) -> Result<KeyValueCache, Error> {
    if is_retyped(context)? {
        return Err(Error::Retyped);
    }
    let operator = KeyValueCache::new(attributes::of_kernel(context)?)?;
    let scale = has_input(context, SCALE)?.then_some(types.scale);
    let operator = operator.with_types(types.current_key, types.current_value, types.cache, scale)?;
    match [CACHE, SCALE].into_iter().find(|&index| context.constant_input::<DynTensorValueType>(index).is_ok()) {
        Some(index) => Err(Error::Initializer { name: INPUTS[index] }),
        None => Ok(operator),
    }
}

/// Whether the node has an input at `index`: an optional one may be left out, or have the empty name.
pub(crate) fn has_input(context: &KernelContext<'_>, index: usize) -> Result<bool, Error> {
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
/// It does so in its transformer `InsertCastTransformer`, where neither the nodes before this one nor those behind it have
/// a float16 kernel. It puts a `Cast` before every float16 input, `cache` and `scale` included, and one behind each output.
/// The `Cast` behind an output keeps the output's name, so the node's own output gets a new one, by which the change can
/// be told: no other node has an output of such a name. (Names of inputs say less. A node that was float32 in the model
/// may have such a `current_key`, from a neighbor that was changed; and where T3 is float32, an int8 cache and its scale
/// are not cast.)
fn is_retyped(context: &KernelContext<'_>) -> Result<bool, Error> {
    Ok(output_name(context, 0)?.starts_with(b"InsertedPrecisionFreeCast_"))
}

/// The name of the node's output at `index`, without the closing NUL.
fn output_name(context: &KernelContext<'_>, index: usize) -> Result<Vec<u8>, Error> {
    let mut len = 0;
    ortsys![unsafe KernelInfo_GetOutputName(context.ptr(), index, ptr::null_mut(), &mut len)?];
    let mut name = vec![0; len];
    ortsys![unsafe KernelInfo_GetOutputName(context.ptr(), index, name.as_mut_ptr().cast(), &mut len)?];
    name.pop();
    Ok(name)
}
