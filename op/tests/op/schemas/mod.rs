//! The operators agree with their YAML: a call made from nothing but types and shape formulas is accepted; any other rank,
//! length is refused.

mod operators;
mod setting;

use kvcache_conformance::Tensor;
use kvcache_op::Error;
use setting::settings;

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
fn optional_tensors_may_be_absent() {
    for setting in settings() {
        for operand in setting.schema.inputs.iter().filter(|operand| operand.optional) {
            let mut operands = setting.operands(false);
            operands.remove(&operand.name);
            let expected = if operand.name == "scale" { Err(Error::ScaleMissing { quant_bit: 8 }) } else { Ok(()) };
            assert_eq!(setting.run(&mut operands), expected, "without {}", operand.name);
        }
    }
}
