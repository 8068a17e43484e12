//! `KeyValueCache` of dynamic and of static batching, and what other operators have in common with it.

#[cfg(feature = "cuda")]
use kvcache_op::cuda::DeviceOutputs;
#[cfg(feature = "cuda")]
use kvcache_op::cuda::cudarc::driver::{CudaStream, sys::CUstream};
use kvcache_op::{
    Dim, ElementType, IndexInputs, InputDims, Inputs, KeyValueCache, Outputs, StaticInputDims, StaticInputs,
    StaticKeyValueCache, TensorRef, Workers,
};
use kvcache_schema::{DOMAINS, INPUTS, NAME, OUTPUTS, static_key_value_cache};

use crate::compute::{Compute, at};
#[cfg(feature = "cuda")]
use crate::cuda::DeviceTensors;
use crate::error::Error;
use crate::node::Node;
use crate::shape_inference::Inference;
use crate::signature::Signature;
use crate::tensors::{HostTensors, Memory, Tensors};

/// Declares an operator that stores and loads: its node has no more than its operator and whether there is a scale.
macro_rules! stores_and_loads {
    ($Node:ident, $Operator:ident, $signature:expr, $inputs:ident, $Dims:ident, $length:ident) => {
        pub(crate) struct $Node {
            operator: $Operator,
            has_scale: bool,
        }

        impl Compute for $Node {
            const SIGNATURE: Signature = $signature;

            fn new(node: &Node<'_>) -> Result<Self, Error> {
                let operator = $Operator::new(node.attributes()?)?;
                let [key, value, cache] = stored_types::<Self>(node);
                let scale = node.scale(at!(Self, "scale"));
                operator.check_types(key, value, cache, scale)?;
                Ok(Self { operator, has_scale: scale.is_some() })
            }

            fn infer_shape(node: &Inference<'_>) -> Result<Vec<Dim>, Error> {
                let operator = $Operator::new(node.attributes())?;
                let [current_key, current_value, cache] = stored_at::<Self>().map(|index| node.shape(index));
                Ok(operator.infer_shape(&$Dims { current_key, current_value, cache, $length: None }).into())
            }

            fn run(&self, tensors: &HostTensors<'_>, workers: &dyn Workers) -> Result<(), Error> {
                let (cache, scale) = state::<Self, _>(tensors, self.has_scale)?;
                let call = self.operator.check(&$inputs(tensors)?, cache, scale)?;
                let [key, value] = outputs(tensors, &call.output_shape())?;
                Ok(call.run(Outputs { key, value }, workers)?)
            }

            #[cfg(feature = "cuda")]
            fn prepare(&self, node: &Node<'_>, stream: &CudaStream) -> Result<(), Error> {
                let [key, _, cache] = stored_types::<Self>(node);
                let scale = node.scale(at!(Self, "scale"));
                Ok(self.operator.prepare_device(key, cache, scale, stream)?)
            }

            #[cfg(feature = "cuda")]
            unsafe fn launch(&self, tensors: &DeviceTensors<'_>, status: u64, stream: CUstream) -> Result<(), Error> {
                let (cache, scale) = state::<Self, _>(tensors, self.has_scale)?;
                let call = self.operator.check_device($inputs(tensors)?, cache, scale)?;
                let [key, value] = outputs(tensors, &call.output_shape())?;
                // SAFETY: `stream` and `status` are as `launch` says.
                Ok(unsafe { call.launch_raw(DeviceOutputs { key, value }, status, stream) }?)
            }
        }
    };
}

stores_and_loads!(
    KeyValueCacheNode,
    KeyValueCache,
    Signature {
        name: NAME,
        domains: &DOMAINS,
        inputs: &INPUTS,
        outputs: &OUTPUTS,
        optional_output: None,
        output_type: None,
        on_cuda: true
    },
    dynamic_inputs,
    InputDims,
    total_kvlen
);

stores_and_loads!(
    StaticKeyValueCacheNode,
    StaticKeyValueCache,
    Signature {
        name: NAME,
        domains: &static_key_value_cache::DOMAINS,
        inputs: &static_key_value_cache::INPUTS,
        outputs: &OUTPUTS,
        optional_output: None,
        output_type: None,
        on_cuda: true
    },
    static_inputs,
    StaticInputDims,
    start_pos
);

/// The positions of the current key, the current value and the cache.
fn stored_at<C: Compute>() -> [usize; 3] {
    [at!(C, "current_key"), at!(C, "current_value"), at!(C, "cache")]
}

/// The types of the current key, the current value and the cache.
pub(super) fn stored_types<C: Compute>(node: &Node<'_>) -> [ElementType; 3] {
    stored_at::<C>().map(|index| node.element(index))
}

/// The inputs that the operator `C` has in common with `KeyValueCache`, to be read.
pub(super) fn stored_inputs<'a, C: Compute, M: Memory, K: From<TensorRef<'a>>>(
    tensors: &Tensors<'a, M>,
) -> Result<Inputs<'a, M::Ref<'a>, K>, Error> {
    Ok(Inputs {
        current_key: tensors.read(at!(C, "current_key"))?,
        current_value: tensors.read(at!(C, "current_value"))?,
        indices: IndexInputs {
            seqstarts: tensors.read(at!(C, "seqstarts"))?,
            kvstarts: tensors.read_on_host(at!(C, "kvstarts"))?.into(),
            cachestarts: tensors.read(at!(C, "cachestarts"))?,
            start_pos: tensors.read(at!(C, "start_pos"))?,
            max_seqlen: tensors.read_on_host(at!(C, "max_seqlen"))?,
            max_kvlen: tensors.read_on_host(at!(C, "max_kvlen"))?,
        },
    })
}

fn dynamic_inputs<'a, M: Memory, K: From<TensorRef<'a>>>(
    tensors: &Tensors<'a, M>,
) -> Result<Inputs<'a, M::Ref<'a>, K>, Error> {
    stored_inputs::<KeyValueCacheNode, M, K>(tensors)
}

fn static_inputs<'a, M: Memory>(tensors: &Tensors<'a, M>) -> Result<StaticInputs<'a, M::Ref<'a>>, Error> {
    Ok(StaticInputs {
        current_key: tensors.read(at!(StaticKeyValueCacheNode, "current_key"))?,
        current_value: tensors.read(at!(StaticKeyValueCacheNode, "current_value"))?,
        start_pos: tensors.read_on_host(at!(StaticKeyValueCacheNode, "start_pos"))?,
    })
}

/// Cache and scale.
pub(super) fn state<'a, C: Compute, M: Memory>(
    tensors: &Tensors<'a, M>,
    has_scale: bool,
) -> Result<(M::Mut<'a>, Option<M::Mut<'a>>), Error> {
    let scale = has_scale.then(|| tensors.modify(at!(C, "scale"))).transpose()?;
    Ok((tensors.modify(at!(C, "cache"))?, scale))
}

/// `key` and `value`.
fn outputs<'a, M: Memory>(tensors: &Tensors<'a, M>, shape: &[usize]) -> Result<[M::Mut<'a>; 2], Error> {
    Ok([tensors.write(0, shape)?, tensors.write(1, shape)?])
}
