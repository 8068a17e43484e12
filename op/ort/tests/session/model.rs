//! Models of one `KeyValueCache` node.

use crate::onnx::Node;
use kvcache_schema::{Attributes, DOMAINS, ElementType, INPUTS, NAME, OUTPUTS};

/// The types T1, T2 and, if the node has a scale, T3.
pub type Types = (ElementType, ElementType, Option<ElementType>);

/// A node in a domain, without the attributes that have their default.
pub fn node_in(domain: &str, (t1, t2, t3): Types, attributes: &Attributes) -> Node {
    let indices = [ElementType::Int64; 6];
    let types = [t1, t1].into_iter().chain(indices).chain([t2]).chain(t3);
    let node = Node::new(NAME, domain).attributes(&Attributes::SPEC, attributes);
    let node = INPUTS.iter().zip(types).fold(node, |node, (name, element)| node.input(name, element, None));
    OUTPUTS.iter().fold(node, |node, name| node.output(name, t1, None))
}

/// The same in the domain of current exports.
pub fn node(types: Types, attributes: &Attributes) -> Node {
    node_in(DOMAINS[0], types, attributes)
}
