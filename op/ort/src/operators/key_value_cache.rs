//! `KeyValueCache`.

use kvcache_op::{Dim, IndexInputs, InputDims, Inputs, KeyValueCache, Outputs, TensorRef, Workers};
use kvcache_schema::{Attributes, DOMAINS, INPUTS, NAME, OUTPUTS};

use super::static_key_value_cache::{StaticKeyValueCacheNode, StaticPositions};
use crate::call_tensors::{CallTensors, Tensors};
use crate::definition::{Compute, Definition, Signature, position, positions};
use crate::error::Error;
use crate::node::Node;
use crate::shape_inference::Inference;

pub(crate) static KEY_VALUE_CACHE: Definition = Definition {
    signature: Signature { name: NAME, domains: DOMAINS, inputs: &INPUTS, outputs: &OUTPUTS, optional_output: None },
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

/// A call of a node that stores and loads, on the CPU.
macro_rules! compute_rows {
    ($($node:ty),*) => { $(
        impl Compute for $node {
            fn run(&self, tensors: &CallTensors<'_>, workers: &dyn Workers) -> Result<(), Error> {
                let inputs = Self::AT.inputs(tensors)?;
                let (cache, scale) = Self::AT.state(tensors, self.has_scale)?;
                let call = self.operator.check(&inputs, cache, scale)?;
                let [key, value] = outputs(tensors, &call.output_shape())?;
                Ok(call.run(Outputs { key, value }, workers)?)
            }
        }
    )* };
}

compute_rows!(KeyValueCacheNode, StaticKeyValueCacheNode);

/// `key` and `value`.
pub(crate) fn outputs<'a, T: Tensors<'a>>(tensors: &T, shape: &[usize]) -> Result<[T::Mut; 2], Error> {
    let [key, value] = const { [position(&OUTPUTS, "key"), position(&OUTPUTS, "value")] };
    Ok([tensors.write(key, shape)?, tensors.write(value, shape)?])
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

positions! {
    /// The positions of the inputs that an operator has in common with `KeyValueCache`.
    StorePositions {
        current_key, current_value, seqstarts, kvstarts, cachestarts, start_pos, max_seqlen, max_kvlen, cache, scale,
    }
}

impl StorePositions {
    pub(crate) fn inputs<'a, T: Tensors<'a>, K: From<TensorRef<'a>>>(
        &self,
        tensors: &T,
    ) -> Result<Inputs<'a, T::Ref, K>, Error> {
        Ok(Inputs {
            current_key: tensors.read(self.current_key)?,
            current_value: tensors.read(self.current_value)?,
            indices: IndexInputs {
                seqstarts: tensors.read(self.seqstarts)?,
                kvstarts: tensors.read_on_host(self.kvstarts)?.into(),
                cachestarts: tensors.read(self.cachestarts)?,
                start_pos: tensors.read(self.start_pos)?,
                max_seqlen: tensors.read_on_host(self.max_seqlen)?,
                max_kvlen: tensors.read_on_host(self.max_kvlen)?,
            },
        })
    }
}

/// Cache and scale.
macro_rules! state {
    ($($positions:ty),*) => { $(
        impl $positions {
            pub(crate) fn state<'a, T: Tensors<'a>>(
                &self,
                tensors: &T,
                has_scale: bool,
            ) -> Result<(T::Mut, Option<T::Mut>), Error> {
                let scale = has_scale.then(|| tensors.modify(self.scale)).transpose()?;
                Ok((tensors.modify(self.cache)?, scale))
            }
        }
    )* };
}

state!(StorePositions, StaticPositions);

#[cfg(test)]
mod tests {
    use kvcache_schema::multi_head_cache_attention;

    use super::*;

    #[test]
    fn positions_are_those_of_the_specification() {
        let StorePositions { current_key, seqstarts, max_seqlen, cache, scale, .. } = StorePositions::of(&INPUTS);
        assert_eq!([current_key, seqstarts, max_seqlen, cache, scale], [0, 2, 6, 8, 9]);
        let fused = StorePositions::of(&multi_head_cache_attention::INPUTS);
        let StorePositions { current_key, seqstarts, max_seqlen, cache, scale, .. } = fused;
        assert_eq!([current_key, seqstarts, max_seqlen, cache, scale], [1, 3, 8, 10, 11]);
    }
}
