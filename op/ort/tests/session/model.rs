//! Models of one `KeyValueCache` node, written with as much of the ONNX format as that needs.

use kvcache_schema::{Attributes, DOMAINS, INPUTS, NAME, OUTPUTS, VERSION};
use prost::Message;

/// Codes of `TensorProto.DataType`.
pub const FLOAT: i32 = 1;
pub const INT64: i32 = 7;
pub const FLOAT16: i32 = 10;
pub const INT4: i32 = 22;

/// Codes of `AttributeProto.AttributeType`.
const ATTRIBUTE_FLOAT: i32 = 1;
const ATTRIBUTE_INT: i32 = 2;

/// A node, and what a model around it must say.
pub struct Node {
    domain: &'static str,
    types: (i32, i32, Option<i32>),
    attributes: Vec<Attribute>,
}

impl Node {
    /// A node of types T1, T2 and, if it has a scale, T3, without the attributes that have their default.
    pub fn new(types: (i32, i32, Option<i32>), attributes: &Attributes) -> Self {
        let values = Attributes::SPEC.iter().map(|spec| (spec, spec.value(attributes)));
        let given = values.filter(|(spec, value)| *value != spec.default).map(|(spec, value)| int(spec.name, value));
        Self { domain: DOMAINS[0], types, attributes: given.collect() }
    }

    /// The node in this domain.
    pub fn in_domain(self, domain: &'static str) -> Self {
        Self { domain, ..self }
    }

    /// The node with `attribute` in the place of one of its name.
    pub fn with(mut self, attribute: Attribute) -> Self {
        self.attributes.retain(|other| other.name != attribute.name);
        self.attributes.push(attribute);
        self
    }

    /// The bytes of a model of this node, whose inputs and outputs are the model's.
    pub fn model(self) -> Vec<u8> {
        let (t1, t2, t3) = self.types;
        let input_types = [t1, t1, INT64, INT64, INT64, INT64, INT64, INT64, t2].into_iter().chain(t3);
        let inputs: Vec<_> = INPUTS.into_iter().zip(input_types).collect();
        let operator = NodeProto {
            input: inputs.iter().map(|&(name, _)| name.to_owned()).collect(),
            output: OUTPUTS.map(str::to_owned).to_vec(),
            name: "the node".to_owned(),
            op_type: NAME.to_owned(),
            attribute: self.attributes,
            domain: self.domain.to_owned(),
        };
        let graph = GraphProto {
            node: vec![operator],
            name: "the graph".to_owned(),
            input: inputs.into_iter().map(value_info).collect(),
            output: OUTPUTS.map(|name| value_info((name, t1))).to_vec(),
        };
        let opset = |domain: &str, version| OperatorSetId { domain: domain.to_owned(), version };
        let opset_import = vec![opset("", 17), opset(self.domain, i64::from(VERSION))];
        Model { ir_version: 10, graph: Some(graph), opset_import }.encode_to_vec()
    }
}

fn int(name: &str, value: i64) -> Attribute {
    Attribute { name: name.to_owned(), f: None, i: Some(value), r#type: ATTRIBUTE_INT }
}

/// A float attribute.
pub fn float(name: &str, value: f32) -> Attribute {
    Attribute { name: name.to_owned(), f: Some(value), i: None, r#type: ATTRIBUTE_FLOAT }
}

/// A tensor of any shape.
fn value_info((name, elem_type): (&str, i32)) -> ValueInfo {
    ValueInfo { name: name.to_owned(), r#type: Some(Type { tensor_type: Some(TensorType { elem_type }) }) }
}

// The messages of onnx.proto, without the fields that these models do without.

#[derive(Clone, PartialEq, Message)]
struct Model {
    #[prost(int64, tag = "1")]
    ir_version: i64,
    #[prost(message, optional, tag = "7")]
    graph: Option<GraphProto>,
    #[prost(message, repeated, tag = "8")]
    opset_import: Vec<OperatorSetId>,
}

#[derive(Clone, PartialEq, Message)]
struct OperatorSetId {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(int64, tag = "2")]
    version: i64,
}

#[derive(Clone, PartialEq, Message)]
struct GraphProto {
    #[prost(message, repeated, tag = "1")]
    node: Vec<NodeProto>,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(message, repeated, tag = "11")]
    input: Vec<ValueInfo>,
    #[prost(message, repeated, tag = "12")]
    output: Vec<ValueInfo>,
}

#[derive(Clone, PartialEq, Message)]
struct NodeProto {
    #[prost(string, repeated, tag = "1")]
    input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    output: Vec<String>,
    #[prost(string, tag = "3")]
    name: String,
    #[prost(string, tag = "4")]
    op_type: String,
    #[prost(message, repeated, tag = "5")]
    attribute: Vec<Attribute>,
    #[prost(string, tag = "7")]
    domain: String,
}

/// An attribute of a node.
#[derive(Clone, PartialEq, Message)]
pub struct Attribute {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(float, optional, tag = "2")]
    f: Option<f32>,
    #[prost(int64, optional, tag = "3")]
    i: Option<i64>,
    #[prost(int32, tag = "20")]
    r#type: i32,
}

#[derive(Clone, PartialEq, Message)]
struct ValueInfo {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    r#type: Option<Type>,
}

#[derive(Clone, PartialEq, Message)]
struct Type {
    #[prost(message, optional, tag = "1")]
    tensor_type: Option<TensorType>,
}

#[derive(Clone, PartialEq, Message)]
struct TensorType {
    #[prost(int32, tag = "1")]
    elem_type: i32,
}
