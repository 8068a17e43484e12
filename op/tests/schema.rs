//! The operator agrees with `key_value_cache.yaml`: a call made from nothing but its types and shape formulas is
//! accepted; any other rank, length or type is refused, and so is an attribute outside its range.

use kvcache_conformance::backends::{read, write};
use std::collections::BTreeMap;

use kvcache_conformance::Tensor;
use kvcache_op::schema::SCHEMA;
use kvcache_op::{Attributes, ElementType, Error, IndexInputs, Inputs, KeyValueCache, Outputs, Serial};
use serde::Deserialize;

#[derive(Deserialize)]
struct Schema {
    attributes: Vec<Attribute>,
    cache_modes: Vec<Mode>,
    cache_layouts: Vec<Layout>,
    inputs: Vec<Operand>,
    outputs: Vec<Operand>,
}

#[derive(Deserialize)]
struct Attribute {
    name: String,
    min: i64,
    max: Option<i64>,
    codes_of: Option<String>,
    one_of: Option<Vec<i64>>,
    below: Option<String>,
    even_with_quant_bit: Option<i64>,
}

#[derive(Deserialize)]
struct Mode {
    code: i64,
    cachestarts: Vec<String>,
}

#[derive(Deserialize)]
struct Layout {
    code: i64,
    axes: Vec<serde_yaml::Value>,
}

#[derive(Deserialize)]
struct Operand {
    name: String,
    r#type: String,
    shape: serde_yaml::Value,
    #[serde(default)]
    in_out: bool,
    #[serde(default)]
    optional: bool,
}

fn schema() -> Schema {
    serde_yaml::from_str(SCHEMA).unwrap()
}

/// A node of one layout and mode, and what its formulas come to in a call.
struct Setting {
    attributes: Attributes,
    lengths: BTreeMap<&'static str, usize>,
    types: BTreeMap<&'static str, ElementType>,
}

impl Setting {
    fn new(cache_layout: i64, cache_mode: i64) -> Self {
        let attributes = Attributes {
            num_layer: 3,
            layer_idx: 2,
            quant_bit: 8,
            quant_group: 4,
            num_repeat: 5,
            cache_mode,
            cache_layout,
            page_size: 2,
        };
        // Two sequences, of 1 and 2 new tokens after 3 and 0. No two lengths are equal where formulas could be
        // confused.
        let lengths = [
            ("B", 2),
            ("B+1", 3),
            ("seqstarts[B]", 3),
            ("kvstarts[B]", 6),
            ("L", 3),
            ("2", 2),
            ("MaxT", 11),
            ("MaxP", 4),
            ("H", 7),
            ("Dh", 12),
            ("Dh/quant_group", 3),
            ("H*num_repeat", 35),
        ];
        let types = [
            ("T1", ElementType::Float16),
            ("T2", ElementType::Int8),
            ("T3", ElementType::Float32),
            ("int64", ElementType::Int64),
        ];
        Self { attributes, lengths: lengths.into(), types: types.into() }
    }

