//! The operators agree with their YAML: a call made from nothing but types and shape formulas is accepted; any other rank,
//! length or type is refused, and so is an attribute outside its range.

mod operators;
mod setting;

use kvcache_conformance::Tensor;
use kvcache_op::{ElementType, Error};
use operators::Numbers;
use setting::{Attribute, settings};

#[test]
fn calls_made_from_the_formulas_are_accepted_and_write_what_is_in_out() {
    for setting in settings() {
        for deeper in [false, true] {
            let mut operands = setting.operands(deeper);
            for rows in ["value", "current_key", "current_value"] {
                operands.entry(rows.to_owned()).and_modify(|rows| rows.bytes_mut().fill(0x3c)); // a number, not zero
            }
            let before = operands.clone();
            setting.run(&mut operands).unwrap();
            for input in &setting.schema.inputs {
                let written = operands[&input.name] != before[&input.name];
                assert_eq!(written, input.in_out, "{} {:?}", input.name, setting.attributes);
            }
            for output in &setting.schema.outputs {
                assert!(operands[&output.name] != before[&output.name], "{}", output.name);
            }
        }
    }
}

#[test]
fn other_ranks_and_lengths_are_refused_by_the_tensors_name() {
    for setting in settings() {
        for (name, tensor) in setting.operands(false) {
            let mut shapes: Vec<Vec<usize>> = vec![[&[2], tensor.shape()].concat()];
            for axis in 0..tensor.shape().len() {
                for len in [tensor.shape()[axis] + 1, tensor.shape()[axis] - 1] {
                    let mut shape = tensor.shape().to_vec();
                    shape[axis] = len;
                    shapes.push(shape);
                }
            }
            for shape in shapes {
                let mut operands = setting.operands(false);
                operands.insert(name.clone(), Tensor::zeros(tensor.element(), shape.clone()).unwrap());
                let own = setting.is_callers_own(&name, tensor.shape(), &shape);
                match setting.run(&mut operands) {
                    Ok(()) => assert!(own, "{name} may not have the shape {shape:?}"),
                    Err(error) => assert!(own || error.to_string().contains(&name), "{name} {shape:?}: {error}"),
                }
            }
        }
    }
}

#[test]
fn other_types_and_absent_tensors_are_refused() {
    for setting in settings() {
        for operand in setting.schema.inputs.iter().chain(&setting.schema.outputs) {
            let name = &operand.name;
            for element in ElementType::ALL {
                let mut operands = setting.operands(false);
                if element == operands[name].element() {
                    continue;
                }
                operands.insert(name.clone(), Tensor::zeros(element, operands[name].shape().to_vec()).unwrap());
                let legal = operand.r#type == "T3" && element == ElementType::Float16;
                assert_eq!(setting.run(&mut operands).is_ok(), legal, "{name} of {element}");
            }
            if operand.optional {
                let mut operands = setting.operands(false);
                operands.remove(name);
                let expected = if name == "scale" { Err(Error::ScaleMissing { quant_bit: 8 }) } else { Ok(()) };
                assert_eq!(setting.run(&mut operands), expected, "without {name}");
            }
        }
    }
}

#[test]
fn attributes_are_legal_in_their_ranges_alone() {
    for setting in settings() {
        // Others are such that each attribute can have every value of its range.
        let mut base = setting.attributes.clone();
        base.insert("num_kv_heads".to_owned(), 0);
        base.extend(
            [("num_layer", i64::MAX), ("layer_idx", 0), ("quant_bit", 0)].map(|(name, x)| (name.to_owned(), x)),
        );
        base.retain(|name, _| setting.schema.attributes.iter().any(|attribute| attribute.name == *name));
        let refused = |name: &str, value: i64, base: &Numbers| {
            let mut attributes = base.clone();
            attributes.insert(name.to_owned(), value);
            match (setting.operator.node)(&attributes) {
                Ok(()) => false,
                Err(Error::AttributeOutOfRange { name: named, got, .. }) => {
                    assert_eq!((named, got), (name, value));
                    true
                }
                Err(other) => panic!("{other}"),
            }
        };
        for Attribute { name, min, max, codes_of, one_of, below, divides, even_with_quant_bit, with_quant_bit } in
            &setting.schema.attributes
        {
            let mut base = base.clone();
            if let Some(quant_bit) = with_quant_bit {
                assert_eq!([0, 1].map(|value| refused(name, value, &base)), [false, true], "{name}");
                base.insert("quant_bit".to_owned(), *quant_bit);
            }
            let last_code = match codes_of.as_deref() {
                None => None,
                Some("cache_modes") => setting.schema.cache_modes.last().map(|mode| mode.code),
                Some("cache_layouts") => setting.schema.cache_layouts.last().map(|layout| layout.code),
                Some(other) => panic!("{other} is a list that this test does not know"),
            };
            let last = max.or(last_code).unwrap_or(i64::MAX - i64::from(below.is_some()));
            let is_one = |value| one_of.as_ref().is_none_or(|legal| legal.contains(&value));
            let divisor = |value: i64| match divides {
                Some(multiple) => value == 0 || base[multiple] % value == 0,
                None => true,
            };
            for value in [i64::MIN, min - 1, *min, min + 1, last - 1, last, last.saturating_add(1), i64::MAX] {
                let legal = (*min..=last).contains(&value) && is_one(value) && divisor(value);
                assert_eq!(refused(name, value, &base), !legal, "{name} = {value}");
            }
            if let Some(limit) = below {
                let mut base = base.clone();
                base.insert(limit.clone(), 3);
                assert_eq!([2, 3].map(|value| refused(name, value, &base)), [false, true], "{name} below {limit}");
            }
            if let Some(quant_bit) = even_with_quant_bit {
                let mut base = base.clone();
                base.insert("quant_bit".to_owned(), *quant_bit);
                assert_eq!([3, 4, 5].map(|value| refused(name, value, &base)), [true, false, true], "{name}");
            }
        }
    }
}

#[test]
fn every_rank_is_checked_before_any_length() {
    for setting in settings().filter(|setting| setting.operator.file == "key_value_cache.yaml") {
        for input in &setting.schema.inputs {
            let mut operands = setting.operands(false);
            // A length that goes with nothing, of the first tensor whose lengths are compared.
            let value = operands.get_mut("current_value").unwrap();
            let shape = value.shape().iter().map(|len| len + 1).collect();
            *value = Tensor::zeros(value.element(), shape).unwrap();
            let tensor = &operands[&input.name];
            let deeper = Tensor::zeros(tensor.element(), [&[1, 1], tensor.shape()].concat()).unwrap();
            operands.insert(input.name.clone(), deeper);
            let error = setting.run(&mut operands).unwrap_err();
            assert!(matches!(&error, Error::RankMismatch { input: name, .. } if *name == input.name), "{error}");
        }
    }
}
