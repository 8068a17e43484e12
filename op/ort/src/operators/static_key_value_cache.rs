//! `KeyValueCache` of static batching.

use kvcache_op::{Dim, StaticAttributes, StaticInputDims, StaticInputs, StaticKeyValueCache};
use kvcache_schema::static_key_value_cache::{DOMAINS, INPUTS, NAME, OUTPUTS};

use crate::call_tensors::Tensors;
use crate::definition::{Definition, Signature, positions};
use crate::error::Error;
use crate::node::Node;
use crate::shape_inference::Inference;

pub(crate) static STATIC_KEY_VALUE_CACHE: Definition = Definition {
    signature: Signature { name: NAME, domains: DOMAINS, inputs: &INPUTS, outputs: &OUTPUTS, optional_output: None },
    infer_shape,
    on_cpu: |node| Ok(Box::new(StaticKeyValueCacheNode::new(node)?)),
};

/// A node of the operator, on any provider.
pub(crate) struct StaticKeyValueCacheNode {
    pub(crate) operator: StaticKeyValueCache,
    pub(crate) has_scale: bool,
}

impl StaticKeyValueCacheNode {
    pub(crate) const AT: StaticPositions = StaticPositions::of(&INPUTS);

    /// Checks the attributes of `node`, and that its types go together.
    pub(crate) fn new(node: &Node<'_>) -> Result<Self, Error> {
        let at = Self::AT;
        let has_scale = node.has_input(at.scale)?;
        let scale = has_scale.then(|| node.element(at.scale));
        let [current_key, current_value, cache] =
            [at.current_key, at.current_value, at.cache].map(|index| node.element(index));
        let operator = StaticKeyValueCache::new(node.attributes()?)?;
        operator.check_types(current_key, current_value, cache, scale)?;
        Ok(Self { operator, has_scale })
    }
}

positions! {
    /// The positions of its inputs.
    StaticPositions { current_key, current_value, start_pos, cache, scale }
}

impl StaticPositions {
    pub(crate) fn inputs<'a, T: Tensors<'a>>(&self, tensors: &T) -> Result<StaticInputs<'a, T::Ref>, Error> {
        Ok(StaticInputs {
            current_key: tensors.read(self.current_key)?,
            current_value: tensors.read(self.current_value)?,
            start_pos: tensors.read_on_host(self.start_pos)?,
        })
    }
}

fn infer_shape(node: &Inference<'_>) -> Result<Vec<Dim>, Error> {
    let at = StaticKeyValueCacheNode::AT;
    let operator = StaticKeyValueCache::new(node.attributes::<StaticAttributes>())?;
    let known = StaticInputDims {
        current_key: node.shape(at.current_key),
        current_value: node.shape(at.current_value),
        cache: node.shape(at.cache),
        start_pos: None,
    };
    Ok(operator.infer_shape(&known).into())
}
