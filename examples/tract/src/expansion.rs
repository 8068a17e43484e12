//! What tract infers of a node before it makes an operator of it.

use kvcache_op::KeyValueCache;
use kvcache_op::schema::{Attributes, DOMAINS, INPUTS, NAME, OUTPUTS};
use tract_onnx::model::{Onnx, ParsingContext};
use tract_onnx::pb::NodeProto;
use tract_onnx::tract_hir::internal::*;

use crate::operator::KeyValueCacheOp;

const CURRENT_KEY: usize = 0;
const CACHE: usize = 8;

#[derive(Debug, Clone, Hash, PartialEq, Eq)]
pub(crate) struct KeyValueCacheNode {
    pub(crate) attributes: Attributes,
}

impl Expansion for KeyValueCacheNode {
    fn name(&self) -> StaticName {
        NAME.into()
    }

    fn nboutputs(&self) -> TractResult<usize> {
        Ok(OUTPUTS.len())
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        solver: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        if inputs.len() <= CACHE || inputs.len() > INPUTS.len() {
            bail!("{NAME} with {} inputs, expected {INPUTS:?}, of which the last is optional", inputs.len());
        }
        check_output_arity(outputs, OUTPUTS.len())?;
        for output in outputs {
            solver.equals(&inputs[CURRENT_KEY].datum_type, &output.datum_type)?;
            solver.equals(&output.rank, 3)?;
            let repeat = self.attributes.num_repeat;
            solver.given(&inputs[CURRENT_KEY].shape[1], move |solver, heads| {
                solver.equals(&output.shape[1], heads * repeat)
            })?;
            solver.equals(&inputs[CURRENT_KEY].shape[2], &output.shape[2])?;
        }
        solver.equals(&outputs[0].shape[0], &outputs[1].shape[0])
    }

    fn wire(&self, prefix: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let tokens = model.symbols.new_with_prefix("kvlen").into();
        model.wire_node(prefix, KeyValueCacheOp { attributes: self.attributes.clone(), tokens }, inputs)
    }
}

/// Makes `onnx` load graphs with nodes of `KeyValueCache`.
pub fn register(onnx: &mut Onnx) {
    onnx.op_register.insert(NAME, node);
}

fn node(_: &ParsingContext, node: &NodeProto) -> TractResult<(Box<dyn InferenceOp>, Vec<String>)> {
    if !DOMAINS.contains(&node.domain.as_str()) {
        bail!("{NAME} of domain '{}', expected one of {DOMAINS:?}", node.domain);
    }
    let mut attributes = Attributes::default();
    for attribute in &node.attribute {
        let value = node.get_attr(&attribute.name)?;
        if !attributes.set(&attribute.name, value) {
            bail!("{NAME} has no attribute {}", attribute.name);
        }
    }
    // What is wrong with the attributes is said when the model is loaded.
    KeyValueCache::new(attributes.clone())?;
    Ok((expand(KeyValueCacheNode { attributes }), vec![]))
}
