//! A node of an ONNX graph.

use kvcache_op::KeyValueCache;
use kvcache_op::schema::{Attributes, DOMAINS, NAME};
use tract_onnx::model::{Onnx, ParsingContext};
use tract_onnx::pb::NodeProto;
use tract_onnx::tract_hir::internal::*;

use crate::expansion::KeyValueCacheNode;

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
