//! A case of any suite, as a node and its calls.

use std::collections::BTreeMap;

use kvcache_schema::{
    AttentionAttributes, Attributes, DOMAINS, ElementType, INPUTS, NAME, OUTPUTS, StaticAttributes,
    multi_head_attention, static_key_value_cache,
};

use super::node::{Dims, Node, given};
use crate::tensor::Tensor;
use crate::{NamedInputs, attention, static_batching};

/// A case of any operator, as a node and its calls.
#[derive(Debug, Clone)]
pub struct NodeCase<'a> {
    /// The operator.
    pub operator: &'static str,
    /// Its domain in current exports.
    pub domain: &'static str,
    /// The attributes that a graph must give, or that do not have their default.
    pub attributes: Vec<(&'static str, i64)>,
    /// The names of the operator's inputs, by position.
    pub inputs: &'static [&'static str],
    /// The names of its outputs, by position.
    pub outputs: &'static [&'static str],
    /// The inputs that a call changes, before the first call: `cache` and `scale`, as far as there are any.
    pub state: Vec<(&'static str, &'a Tensor)>,
    /// The other inputs of each call.
    pub calls: Vec<BTreeMap<&'static str, &'a Tensor>>,
}

/// What a call leaves out of the middle of the operator's inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeftOut {
    /// An input of the empty name.
    Unnamed,
    /// A constant without elements.
    #[cfg(feature = "onnxruntime")]
    Empty,
}

impl NodeCase<'_> {
    /// The operator's inputs that call `i` is given, by position, the state among them.
    pub(crate) fn given(&self, i: usize) -> impl Iterator<Item = (&'static str, &Tensor)> {
        let state = |name| self.state.iter().find(|(other, _)| *other == name).map(|&(_, tensor)| tensor);
        let call = &self.calls[i];
        self.inputs.iter().filter_map(move |&name| Some((name, call.get(name).copied().or_else(|| state(name))?)))
    }

    /// The node of call `i`, in some domain. `dims` tells the shape of an input or output; it is `None` where any rank
    /// will do.
    pub(crate) fn node(&self, i: usize, domain: &str, left_out: LeftOut, dims: impl Fn(&str) -> Option<Dims>) -> Node {
        let elements: BTreeMap<_, _> = self.given(i).map(|(name, tensor)| (name, tensor.element())).collect();
        let mut node = Node::new(self.operator, domain);
        for &(name, value) in &self.attributes {
            node = node.attribute(name, value);
        }
        let count = self.inputs.iter().rposition(|name| elements.contains_key(name)).map_or(0, |last| last + 1);
        for &name in &self.inputs[..count] {
            node = match (elements.get(name), left_out) {
                (Some(&element), _) => node.input(name, element, dims(name)),
                (None, LeftOut::Unnamed) => node.left_out(),
                #[cfg(feature = "onnxruntime")]
                (None, LeftOut::Empty) => node.empty(name),
            };
        }
        // All outputs have the type of the first input, which is never left out.
        let t1 = elements.get(self.inputs[0]).copied().unwrap_or(ElementType::Float32);
        self.outputs.iter().fold(node, |node, name| node.output(name, t1, dims(name)))
    }
}

/// `cache` and `scale`, as far as there are any.
pub(crate) fn state<'a>(cache: Option<&'a Tensor>, scale: Option<&'a Tensor>) -> Vec<(&'static str, &'a Tensor)> {
    [("cache", cache), ("scale", scale)].into_iter().filter_map(|(name, tensor)| Some((name, tensor?))).collect()
}

impl<'a> From<&'a crate::Case> for NodeCase<'a> {
    fn from(case: &'a crate::Case) -> Self {
        Self {
            operator: NAME,
            domain: DOMAINS[0],
            attributes: given(&Attributes::SPEC, &case.attributes).collect(),
            inputs: &INPUTS,
            outputs: &OUTPUTS,
            state: state(Some(&case.cache), case.scale.as_ref()),
            calls: case.steps.iter().map(|step| step.inputs.named().into_iter().collect()).collect(),
        }
    }
}

impl<'a> From<&'a static_batching::Case> for NodeCase<'a> {
    fn from(case: &'a static_batching::Case) -> Self {
        Self {
            operator: NAME,
            domain: static_key_value_cache::DOMAINS[0],
            attributes: given(&StaticAttributes::SPEC, &case.attributes).collect(),
            inputs: &static_key_value_cache::INPUTS,
            outputs: &OUTPUTS,
            state: state(Some(&case.cache), case.scale.as_ref()),
            calls: case.steps.iter().map(|step| step.inputs.named().into_iter().collect()).collect(),
        }
    }
}

impl<'a> From<&'a attention::Case> for NodeCase<'a> {
    fn from(case: &'a attention::Case) -> Self {
        let of_attention = given(&AttentionAttributes::SPEC, &case.attributes.attention);
        // The others are no attributes of the operator over packed keys and values.
        let of_cache = given(&Attributes::SPEC, &case.attributes.cache)
            .filter(|_| case.operator == attention::Operator::MultiHeadCacheAttention);
        Self {
            operator: case.operator.name(),
            domain: DOMAINS[0],
            attributes: of_attention.chain(of_cache).collect(),
            inputs: case.operator.inputs(),
            outputs: &multi_head_attention::OUTPUTS,
            state: state(case.cache.as_ref(), case.scale.as_ref()),
            calls: case.steps.iter().map(|step| step.inputs.iter().map(|(&name, x)| (name, x)).collect()).collect(),
        }
    }
}
