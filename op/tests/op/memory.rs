//! What the caller's memory may not be, for every operand of every operator: at an odd address, or that of an operand
//! which is written; and outputs of another type or shape. What is refused has written nothing.

use std::collections::BTreeMap;

use kvcache_conformance::backends::{self, Memory};
use kvcache_conformance::{Case, Expected, Operator, Suite, Tensor, cases};
use kvcache_op::{ElementType, Error, Serial, TensorMut, TensorRef};
use kvcache_testing::guarded::{Guard, Guarded};

/// A call in which every operand has elements: a golden case, and its tensors by name, outputs among them.
struct Call {
    case: Case,
    tensors: BTreeMap<&'static str, Tensor>,
}

/// An operand as it is given to the operator.
struct Operand {
    element: ElementType,
    shape: Vec<usize>,
    data: *mut u8,
}

impl Call {
    fn of(operator: Operator) -> Self {
        let fits = |case: &Case| {
            let is_quantized = case.cache.as_ref().is_none_or(|cache| cache.element() == ElementType::Int8);
            let has_mask = operator.suite() != Suite::Attention || case.steps[0].inputs.contains_key("attn_mask");
            let is_one = case.operator == operator && case.is_legal() && case.steps.len() == 1;
            is_one && is_quantized && has_mask && case.scale.is_some() == case.cache.is_some()
        };
        let calls = cases(operator.suite()).unwrap().into_iter().filter(fits).map(|case| {
            let Expected::Success(after) = &case.steps[0].expected else { unreachable!("all calls are legal") };
            let output = |name: &&'static str| {
                let t1 = if *name == "attention_mass" { ElementType::Float32 } else { case.t1() };
                (*name, Tensor::zeros(t1, after[name].shape().to_vec()).unwrap())
            };
            let state = [("cache", &case.cache), ("scale", &case.scale)].into_iter();
            let state = state.filter_map(|(name, tensor)| Some((name, tensor.clone()?)));
            let inputs = case.steps[0].inputs.clone().into_iter();
            let tensors = inputs.chain(state).chain(case.outputs.iter().map(output)).collect();
            Self { case, tensors }
        });
        let have_elements = |call: &Self| call.tensors.values().all(|tensor| !tensor.bytes().is_empty());
        let call = calls.filter(have_elements).max_by_key(|call| call.tensors.len()).unwrap();
        assert!(operator.inputs().all(|input| call.tensors.contains_key(input)), "{}", call.case.name);
        call
    }

    /// What is written, in the order in which it is checked.
    fn written(&self) -> Vec<&'static str> {
        let state = ["cache", "scale"].into_iter().filter(|name| self.tensors.contains_key(name));
        state.chain(self.case.outputs.iter().copied()).collect()
    }

    /// Makes the call with operands that are changed.
    fn run(&self, change: impl FnOnce(&mut BTreeMap<&'static str, Operand>)) -> Result<(), Error> {
        let memory: BTreeMap<_, _> =
            self.tensors.iter().map(|(&name, tensor)| (name, Guarded::new(tensor, Guard::Before))).collect();
        let operand = |(&name, tensor): (&&'static str, &Tensor)| {
            let (element, shape, data) = (tensor.element(), tensor.shape().to_vec(), memory[name].data().as_ptr());
            (name, Operand { element, shape, data })
        };
        let mut operands: BTreeMap<_, _> = self.tensors.iter().map(operand).collect();
        change(&mut operands);
        let write = |Operand { element, shape, data }: &Operand| {
            // SAFETY: memory of this type and shape that lives until the call is over; or else the call is refused
            // before it accesses it.
            unsafe { TensorMut::from_raw_parts(*element, shape.as_slice(), *data) }
        };
        let given = |name: &str| {
            let Operand { element, shape, data } = operands.get(name)?;
            // SAFETY: as above.
            Some(unsafe { TensorRef::from_raw_parts(*element, shape.as_slice(), *data) })
        };
        let Case { operator, attributes, floats, outputs, .. } = &self.case;
        let state = ["cache", "scale"].map(|name| operands.get(name).map(write));
        let operator = backends::operator(*operator, attributes, floats)?;
        let checked = operator.check(backends::operands(self.case.operator, given, state));
        let result = checked.and_then(|call| call.run(outputs.iter().map(|name| write(&operands[name])), &Serial));
        let untouched = self.tensors.iter().all(|(name, tensor)| memory[name].tensor() == *tensor);
        assert!(result.is_ok() || untouched, "written by a refused call: {result:?}");
        result
    }
}

#[test]
fn every_operand_of_every_operator() {
    for operator in Operator::ALL {
        let call = Call::of(operator);
        call.run(|_| ()).unwrap();
        let written = call.written();
        for (&name, tensor) in &call.tensors {
            let align = tensor.element().align();
            if align > 1 {
                let odd = |operand: &mut Operand| operand.data = operand.data.wrapping_add(1);
                let error = call.run(|operands| odd(operands.get_mut(name).unwrap())).unwrap_err();
                let is_named = |input, expected| (input, expected) == (name, align);
                assert!(matches!(error, Error::Misaligned { input, expected, .. } if is_named(input, expected)));
            }
            for (i, &input) in written.iter().enumerate().filter(|(_, input)| **input != name) {
                let error =
                    call.run(|operands| operands.get_mut(input).unwrap().data = operands[name].data).unwrap_err();
                let later = written[i..].contains(&name);
                let (input, other) = if later { (name, input) } else { (input, name) };
                assert_eq!(error, Error::OperandsOverlap { input, other });
            }
        }
        for &output in call.case.outputs {
            let refused = |change: fn(&mut Operand)| {
                let error = call.run(|operands| change(operands.get_mut(output).unwrap())).unwrap_err();
                assert!(error.to_string().starts_with(&format!("{output} ")), "{error}");
                error.kind()
            };
            let kinds = [
                refused(|operand| operand.element = ElementType::Int8),
                refused(|operand| operand.shape[0] -= 1),
                refused(|operand| operand.shape.truncate(1)),
            ];
            assert_eq!(kinds, ["type_mismatch", "shape_mismatch", "rank_mismatch"], "{output}");
        }
    }
}
