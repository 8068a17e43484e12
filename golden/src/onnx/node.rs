//! A model of one node.

use kvcache_schema::{AttributeSpec, ElementType, VERSION};
use prost::Message;

use super::messages::{
    AttributeProto, DimensionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
    TensorShapeProto, TensorTypeProto, TypeProto, ValueInfoProto,
};
use super::tensor::data_type;

/// An older version than the newest that every supported ONNX Runtime reads.
const IR_VERSION: i64 = 10;

/// The version of the default domain, of which the models use nothing.
const OPSET: i64 = 21;

/// A node, and what a model around it must say. The node's inputs and outputs are the model's.
#[derive(Debug, Clone)]
pub struct Node {
    operator: String,
    domain: String,
    attributes: Vec<AttributeProto>,
    inputs: Vec<Input>,
    outputs: Vec<ValueInfoProto>,
    about: String,
}

/// An input of the node.
#[derive(Debug, Clone)]
enum Input {
    /// The model's.
    Given(ValueInfoProto),
    /// Left out, though another one follows: it has the empty name.
    LeftOut,
    /// A constant without elements.
    Empty(TensorProto),
}

/// The extents of a tensor's axes, where they are known.
pub type Dims = Vec<Option<usize>>;

impl Node {
    /// A node without attributes, inputs and outputs.
    pub fn new(operator: &str, domain: &str) -> Self {
        Self {
            operator: operator.to_owned(),
            domain: domain.to_owned(),
            attributes: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            about: String::new(),
        }
    }

    /// The node with an integer attribute, in the place of one of its name.
    pub fn attribute(self, name: &str, value: i64) -> Self {
        let attribute = AttributeProto { name: name.to_owned(), f: None, i: Some(value), r#type: AttributeProto::INT };
        self.with(attribute)
    }

    /// The node with an attribute of type float, in the place of one of its name.
    pub fn float_attribute(self, name: &str, value: f32) -> Self {
        let attribute =
            AttributeProto { name: name.to_owned(), f: Some(value), i: None, r#type: AttributeProto::FLOAT };
        self.with(attribute)
    }

    fn with(mut self, attribute: AttributeProto) -> Self {
        self.attributes.retain(|other| other.name != attribute.name);
        self.attributes.push(attribute);
        self
    }

    /// The node with those of these attributes that a graph must give, or that do not have their default.
    pub fn attributes<A>(self, specs: &[AttributeSpec<A>], attributes: &A) -> Self {
        given(specs, attributes).fold(self, |node, (name, value)| node.attribute(name, value))
    }

    /// The node with a further input, of any rank unless there are `dims`.
    pub fn input(mut self, name: &str, element: ElementType, dims: Option<Dims>) -> Self {
        self.inputs.push(Input::Given(value_info(name, element, dims)));
        self
    }

    /// The node with a further input that is left out.
    pub fn left_out(mut self) -> Self {
        self.inputs.push(Input::LeftOut);
        self
    }

    /// The node with a further input that is a float16 constant without elements, which counts as not given.
    pub fn empty(mut self, name: &str) -> Self {
        self.inputs.push(Input::Empty(TensorProto::empty(name, ElementType::Float16)));
        self
    }

    /// The node with a further output, of any rank unless there are `dims`.
    pub fn output(mut self, name: &str, element: ElementType, dims: Option<Dims>) -> Self {
        self.outputs.push(value_info(name, element, dims));
        self
    }

    /// The node in a model with this description.
    pub fn about(self, about: &str) -> Self {
        Self { about: about.to_owned(), ..self }
    }

    /// The model's bytes.
    pub fn model(&self) -> Vec<u8> {
        let name_of = |input: &Input| match input {
            Input::Given(value) => value.name.clone(),
            Input::LeftOut => String::new(),
            Input::Empty(tensor) => tensor.name.clone(),
        };
        let operator = NodeProto {
            input: self.inputs.iter().map(name_of).collect(),
            output: self.outputs.iter().map(|output| output.name.clone()).collect(),
            name: "the node".to_owned(),
            op_type: self.operator.clone(),
            attribute: self.attributes.clone(),
            domain: self.domain.clone(),
        };
        let (mut input, mut initializer) = (Vec::new(), Vec::new());
        for node_input in &self.inputs {
            match node_input {
                Input::Given(value) => input.push(value.clone()),
                Input::LeftOut => {}
                Input::Empty(tensor) => initializer.push(tensor.clone()),
            }
        }
        let graph = GraphProto {
            node: vec![operator],
            name: "the graph".to_owned(),
            initializer,
            doc_string: self.about.clone(),
            input,
            output: self.outputs.clone(),
        };
        let opset = |domain: &str, version| OperatorSetIdProto { domain: domain.to_owned(), version };
        ModelProto {
            ir_version: IR_VERSION,
            producer_name: "kvcache-golden".to_owned(),
            graph: Some(graph),
            opset_import: vec![opset("", OPSET), opset(&self.domain, i64::from(VERSION))],
        }
        .encode_to_vec()
    }
}

/// The attributes that a graph must give, or that do not have their default.
pub(super) fn given<A>(specs: &[AttributeSpec<A>], attributes: &A) -> impl Iterator<Item = (&'static str, i64)> {
    let values = specs.iter().map(|spec| (spec, spec.value(attributes)));
    values.filter(|(spec, value)| spec.required || *value != spec.default).map(|(spec, value)| (spec.name, value))
}

fn value_info(name: &str, element: ElementType, dims: Option<Dims>) -> ValueInfoProto {
    let dim =
        |extent: Option<usize>| DimensionProto { dim_value: extent.and_then(|extent| i64::try_from(extent).ok()) };
    let shape = dims.map(|dims| TensorShapeProto { dim: dims.into_iter().map(dim).collect() });
    let tensor_type = Some(TensorTypeProto { elem_type: data_type(element), shape });
    ValueInfoProto { name: name.to_owned(), r#type: Some(TypeProto { tensor_type }) }
}