    /// Zeros of an operand's type and shape, as its formulas say.
    fn tensor(&self, schema: &Schema, operand: &Operand) -> Tensor {
        let layout = &schema.cache_layouts[self.attributes.cache_layout as usize];
        let mode = &schema.cache_modes[self.attributes.cache_mode as usize];
        assert_eq!((layout.code, mode.code), (self.attributes.cache_layout, self.attributes.cache_mode));
        let axes_and = |inner: &str| layout.axes.iter().cloned().chain([inner.into()]).collect();
        let formulas = match (operand.shape.as_str(), operand.name.as_str()) {
            (Some("by cache_layout"), "cache") => axes_and("Dh"),
            (Some("by cache_layout"), "scale") => axes_and("Dh/quant_group"),
            (Some("by cache_mode"), "cachestarts") => mode.cachestarts.iter().map(|s| s.as_str().into()).collect(),
            (Some("scalar or [1]"), _) => Vec::new(),
            (Some(other), name) => panic!("{name} has the shape {other:?}, which this test does not know"),
            (None, _) => operand.shape.as_sequence().expect("a list of formulas").clone(),
        };
        let length = |formula: &serde_yaml::Value| {
            let formula = formula.as_i64().map_or_else(|| formula.as_str().unwrap().to_owned(), |n| n.to_string());
            *self.lengths.get(formula.as_str()).unwrap_or_else(|| panic!("this test does not know {formula:?}"))
        };
        Tensor::zeros(self.types[operand.r#type.as_str()], formulas.iter().map(length).collect()).unwrap()
    }

    /// All operands, by name; the indices with the values of the call.
    fn operands(&self, schema: &Schema) -> BTreeMap<String, Tensor> {
        let all = schema.inputs.iter().chain(&schema.outputs);
        let mut operands: BTreeMap<_, _> =
            all.map(|operand| (operand.name.clone(), self.tensor(schema, operand))).collect();
        let cachestarts: &[i64] =
            if self.attributes.cache_mode == 0 { &[7, 4] } else { &[9, 0, -1, -1, 2, -1, -1, -1] };
        let indices: [(&str, &[i64]); 6] = [
            ("seqstarts", &[0, 1, 3]),
            ("kvstarts", &[0, 4, 6]),
            ("cachestarts", cachestarts),
            ("start_pos", &[3, 0]),
            ("max_seqlen", &[2]),
            ("max_kvlen", &[4]),
        ];
        for (name, values) in indices {
            let bytes: Vec<_> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            operands.get_mut(name).unwrap().bytes_mut().copy_from_slice(&bytes);
        }
        operands
    }

    /// Whether two shapes of a tensor differ in MaxT or MaxP, which are the caller's choice: with another the call is
    /// legal, or another tensor or slot does not go with it.
    fn is_callers_own(&self, schema: &Schema, name: &str, shape: &[usize], other: &[usize]) -> bool {
        let axes = &schema.cache_layouts[self.attributes.cache_layout as usize].axes;
        let axis = match name {
            "cache" | "scale" => axes.iter().position(|axis| axis.as_str() == Some("MaxT")),
            "cachestarts" if self.attributes.cache_mode == 1 => Some(1),
            _ => None,
        };
        axis.is_some_and(|axis| shape.len() == other.len() && shape[axis] != other[axis])
    }

    /// The call, without the scale if there is none among the operands.
    fn run(&self, operands: &mut BTreeMap<String, Tensor>) -> Result<(), Error> {
        let [mut cache, mut key, mut value] = ["cache", "key", "value"].map(|name| operands.remove(name).unwrap());
        let mut scale = operands.remove("scale");
        let input = |name: &str| read(&operands[name]);
        let inputs = Inputs {
            current_key: input("current_key"),
            current_value: input("current_value"),
            indices: IndexInputs {
                seqstarts: input("seqstarts"),
                kvstarts: input("kvstarts"),
                cachestarts: input("cachestarts"),
                start_pos: input("start_pos"),
                max_seqlen: input("max_seqlen"),
                max_kvlen: input("max_kvlen"),
            },
        };
        let outputs = Outputs { key: write(&mut key), value: write(&mut value) };
        let operator = KeyValueCache::new(self.attributes.clone())?;
        let result = operator.run(&inputs, write(&mut cache), scale.as_mut().map(write), outputs, &Serial);
        operands.extend([("cache", cache), ("key", key), ("value", value)].map(|(name, x)| (name.to_owned(), x)));
        operands.extend(scale.map(|scale| ("scale".to_owned(), scale)));
        result
    }
}

fn settings(schema: &Schema) -> impl Iterator<Item = Setting> {
    let modes = || schema.cache_modes.iter().map(|mode| mode.code);
    schema.cache_layouts.iter().flat_map(move |layout| modes().map(|mode| Setting::new(layout.code, mode)))
}

#[test]
fn calls_made_from_the_formulas_are_accepted_and_write_what_is_in_out() {
    let schema = schema();
    for setting in settings(&schema) {
        let mut operands = setting.operands(&schema);
        operands.get_mut("current_key").unwrap().bytes_mut().fill(0x3c); // some number, not zero
        let before = operands.clone();
        setting.run(&mut operands).unwrap();
        for input in &schema.inputs {
            let written = operands[&input.name] != before[&input.name];
            assert_eq!(written, input.in_out, "{} {:?}", input.name, setting.attributes);
        }
        assert!(operands["key"] != before["key"]);
    }
}

#[test]
fn other_ranks_and_lengths_are_refused_by_the_tensors_name() {
    let schema = schema();
    for setting in settings(&schema) {
        for (name, tensor) in setting.operands(&schema) {
            let mut shapes: Vec<Vec<usize>> = vec![[&[2], tensor.shape()].concat()];
            for axis in 0..tensor.shape().len() {
                for len in [tensor.shape()[axis] + 1, tensor.shape()[axis] - 1] {
                    let mut shape = tensor.shape().to_vec();
                    shape[axis] = len;
                    shapes.push(shape);
                }
            }
            for shape in shapes {
                let mut operands = setting.operands(&schema);
                operands.insert(name.clone(), Tensor::zeros(tensor.element(), shape.clone()).unwrap());
                let refused = setting.run(&mut operands);
                let own = setting.is_callers_own(&schema, &name, tensor.shape(), &shape);
                match refused {
                    Ok(()) => assert!(own, "{name} may not have the shape {shape:?}"),
                    Err(error) => assert!(own || error.to_string().contains(&name), "{name} {shape:?}: {error}"),
                }
            }
        }
    }
}

#[test]
fn other_types_and_absent_tensors_are_refused() {
    let schema = schema();
    let setting = Setting::new(0, 0);
    for operand in schema.inputs.iter().chain(&schema.outputs) {
        let name = &operand.name;
        for element in ElementType::ALL {
            let mut operands = setting.operands(&schema);
            let expected = operands[name].element();
            let other = Tensor::zeros(element, operands[name].shape().to_vec()).unwrap();
            if element != expected {
                operands.insert(name.clone(), other);
                let legal = operand.r#type == "T3" && element == ElementType::Float16;
                assert_eq!(setting.run(&mut operands).is_ok(), legal, "{name} of {element}");
            }
        }
    }
    let optional: Vec<_> = schema.inputs.iter().filter(|input| input.optional).map(|input| &input.name).collect();
    assert_eq!(optional, ["scale"]);
    let mut operands = setting.operands(&schema);
    operands.remove("scale");
    assert_eq!(setting.run(&mut operands), Err(Error::ScaleMissing { quant_bit: 8 }));
    let unquantized = Setting {
        attributes: Attributes { quant_bit: 0, ..setting.attributes.clone() },
        types: [setting.types.clone(), [("T2", ElementType::Float16)].into()].into_iter().flatten().collect(),
        ..setting
    };
    let mut operands = unquantized.operands(&schema);
    operands.remove("scale");
    assert_eq!(unquantized.run(&mut operands), Ok(()));
}

#[test]
fn attributes_are_legal_in_their_ranges_alone() {
    // Others are such that each attribute can have every value of its range.
    let base = Attributes { num_layer: i64::MAX, ..Attributes::default() };
    let refused = |name: &str, value: i64, base: &Attributes| {
        let mut attributes = base.clone();
        assert!(attributes.set(name, value));
        match KeyValueCache::new(attributes) {
            Ok(_) => false,
            Err(Error::AttributeOutOfRange { name: named, got, .. }) => {
                assert_eq!((named, got), (name, value));
                true
            }
            Err(other) => panic!("{other}"),
        }
    };
    let schema = schema();
    for Attribute { name, min, max, codes_of, one_of, below, even_with_quant_bit } in schema.attributes {
        let last_code = match codes_of.as_deref() {
            None => None,
            Some("cache_modes") => schema.cache_modes.last().map(|mode| mode.code),
            Some("cache_layouts") => schema.cache_layouts.last().map(|layout| layout.code),
            Some(other) => panic!("{other} is a list that this test does not know"),
        };
        let last = max.or(last_code).unwrap_or(i64::MAX - i64::from(below.is_some()));
        for value in [i64::MIN, min - 1, min, min + 1, last - 1, last, last.saturating_add(1), i64::MAX] {
            let legal = (min..=last).contains(&value) && one_of.as_ref().is_none_or(|legal| legal.contains(&value));
            assert_eq!(refused(&name, value, &base), !legal, "{name} = {value}");
        }
        for value in one_of.unwrap_or_default() {
            assert!(!refused(&name, value, &base), "{name} = {value}");
        }
        if let Some(limit) = below {
            let mut base = base.clone();
            assert!(base.set(&limit, 3));
            assert_eq!([2, 3].map(|value| refused(&name, value, &base)), [false, true], "{name} below {limit}");
        }
        if let Some(quant_bit) = even_with_quant_bit {
            let base = Attributes { quant_bit, ..base.clone() };
            assert_eq!([3, 4, 5].map(|value| refused(&name, value, &base)), [true, false, true], "{name}");
        }
    }
}

#[test]
fn every_rank_is_checked_before_any_length() {
    let schema = schema();
    for setting in settings(&schema) {
        for input in &schema.inputs {
            let mut operands = setting.operands(&schema);
            // A length that goes with nothing, of the first tensor whose lengths are compared.
            let value = operands.get_mut("current_value").unwrap();
            let shape = value.shape().iter().map(|len| len + 1).collect();
            *value = Tensor::zeros(value.element(), shape).unwrap();
            let tensor = &operands[&input.name];
            let deeper = [&[1, 1], tensor.shape()].concat();
            let deeper = Tensor::zeros(tensor.element(), deeper).unwrap();
            operands.insert(input.name.clone(), deeper);
            let error = setting.run(&mut operands).unwrap_err();
            assert!(matches!(&error, Error::RankMismatch { input: name, .. } if *name == input.name), "{error}");
        }
    }
}
