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
const OUTPUTS: [&str; 4] = ["key0", "value0", "key1", "value1"];

fn attributes(layer_idx: i64) -> Attributes {
    Attributes { num_layer: 2, layer_idx, num_repeat: 2, cache_layout: 3, ..Attributes::default() }
}

fn attribute(name: &str, i: i64) -> pb::AttributeProto {
    let r#type = pb::attribute_proto::AttributeType::Int as i32;
    pb::AttributeProto { name: name.to_owned(), i, r#type, ..Default::default() }
}

/// An input of a type and with named dimensions, as tract needs them.
fn input(name: &str, elem_type: pb::tensor_proto::DataType, dims: &[&str]) -> pb::ValueInfoProto {
    use pb::tensor_shape_proto::{Dimension, dimension::Value};
    let dim = |dim: &&str| Dimension {
        value: Some(dim.parse().map_or_else(|_| Value::DimParam((*dim).to_owned()), Value::DimValue)),
        ..Default::default()
    };
    let shape = Some(pb::TensorShapeProto { dim: dims.iter().map(dim).collect() });
    let tensor = pb::type_proto::Tensor { elem_type: elem_type as i32, shape };
    let r#type = Some(pb::TypeProto { value: Some(pb::type_proto::Value::TensorType(tensor)), ..Default::default() });
    pb::ValueInfoProto { name: name.to_owned(), r#type, ..Default::default() }
}

/// A node that stores what the graph's input gives it.
fn node(layer_idx: i64, current: [&str; 2], outputs: &[&str]) -> pb::NodeProto {
    let values = attributes(layer_idx);
    pb::NodeProto {
        op_type: NAME.to_owned(),
        domain: DOMAINS[0].to_owned(),
        input: current.iter().chain(&INPUTS[2..9]).map(|name| (*name).to_owned()).collect(),
        output: outputs.iter().map(|name| (*name).to_owned()).collect(),
        attribute: Attributes::SPEC.iter().map(|spec| attribute(spec.name, spec.value(&values))).collect(),
        ..Default::default()
    }
}

fn model() -> pb::ModelProto {
    use pb::tensor_proto::DataType::{Float, Int64};
    let current = INPUTS[..2].iter().map(|name| input(name, Float, &["tokens", "2", "8"]));
    let indices = INPUTS[2..8].iter().map(|name| input(name, Int64, &[name]));
    let output = |name: &&str| pb::ValueInfoProto { name: (*name).to_owned(), ..Default::default() };
    let graph = pb::GraphProto {
        // The second layer swaps the two.
        node: vec![node(0, [INPUTS[0], INPUTS[1]], &OUTPUTS[..2]), node(1, [INPUTS[1], INPUTS[0]], &OUTPUTS[2..])],
        input: current.chain(indices).chain([input("cache", Float, &["2", "2", "2", "slots", "8"])]).collect(),
        output: OUTPUTS.iter().map(output).collect(),
        ..Default::default()
    };
    let opset = |domain: &str, version| pb::OperatorSetIdProto { domain: domain.to_owned(), version };
    let opset_import = vec![opset("", 17), opset(DOMAINS[0], 1)];
    pb::ModelProto { ir_version: 9, opset_import, graph: Some(graph), ..Default::default() }
}

fn loaded(model: &pb::ModelProto) -> TractResult<TypedModel> {
    let mut onnx = tract_onnx::onnx();
    register(&mut onnx);
    onnx.model_for_proto_model(model)?.into_typed()
}

/// What two sequences have in a step: the current tokens, and the index tensors in the operator's order.
struct Step {
    current: [Array3<f32>; 2],
    indices: [Vec<i64>; 6],
}

impl Step {
    fn new([a, b]: [i64; 2], start_pos: [i64; 2]) -> Self {
        let kvlen = [start_pos[0] + a, start_pos[1] + b];
        let numbers = |phase: i64| {
            Array3::from_shape_fn(((a + b) as usize, HEADS, HEAD_DIM), |(t, h, d)| {
                (((phase + start_pos[0] * 100) as usize + t * 97 + h * 31 + d) as f32).sin()
            })
        };
        let starts = |[a, b]: [i64; 2]| vec![0, a, a + b];
        let max = |[a, b]: [i64; 2]| vec![a.max(b)];
        let (own, cachestarts) = (start_pos.to_vec(), vec![12, 2]);
        let indices = [starts([a, b]), starts(kvlen), cachestarts, own, max([a, b]), max(kvlen)];
        Self { current: [numbers(0), numbers(5000)], indices }
    }

    fn values(&self, cache: &TValue) -> TVec<TValue> {
        let current = self.current.iter().map(|current| Tensor::from(current.clone()).into_tvalue());
        let indices = self.indices.iter().map(|numbers| tensor1(numbers).into_tvalue());
        current.chain(indices).chain([cache.clone()]).collect()
    }
}

#[test]
fn two_layers_give_the_operators_bits_and_write_the_callers_cache() -> TractResult<()> {
    let model = loaded(&model())?;
    for output in model.output_outlets()? {
        let fact = model.outlet_fact(*output)?;
        assert_eq!((fact.rank(), fact.shape[1].to_i64()?, fact.shape[2].to_i64()?), (3, 4, 8));
    }
    let model = model.into_optimized()?.into_runnable()?;
    let mut expected_cache = Array5::<f32>::from_elem(CACHE, 0.5);
    let cache = Tensor::from(expected_cache.clone()).into_tvalue();
    for step in [Step::new([5, 3], [0, 0]), Step::new([1, 1], [5, 3]), Step::new([2, 0], [6, 4])] {
        let got = model.run(step.values(&cache))?;
        for layer_idx in 0..2 {
            let [seqstarts, kvstarts, cachestarts, start_pos, max_seqlen, max_kvlen] =
                step.indices.each_ref().map(Into::into);
            let inputs = Inputs {
                current_key: (&step.current[layer_idx]).into(),
                current_value: (&step.current[1 - layer_idx]).into(),
                indices: IndexInputs { seqstarts, kvstarts, cachestarts, start_pos, max_seqlen, max_kvlen },
            };
            let operator = KeyValueCache::new(attributes(layer_idx as i64))?;
            let (key, value): (Array3<f32>, _) =
                operator.run_alloc(&inputs, (&mut expected_cache).into(), None, &Serial)?;
            for (got, expected) in got[2 * layer_idx..].iter().zip([key, value]) {
                assert_eq!(got.to_plain_array_view::<f32>()?, expected.into_dyn());
            }
        }
        assert_eq!(cache.to_plain_array_view::<f32>()?, expected_cache.view().into_dyn());
    }
    assert!(expected_cache.iter().any(|&x| x != 0.5));
    // A refused call says why, and leaves the cache.
    let mut step = Step::new([5, 3], [0, 0]);
    step.indices[1][2] += 1;
    let error = format!("{:?}", model.run(step.values(&cache)).unwrap_err());
    assert!(error.contains("kvstarts gives batch 1 kvlen 4"), "{error}");
    assert_eq!(cache.to_plain_array_view::<f32>()?, expected_cache.into_dyn());
    Ok(())
}

#[test]
fn a_node_that_cannot_work_is_refused_at_load() {
    let refused = |change: &dyn Fn(&mut pb::NodeProto), text: &str| {
        let mut model = model();
        change(&mut model.graph.as_mut().unwrap().node[0]);
        let error = format!("{:?}", loaded(&model).unwrap_err());
        assert!(error.contains(text), "{text} in {error}");
    };
    refused(&|node| "ai.other".clone_into(&mut node.domain), "of domain 'ai.other'");
    refused(&|node| node.attribute.push(attribute("num_repaet", 2)), "no attribute num_repaet");
    refused(&|node| node.attribute[0] = attribute("num_layer", 0), "attribute num_layer is 0");
    refused(&|node| node.input.truncate(8), "8 inputs");
}
