//! `MultiHeadCacheAttention`.

use kvcache_op::{CacheAttentionAttributes, CacheAttentionInputs, Dim, MultiHeadCacheAttention, TensorRef, Workers};
use kvcache_schema::DOMAINS;
use kvcache_schema::multi_head_cache_attention::{INPUTS, MASS, NAME, OUTPUTS};

use super::key_value_cache::StorePositions;
use super::multi_head_attention::run;
use crate::call_tensors::{CallTensors, Tensors};
use crate::definition::{Compute, Definition, Signature, position};
use crate::error::Error;
use crate::node::Node;
use crate::shape_inference::Inference;

pub(crate) static MULTI_HEAD_CACHE_ATTENTION: Definition = Definition {
    signature: Signature {
        name: NAME,
        domains: DOMAINS,
        inputs: &INPUTS,
        outputs: &OUTPUTS,
        optional_output: Some(MASS),
    },
    infer_shape,
    on_cpu: |node| Ok(Box::new(MultiHeadCacheAttentionNode::new(node)?)),
};

pub(crate) const AT: StorePositions = StorePositions::of(&INPUTS);
pub(crate) const QUERY: usize = position(&INPUTS, "query");
pub(crate) const DECODING_BATCHES: usize = position(&INPUTS, "decoding_batches");
pub(crate) const ATTN_MASK: usize = position(&INPUTS, "attn_mask");

pub(crate) struct MultiHeadCacheAttentionNode {
    pub(crate) operator: MultiHeadCacheAttention,
    pub(crate) has_scale: bool,
    pub(crate) has_mask: bool,
    pub(crate) has_mass: bool,
}

impl MultiHeadCacheAttentionNode {
    /// Checks the attributes of `node`, and that its types go together.
    pub(crate) fn new(node: &Node<'_>) -> Result<Self, Error> {
        let has_scale = node.has_input(AT.scale)?;
        let scale = has_scale.then(|| node.element(AT.scale));
        let operator = MultiHeadCacheAttention::new(node.attributes()?)?;
        let [query, current_key, current_value, cache] =
            [QUERY, AT.current_key, AT.current_value, AT.cache].map(|index| node.element(index));
        operator.check_types(query, current_key, current_value, cache, scale)?;
        let (has_mask, has_mass) = (node.has_input(ATTN_MASK)?, node.has_output(OUTPUTS.len())?);
        Ok(Self { operator, has_scale, has_mask, has_mass })
    }

    pub(crate) fn inputs<'a, T: Tensors<'a>, K: From<TensorRef<'a>>>(
        &self,
        tensors: &T,
    ) -> Result<CacheAttentionInputs<'a, T::Ref, K>, Error> {
        Ok(CacheAttentionInputs {
            query: tensors.read(QUERY)?,
            stored: AT.inputs(tensors)?,
            decoding_batches: tensors.read_on_host(DECODING_BATCHES)?,
            attn_mask: if self.has_mask { tensors.read_elements(ATTN_MASK)? } else { None },
        })
    }
}

impl Compute for MultiHeadCacheAttentionNode {
    fn run(&self, tensors: &CallTensors<'_>, workers: &dyn Workers) -> Result<(), Error> {
        let inputs = self.inputs(tensors)?;
        let (cache, scale) = AT.state(tensors, self.has_scale)?;
        let call = self.operator.check(&inputs, cache, scale)?;
        run(call, self.has_mass, tensors, workers)
    }
}

fn infer_shape(node: &Inference<'_>) -> Result<Vec<Dim>, Error> {
    let operator = MultiHeadCacheAttention::new(node.attributes::<CacheAttentionAttributes>())?;
    Ok(operator.infer_shape(node.shape(QUERY)).into())
}
