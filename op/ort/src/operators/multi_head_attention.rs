//! `MultiHeadAttention`, and the outputs of both attention operators.

#[cfg(feature = "cuda")]
use kvcache_op::cuda::cudarc::driver::{CudaStream, sys::CUstream};
#[cfg(feature = "cuda")]
use kvcache_op::cuda::{DeviceAttentionCall, DeviceAttentionInputs};
use kvcache_op::{AttentionAttributes, AttentionCall, AttentionInputs, Dim, MultiHeadAttention, Workers};
use kvcache_schema::DOMAINS;
use kvcache_schema::multi_head_attention::{INPUTS, MASS, NAME, OUTPUTS};

use crate::compute::{Compute, at};
#[cfg(feature = "cuda")]
use crate::cuda::DeviceTensors;
use crate::error::Error;
use crate::node::Node;
use crate::shape_inference::Inference;
use crate::signature::Signature;
use crate::tensors::HostTensors;

pub(crate) struct MultiHeadAttentionNode {
    operator: MultiHeadAttention,
    has_mask: bool,
    has_sinks: bool,
    has_mass: bool,
}

impl Compute for MultiHeadAttentionNode {
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
        let operator = MultiHeadAttention::new(node.attributes()?)?;
        let [query, key, value] =
            [at!(Self, "query"), at!(Self, "key"), at!(Self, "value")].map(|index| node.element(index));
        operator.check_types(query, key, value)?;
        let [has_mask, has_sinks] = [node.has_input(at!(Self, "attn_mask"))?, node.has_input(at!(Self, "head_sink"))?];
        let has_mass = node.has_optional_output()?;
        Ok(Self { operator, has_mask, has_sinks, has_mass })
    }

    fn infer_shape(node: &Inference<'_>) -> Result<Vec<Dim>, Error> {
        let operator = MultiHeadAttention::new(node.attributes::<AttentionAttributes>())?;
        Ok(operator.infer_shape(node.shape(at!(Self, "query"))).into())
    }

    fn run(&self, tensors: &HostTensors<'_>, workers: &dyn Workers) -> Result<(), Error> {
        let inputs = AttentionInputs {
            query: tensors.read(at!(Self, "query"))?,
            key: tensors.read(at!(Self, "key"))?,
            value: tensors.read(at!(Self, "value"))?,
            seqstarts: tensors.read(at!(Self, "seqstarts"))?,
            kvstarts: tensors.read(at!(Self, "kvstarts"))?,
            decoding_batches: tensors.read(at!(Self, "decoding_batches"))?,
            max_seqlen: tensors.read(at!(Self, "max_seqlen"))?,
            max_kvlen: tensors.read(at!(Self, "max_kvlen"))?,
            attn_mask: if self.has_mask { tensors.read_elements(at!(Self, "attn_mask"))? } else { None },
            head_sink: if self.has_sinks { tensors.read_elements(at!(Self, "head_sink"))? } else { None },
        };
        run(self.operator.check(&inputs)?, self.has_mass, tensors, workers)
    }

    #[cfg(feature = "cuda")]
    fn prepare(&self, node: &Node<'_>, stream: &CudaStream) -> Result<(), Error> {
        Ok(self.operator.prepare_device(node.element(at!(Self, "query")), stream)?)
    }

    #[cfg(feature = "cuda")]
    unsafe fn launch(&self, tensors: &DeviceTensors<'_>, status: u64, stream: CUstream) -> Result<(), Error> {
        let inputs = DeviceAttentionInputs {
            query: tensors.read(at!(Self, "query"))?,
            key: tensors.read(at!(Self, "key"))?,
            value: tensors.read(at!(Self, "value"))?,
            seqstarts: tensors.read(at!(Self, "seqstarts"))?,
            kvstarts: tensors.read(at!(Self, "kvstarts"))?,
            decoding_batches: tensors.read_on_host(at!(Self, "decoding_batches"))?,
            max_seqlen: tensors.read_on_host(at!(Self, "max_seqlen"))?,
            max_kvlen: tensors.read_on_host(at!(Self, "max_kvlen"))?,
            attn_mask: if self.has_mask { tensors.read_elements(at!(Self, "attn_mask"))? } else { None },
            head_sink: if self.has_sinks { tensors.read_elements(at!(Self, "head_sink"))? } else { None },
            exact_rows: true,
        };
        // SAFETY: `stream` and `status` are as `launch` says.
        unsafe { launch(self.operator.check_device(inputs)?, self.has_mass, tensors, status, stream) }
    }
}

/// Runs a call on the node's outputs.
pub(super) fn run(
    call: AttentionCall<'_>,
    has_mass: bool,
    tensors: &HostTensors<'_>,
    workers: &dyn Workers,
) -> Result<(), Error> {
    let attn_output = tensors.write(0, &call.output_shape())?;
    if !has_mass {
        return Ok(call.run(attn_output, workers)?);
    }
    let attention_mass = tensors.write(OUTPUTS.len(), &call.mass_shape())?;
    Ok(call.run_with_mass(attn_output, attention_mass, workers)?)
}

/// Launches a call on the node's outputs.
///
/// # Safety
/// The conditions of [`Compute::launch`].
#[cfg(feature = "cuda")]
pub(super) unsafe fn launch<'a>(
    mut call: DeviceAttentionCall<'a>,
    has_mass: bool,
    tensors: &DeviceTensors<'a>,
    status: u64,
    stream: CUstream,
) -> Result<(), Error> {
    if has_mass {
        let attention_mass = tensors.write(OUTPUTS.len(), &call.mass_shape())?;
        call = call.with_mass(attention_mass)?;
    }
    let attn_output = tensors.write(0, &call.output_shape())?;
    // SAFETY: `stream` and `status` are as `launch` says.
    Ok(unsafe { call.launch_raw_alloc(attn_output, status, stream) }?)
}
