//! A graph of two layers on one cache, loaded and run by tract, against the operator called directly.

use kvcache_op::schema::{Attributes, DOMAINS, INPUTS, NAME};
use kvcache_op::{IndexInputs, Inputs, KeyValueCache, Serial};
use kvcache_tract::register;
use tract_onnx::pb;
use tract_onnx::prelude::tract_ndarray::{Array3, Array5};
use tract_onnx::prelude::*;

const HEADS: usize = 2;
const HEAD_DIM: usize = 8;
const CACHE: [usize; 5] = [2, 2, HEADS, 24, HEAD_DIM];

/// `seqlen` and `start_pos` of two sequences in three steps.
const STEPS: [([i64; 2], [i64; 2]); 3] = [([5, 3], [0, 0]), ([1, 1], [5, 3]), ([2, 0], [6, 4])];

fn attributes(layer_idx: i64) -> Attributes {
    Attributes { num_layer: 2, layer_idx, num_repeat: 2, cache_layout: 3, ..Attributes::default() }
}

fn attribute(name: &str, i: i64) -> pb::AttributeProto {
    let r#type = pb::attribute_proto::AttributeType::Int as i32;
    pb::AttributeProto { name: name.to_owned(), i, r#type, ..Default::default() }
}

/// An input of a type and with named dimensions, as tract needs them.
fn input(name: &str, elem_type: pb::tensor_proto::DataType, dims: &[&str]) -> pb::ValueInfoProto {
    use pb::tensor_shape_proto::{Dimension, dimension};
    let dim = |dim: &&str| Dimension {
        value: Some(match dim.parse() {
            Ok(len) => dimension::Value::DimValue(len),
            Err(_) => dimension::Value::DimParam((*dim).to_owned()),
        }),
        ..Default::default()
    };
    let shape = Some(pb::TensorShapeProto { dim: dims.iter().map(dim).collect() });
    let tensor = pb::type_proto::Tensor { elem_type: elem_type as i32, shape };
    let r#type = Some(pb::TypeProto { value: Some(pb::type_proto::Value::TensorType(tensor)), ..Default::default() });
    pb::ValueInfoProto { name: name.to_owned(), r#type, ..Default::default() }
}

/// A node that stores what the graph's input, or another node, gives it.
fn node(layer_idx: i64, current: [&str; 2], outputs: [&str; 2]) -> pb::NodeProto {
    let values = attributes(layer_idx);
    pb::NodeProto {
        name: format!("layer {layer_idx}"),
        op_type: NAME.to_owned(),
        domain: DOMAINS[0].to_owned(),
        input: current.iter().copied().chain(INPUTS[2..9].iter().copied()).map(str::to_owned).collect(),
        output: outputs.map(str::to_owned).to_vec(),
        attribute: Attributes::SPEC.iter().map(|spec| attribute(spec.name, spec.value(&values))).collect(),
        ..Default::default()
    }
}

fn model() -> pb::ModelProto {
    use pb::tensor_proto::DataType::{Float, Int64};
    let current = ["tokens", "2", "8"];
    let inputs = vec![
        input("current_key", Float, &current),
        input("current_value", Float, &current),
        input("seqstarts", Int64, &["starts"]),
        input("kvstarts", Int64, &["starts"]),
        input("cachestarts", Int64, &["batch"]),
        input("start_pos", Int64, &["batch"]),
        input("max_seqlen", Int64, &["1"]),
        input("max_kvlen", Int64, &["1"]),
        input("cache", Float, &["2", "2", "2", "slots", "8"]),
    ];
    let outputs = ["key0", "value0", "key1", "value1"];
    let graph = pb::GraphProto {
        name: "two layers".to_owned(),
        // The second layer swaps the two.
        node: vec![
            node(0, ["current_key", "current_value"], ["key0", "value0"]),
            node(1, ["current_value", "current_key"], ["key1", "value1"]),
        ],
        input: inputs,
        output: outputs
            .iter()
            .map(|name| pb::ValueInfoProto { name: (*name).to_owned(), ..Default::default() })
            .collect(),
        ..Default::default()
    };
    let opset = |domain: &str, version| pb::OperatorSetIdProto { domain: domain.to_owned(), version };
    pb::ModelProto {
        ir_version: 9,
        opset_import: vec![opset("", 17), opset(DOMAINS[0], 1)],
        graph: Some(graph),
        ..Default::default()
    }
}

fn onnx() -> tract_onnx::Onnx {
    let mut onnx = tract_onnx::onnx();
    register(&mut onnx);
    onnx
}

/// What the sequences have in a step.
struct Step {
    current: [Array3<f32>; 2],
    seqstarts: [i64; 3],
    kvstarts: [i64; 3],
    start_pos: [i64; 2],
    max: [i64; 2],
}

impl Step {
    fn new((seqlen, start_pos): ([i64; 2], [i64; 2])) -> Self {
        let kvlen = [start_pos[0] + seqlen[0], start_pos[1] + seqlen[1]];
        let starts = |[a, b]: [i64; 2]| [0, a, a + b];
        let tokens = (seqlen[0] + seqlen[1]) as usize;
        let numbers = |phase: usize| {
            Array3::from_shape_fn((tokens, HEADS, HEAD_DIM), |(t, h, d)| {
                (((phase + start_pos[0] as usize * 100 + t) * 97 + h * 31 + d) as f32).sin()
            })
        };
        Self {
            current: [numbers(0), numbers(5000)],
            seqstarts: starts(seqlen),
            kvstarts: starts(kvlen),
            start_pos,
            max: [seqlen[0].max(seqlen[1]), kvlen[0].max(kvlen[1])],
        }
    }

    fn values(&self, cache: &TValue) -> TVec<TValue> {
        let indices = |numbers: &[i64]| tensor1(numbers).into_tvalue();
        let [key, value] = self.current.clone().map(|current| Tensor::from(current).into_tvalue());
        let [max_seqlen, max_kvlen] = self.max.map(|max| indices(&[max]));
        let [seqstarts, kvstarts] = [&self.seqstarts, &self.kvstarts].map(|starts| indices(starts));
        let [cachestarts, start_pos] = [&CACHESTARTS, &self.start_pos].map(|numbers| indices(numbers));
        tvec!(key, value, seqstarts, kvstarts, cachestarts, start_pos, max_seqlen, max_kvlen, cache.clone())
    }
}

const CACHESTARTS: [i64; 2] = [12, 2];

#[test]
fn two_layers_give_the_operators_bits_and_write_the_callers_cache() -> TractResult<()> {
    let model = onnx().model_for_proto_model(&model())?.into_optimized()?.into_runnable()?;
    let cache = Tensor::from(Array5::<f32>::from_elem(CACHE, 0.5)).into_tvalue();
    let mut expected_cache = Array5::<f32>::from_elem(CACHE, 0.5);
    for step in STEPS.map(Step::new) {
        let got = model.run(step.values(&cache))?;
        for layer_idx in 0..2 {
            let operator = KeyValueCache::new(attributes(layer_idx as i64))?;
            let inputs = Inputs {
                current_key: (&step.current[layer_idx]).into(),
                current_value: (&step.current[1 - layer_idx]).into(),
                indices: IndexInputs {
                    seqstarts: (&step.seqstarts).into(),
                    kvstarts: (&step.kvstarts).into(),
                    cachestarts: (&CACHESTARTS).into(),
                    start_pos: (&step.start_pos).into(),
                    max_seqlen: (&step.max[0]).into(),
                    max_kvlen: (&step.max[1]).into(),
                },
            };
            let (key, value): (Array3<f32>, _) =
                operator.run_alloc(&inputs, (&mut expected_cache).into(), None, &Serial)?;
            for (got, expected) in got[2 * layer_idx..].iter().zip([key, value]) {
                assert_eq!(got.to_plain_array_view::<f32>()?, expected.into_dyn());
            }
        }
        assert_eq!(cache.to_plain_array_view::<f32>()?, expected_cache.view().into_dyn());
    }
    assert!(expected_cache.iter().any(|&x| x != 0.5));
    Ok(())
}

#[test]
fn shapes_are_inferred_as_far_as_a_graph_knows_them() -> TractResult<()> {
    let model = onnx().model_for_proto_model(&model())?.into_typed()?;
    for output in model.output_outlets()? {
        let fact = model.outlet_fact(*output)?;
        assert_eq!((fact.rank(), fact.shape[1].to_i64()?, fact.shape[2].to_i64()?), (3, 4, 8));
        assert!(fact.shape[0].to_i64().is_err());
    }
    Ok(())
}

#[test]
fn a_refused_call_says_why_and_leaves_the_cache() -> TractResult<()> {
    let model = onnx().model_for_proto_model(&model())?.into_optimized()?.into_runnable()?;
    let cache = Tensor::from(Array5::<f32>::from_elem(CACHE, 0.5)).into_tvalue();
    let mut step = Step::new(STEPS[0]);
    step.kvstarts[2] += 1;
    let error = format!("{:?}", model.run(step.values(&cache)).unwrap_err());
    assert!(error.contains("kvstarts gives batch 1 kvlen 4"), "{error}");
    assert!(cache.to_plain_array_view::<f32>()?.iter().all(|&x| x == 0.5));
    Ok(())
}

#[test]
fn a_node_that_cannot_work_is_refused_at_load() {
    let refused = |change: &dyn Fn(&mut pb::NodeProto), text: &str| {
        let mut model = model();
        change(&mut model.graph.as_mut().unwrap().node[0]);
        let error =
            format!("{:?}", onnx().model_for_proto_model(&model).and_then(|model| model.into_typed()).unwrap_err());
        assert!(error.contains(text), "{text} in {error}");
    };
    refused(&|node| "ai.other".clone_into(&mut node.domain), "of domain 'ai.other'");
    refused(&|node| node.attribute.push(attribute("num_repaet", 2)), "no attribute num_repaet");
    refused(&|node| node.attribute[0] = attribute("num_layer", 0), "attribute num_layer is 0");
    refused(&|node| node.input.truncate(8), "8 inputs");
}
