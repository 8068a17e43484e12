//! `MultiHeadAttention`.

use kvcache_op::{AttentionAttributes, AttentionCall, AttentionInputs, Dim, MultiHeadAttention, Workers};
use kvcache_schema::DOMAINS;
use kvcache_schema::multi_head_attention::{INPUTS, MASS, NAME, OUTPUTS};

use crate::call_tensors::{CallTensors, Tensors};
use crate::definition::{Compute, Definition, Signature, positions};
use crate::error::Error;
use crate::node::Node;
use crate::shape_inference::Inference;

pub(crate) static MULTI_HEAD_ATTENTION: Definition = Definition {
    signature: Signature {
        name: NAME,
        domains: DOMAINS,
        inputs: &INPUTS,
        outputs: &OUTPUTS,
        optional_output: Some(MASS),
    },
    infer_shape,
    on_cpu: |node| Ok(Box::new(MultiHeadAttentionNode::new(node)?)),
};

positions! {
    /// The positions of its inputs.
    Positions {
        query, key, value, seqstarts, kvstarts, decoding_batches, max_seqlen, max_kvlen, attn_mask,
    }
}

pub(crate) const AT: Positions = Positions::of(&INPUTS);

pub(crate) struct MultiHeadAttentionNode {
    pub(crate) operator: MultiHeadAttention,
    pub(crate) has_mask: bool,
    pub(crate) has_mass: bool,
}

impl MultiHeadAttentionNode {
    /// Checks the attributes of `node`, and that its types go together.
    pub(crate) fn new(node: &Node<'_>) -> Result<Self, Error> {
        let operator = MultiHeadAttention::new(node.attributes()?)?;
        operator.check_types(node.element(AT.query), node.element(AT.key), node.element(AT.value))?;
        let (has_mask, has_mass) = (node.has_input(AT.attn_mask)?, node.has_output(OUTPUTS.len())?);
        Ok(Self { operator, has_mask, has_mass })
    }
}

impl Compute for MultiHeadAttentionNode {
    fn run(&self, tensors: &CallTensors<'_>, workers: &dyn Workers) -> Result<(), Error> {
        let inputs = AttentionInputs {
            query: tensors.read(AT.query)?,
            key: tensors.read(AT.key)?,
            value: tensors.read(AT.value)?,
            seqstarts: tensors.read(AT.seqstarts)?,
            kvstarts: tensors.read(AT.kvstarts)?,
            decoding_batches: tensors.read(AT.decoding_batches)?,
            max_seqlen: tensors.read(AT.max_seqlen)?,
            max_kvlen: tensors.read(AT.max_kvlen)?,
            attn_mask: if self.has_mask { tensors.read_elements(AT.attn_mask)? } else { None },
        };
        let call = self.operator.check(&inputs)?;
        run(call, self.has_mass, tensors, workers)
    }
}

/// Runs a call on the node's outputs.
pub(super) fn run(
    call: AttentionCall<'_>,
    has_mass: bool,
    tensors: &CallTensors<'_>,
    workers: &dyn Workers,
) -> Result<(), Error> {
    let attn_output = tensors.write(0, &call.output_shape())?;
    if !has_mass {
        return Ok(call.run(attn_output, workers)?);
    }
    let attention_mass = tensors.write(OUTPUTS.len(), &call.mass_shape())?;
    Ok(call.run_with_mass(attn_output, attention_mass, workers)?)
}

fn infer_shape(node: &Inference<'_>) -> Result<Vec<Dim>, Error> {
    let operator = MultiHeadAttention::new(node.attributes::<AttentionAttributes>())?;
    Ok(operator.infer_shape(node.shape(AT.query)).into())
}
