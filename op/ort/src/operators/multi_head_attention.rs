//! `MultiHeadAttention`.

use kvcache_op::{AttentionAttributes, AttentionInputs, Dim, MultiHeadAttention, Workers};
use kvcache_schema::DOMAINS;
use kvcache_schema::multi_head_attention::{INPUTS, NAME, OUTPUTS};

use crate::call_tensors::{CallTensors, Tensors};
use crate::definition::{Compute, Definition, Signature, position};
use crate::error::Error;
use crate::node::Node;
use crate::shape_inference::Inference;

pub(crate) static MULTI_HEAD_ATTENTION: Definition = Definition {
    signature: Signature { name: NAME, domains: DOMAINS, inputs: &INPUTS, outputs: &OUTPUTS, optional_output: None },
    infer_shape,
    on_cpu: |node| Ok(Box::new(MultiHeadAttentionNode::new(node)?)),
};

pub(crate) const QUERY: usize = position(&INPUTS, "query");
pub(crate) const KEY: usize = position(&INPUTS, "key");
pub(crate) const VALUE: usize = position(&INPUTS, "value");
pub(crate) const SEQSTARTS: usize = position(&INPUTS, "seqstarts");
pub(crate) const KVSTARTS: usize = position(&INPUTS, "kvstarts");
pub(crate) const DECODING_BATCHES: usize = position(&INPUTS, "decoding_batches");
pub(crate) const MAX_SEQLEN: usize = position(&INPUTS, "max_seqlen");
pub(crate) const MAX_KVLEN: usize = position(&INPUTS, "max_kvlen");
pub(crate) const ATTN_MASK: usize = position(&INPUTS, "attn_mask");

pub(crate) struct MultiHeadAttentionNode {
    pub(crate) operator: MultiHeadAttention,
    pub(crate) has_mask: bool,
}

impl MultiHeadAttentionNode {
    /// Checks the attributes of `node`, and that its types go together.
    pub(crate) fn new(node: &Node<'_>) -> Result<Self, Error> {
        let operator = MultiHeadAttention::new(node.attributes()?)?;
        operator.check_types(node.element(QUERY), node.element(KEY), node.element(VALUE))?;
        Ok(Self { operator, has_mask: node.has_input(ATTN_MASK)? })
    }
}

impl Compute for MultiHeadAttentionNode {
    fn run(&self, tensors: &CallTensors<'_>, workers: &dyn Workers) -> Result<(), Error> {
        let inputs = AttentionInputs {
            query: tensors.read(QUERY)?,
            key: tensors.read(KEY)?,
            value: tensors.read(VALUE)?,
            seqstarts: tensors.read(SEQSTARTS)?,
            kvstarts: tensors.read(KVSTARTS)?,
            decoding_batches: tensors.read(DECODING_BATCHES)?,
            max_seqlen: tensors.read(MAX_SEQLEN)?,
            max_kvlen: tensors.read(MAX_KVLEN)?,
            attn_mask: if self.has_mask { tensors.read_elements(ATTN_MASK)? } else { None },
        };
        let call = self.operator.check(&inputs)?;
        let attn_output = tensors.write(0, &call.output_shape())?;
        Ok(call.run(attn_output, workers)?)
    }
}

fn infer_shape(node: &Inference<'_>) -> Result<Vec<Dim>, Error> {
    let operator = MultiHeadAttention::new(node.attributes::<AttentionAttributes>())?;
    Ok(operator.infer_shape(node.shape(QUERY)).into())
}
