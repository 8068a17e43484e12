//! `MultiHeadCacheAttention`.

#[cfg(feature = "cuda")]
use kvcache_op::cuda::cudarc::driver::{CudaStream, sys::CUstream};
use kvcache_op::{CacheAttentionAttributes, CacheAttentionInputs, Dim, MultiHeadCacheAttention, TensorRef, Workers};
use kvcache_schema::DOMAINS;
use kvcache_schema::multi_head_cache_attention::{INPUTS, MASS, NAME, OUTPUTS};

use super::key_value_cache::{state, stored_inputs, stored_types};
#[cfg(feature = "cuda")]
use super::multi_head_attention::launch;
use super::multi_head_attention::run;
use crate::compute::{Compute, at};
#[cfg(feature = "cuda")]
use crate::cuda::DeviceTensors;
use crate::error::Error;
use crate::node::Node;
use crate::shape_inference::Inference;
use crate::signature::Signature;
use crate::tensors::{HostTensors, Memory, Tensors};

pub(crate) struct MultiHeadCacheAttentionNode {
    operator: MultiHeadCacheAttention,
    has_scale: bool,
    has_mask: bool,
    has_sinks: bool,
    has_mass: bool,
}

impl MultiHeadCacheAttentionNode {
    fn inputs<'a, M: Memory, K: From<TensorRef<'a>>>(
        &self,
        tensors: &Tensors<'a, M>,
    ) -> Result<CacheAttentionInputs<'a, M::Ref<'a>, K>, Error> {
        Ok(CacheAttentionInputs {
            query: tensors.read(at!(Self, "query"))?,
            stored: stored_inputs::<Self, M, K>(tensors)?,
            decoding_batches: tensors.read_on_host(at!(Self, "decoding_batches"))?,
            attn_mask: if self.has_mask { tensors.read_elements(at!(Self, "attn_mask"))? } else { None },
            head_sink: if self.has_sinks { tensors.read_elements(at!(Self, "head_sink"))? } else { None },
        })
    }
}

impl Compute for MultiHeadCacheAttentionNode {
    const SIGNATURE: Signature = Signature {
        name: NAME,
        domains: &DOMAINS,
        inputs: &INPUTS,
        outputs: &OUTPUTS,
        optional_output: Some(MASS),
        output_type: None,
        on_cuda: true,
    };

    fn new(node: &Node<'_>) -> Result<Self, Error> {
        let operator = MultiHeadCacheAttention::new(node.attributes()?)?;
        let ([key, value, cache], scale) = (stored_types::<Self>(node), node.scale(at!(Self, "scale")));
        operator.check_types(node.element(at!(Self, "query")), key, value, cache, scale)?;
        let [has_mask, has_sinks] = [node.has_input(at!(Self, "attn_mask"))?, node.has_input(at!(Self, "head_sink"))?];
        let has_mass = node.has_optional_output()?;
        Ok(Self { operator, has_scale: scale.is_some(), has_mask, has_sinks, has_mass })
    }

    fn infer_shape(node: &Inference<'_>) -> Result<Vec<Dim>, Error> {
        let operator = MultiHeadCacheAttention::new(node.attributes::<CacheAttentionAttributes>())?;
        Ok(operator.infer_shape(node.shape(at!(Self, "query"))).into())
    }

    fn run(&self, tensors: &HostTensors<'_>, workers: &dyn Workers) -> Result<(), Error> {
        let (cache, scale) = state::<Self, _>(tensors, self.has_scale)?;
        let call = self.operator.check(&self.inputs(tensors)?, cache, scale)?;
        run(call, self.has_mass, tensors, workers)
    }

    #[cfg(feature = "cuda")]
    fn prepare(&self, node: &Node<'_>, stream: &CudaStream) -> Result<(), Error> {
        let ([_, _, cache], scale) = (stored_types::<Self>(node), node.scale(at!(Self, "scale")));
        Ok(self.operator.prepare_device(node.element(at!(Self, "query")), cache, scale, stream)?)
    }

    #[cfg(feature = "cuda")]
    unsafe fn launch(&self, tensors: &DeviceTensors<'_>, status: u64, stream: CUstream) -> Result<(), Error> {
        let (cache, scale) = state::<Self, _>(tensors, self.has_scale)?;
        let call = self.operator.check_device(self.inputs(tensors)?, cache, scale)?;
        // SAFETY: `stream` and `status` are as `launch` says.
        unsafe { launch(call, self.has_mass, tensors, status, stream) }
    }
}
