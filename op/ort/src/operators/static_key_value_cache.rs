//! `KeyValueCache` of static batching.

use kvcache_op::{Dim, Outputs, StaticAttributes, StaticInputDims, StaticInputs, StaticKeyValueCache, Workers};
use kvcache_schema::static_key_value_cache::{DOMAINS, INPUTS, NAME, OUTPUTS};

use crate::call_tensors::{CallTensors, Tensors};
use crate::definition::{Compute, Definition, Signature, position};
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
    pub(crate) const CURRENT_KEY: usize = position(&INPUTS, "current_key");
    pub(crate) const CURRENT_VALUE: usize = position(&INPUTS, "current_value");
    pub(crate) const START_POS: usize = position(&INPUTS, "start_pos");
    pub(crate) const CACHE: usize = position(&INPUTS, "cache");
    pub(crate) const SCALE: usize = position(&INPUTS, "scale");
    pub(crate) const KEY: usize = position(&OUTPUTS, "key");
    pub(crate) const VALUE: usize = position(&OUTPUTS, "value");

    /// Checks the attributes of `node`, and that its types go together.
    pub(crate) fn new(node: &Node<'_>) -> Result<Self, Error> {
        let has_scale = node.has_input(Self::SCALE)?;
        let scale = has_scale.then(|| node.element(Self::SCALE));
        let [current_key, current_value, cache] =
            [Self::CURRENT_KEY, Self::CURRENT_VALUE, Self::CACHE].map(|index| node.element(index));
        let operator = StaticKeyValueCache::new(node.attributes()?)?;
        operator.check_types(current_key, current_value, cache, scale)?;
        Ok(Self { operator, has_scale })
    }

    pub(crate) fn inputs<'a, T: Tensors<'a>>(tensors: &T) -> Result<StaticInputs<'a, T::Ref>, Error> {
        Ok(StaticInputs {
            current_key: tensors.read(Self::CURRENT_KEY)?,
            current_value: tensors.read(Self::CURRENT_VALUE)?,
            start_pos: tensors.read_on_host(Self::START_POS)?,
        })
    }
}

impl Compute for StaticKeyValueCacheNode {
    fn run(&self, tensors: &CallTensors<'_>, workers: &dyn Workers) -> Result<(), Error> {
        let inputs = Self::inputs(tensors)?;
        let scale = self.has_scale.then(|| tensors.modify(Self::SCALE)).transpose()?;
        let call = self.operator.check(&inputs, tensors.modify(Self::CACHE)?, scale)?;
        let shape = call.output_shape();
        let outputs = Outputs { key: tensors.write(Self::KEY, &shape)?, value: tensors.write(Self::VALUE, &shape)? };
        Ok(call.run(outputs, workers)?)
    }
}

fn infer_shape(node: &Inference<'_>) -> Result<Vec<Dim>, Error> {
    let operator = StaticKeyValueCache::new(node.attributes::<StaticAttributes>())?;
    let known = StaticInputDims {
        current_key: node.shape(StaticKeyValueCacheNode::CURRENT_KEY),
        current_value: node.shape(StaticKeyValueCacheNode::CURRENT_VALUE),
        cache: node.shape(StaticKeyValueCacheNode::CACHE),
        start_pos: None,
    };
    Ok(operator.infer_shape(&known).into())
}
