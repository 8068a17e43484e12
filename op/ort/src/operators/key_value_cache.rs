//! `KeyValueCache`.

use kvcache_op::{Dim, InputDims, KeyValueCache, Outputs, Workers};
use kvcache_schema::{Attributes, DOMAINS, INPUTS, NAME, OUTPUTS};

use super::stored;
use crate::definition::{Compute, Definition};
use crate::error::Error;
use crate::infer::Inference;
use crate::node::Node;
use crate::positions::{StorePositions, position};
use crate::signature::Signature;
use crate::tensor::CallTensors;

pub(crate) static KEY_VALUE_CACHE: Definition = Definition {
    signature: Signature { name: NAME, domains: DOMAINS, inputs: &INPUTS, outputs: &OUTPUTS },
    infer_shape,
    on_cpu: |node| Ok(Box::new(KeyValueCacheNode::new(node)?)),
};

/// A node of the operator, on any provider.
pub(crate) struct KeyValueCacheNode {
    pub(crate) operator: KeyValueCache,
    pub(crate) has_scale: bool,
}

impl KeyValueCacheNode {
    pub(crate) const AT: StorePositions = StorePositions::of(&INPUTS);
    pub(crate) const KEY: usize = position(&OUTPUTS, "key");
    pub(crate) const VALUE: usize = position(&OUTPUTS, "value");

    /// Checks the attributes of `node`, and that its types go together.
    pub(crate) fn new(node: &Node<'_>) -> Result<Self, Error> {
        let at = Self::AT;
        let has_scale = node.has_input(at.scale)?;
        let scale = has_scale.then(|| node.element(at.scale));
        let [current_key, current_value, cache] =
            [at.current_key, at.current_value, at.cache].map(|index| node.element(index));
        let operator = KeyValueCache::new(node.attributes()?)?;
        Ok(Self { operator: operator.with_types(current_key, current_value, cache, scale)?, has_scale })
    }
}

impl Compute for KeyValueCacheNode {
    fn run(&self, tensors: &CallTensors<'_>, workers: &dyn Workers) -> Result<(), Error> {
        let inputs = stored::inputs(tensors, &Self::AT)?;
        let (cache, scale) = stored::state(tensors, &Self::AT, self.has_scale)?;
        let call = self.operator.check(&inputs, cache, scale)?;
        let shape = call.output_shape();
        let outputs = Outputs { key: tensors.write(Self::KEY, &shape)?, value: tensors.write(Self::VALUE, &shape)? };
        Ok(call.run(outputs, workers)?)
    }
}

fn infer_shape(node: &Inference<'_>) -> Result<Vec<Dim>, Error> {
    let at = KeyValueCacheNode::AT;
    let operator = KeyValueCache::new(node.attributes::<Attributes>())?;
    let known = InputDims {
        current_key: node.shape(at.current_key),
        current_value: node.shape(at.current_value),
        cache: node.shape(at.cache),
        total_kvlen: None,
    };
    Ok(operator.infer_shape(&known).into())
}
