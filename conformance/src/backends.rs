//! The operators of this project as an implementation.

use kvcache_op::schema::OperatorAttributes;
use kvcache_op::{
    AttentionBackend, Attributes, Backend, Backends as Kernels, Checked, Error, Operands, Operator, Shape, TensorMut,
    TensorRef, Workers,
};

use crate::case::{self, AttributeValues, Case, FloatValues, Tensors};
use crate::implementation::{CallResult, Implementation, Outcome};
use crate::tensor::Tensor;

/// Backends of the operators, on some threads.
#[derive(Debug, Clone, Copy)]
pub struct Backends<W> {
    /// The backend that stores and loads.
    pub backend: Backend,
    /// The backend that attends.
    pub attention: AttentionBackend,
    /// The threads.
    pub workers: W,
}

impl<W> Backends<W> {
    /// The kernels of both backends.
    pub fn kernels(&self) -> Kernels {
        Kernels { cache: self.backend, attention: self.attention, ..Kernels::default() }
    }
}

impl<W: Workers> Implementation for Backends<W> {
    fn run(&self, case: &Case) -> Result<Vec<CallResult>, String> {
        Ok(run_calls(case, self.kernels(), |call, outputs| call.run(outputs.iter_mut().map(write), &self.workers)))
    }
}

/// A tensor as the operator reads it.
pub fn read(tensor: &Tensor) -> TensorRef<'_> {
    // SAFETY: the tensor owns aligned bytes of its type and shape, borrowed as long as the result lives.
    unsafe { TensorRef::from_raw_parts(tensor.element(), tensor.shape(), tensor.bytes().as_ptr()) }
}

/// A tensor as the operator writes it.
pub fn write(tensor: &mut Tensor) -> TensorMut<'_> {
    let shape: Shape = tensor.shape().into();
    // SAFETY: the tensor owns aligned bytes of its type and shape, borrowed mutably as long as the result lives.
    unsafe { TensorMut::from_raw_parts(tensor.element(), shape, tensor.bytes_mut().as_mut_ptr()) }
}

/// The operator with these attributes.
///
/// # Errors
/// If they are illegal.
///
/// # Panics
/// For an attribute that the operator does not have.
pub fn operator(operator: case::Operator, integers: &AttributeValues, floats: &FloatValues) -> Result<Operator, Error> {
    Operator::new(operator.kind(), |attributes| {
        set_all(attributes, integers, floats);
        Ok(())
    })
}

/// The attributes of `KeyValueCache`.
///
/// # Panics
/// For an attribute that the operator does not have.
pub fn cache_attributes(values: &AttributeValues) -> Attributes {
    let mut attributes = Attributes::default();
    set_all(&mut attributes, values, &FloatValues::new());
    attributes
}

fn set_all(attributes: &mut dyn OperatorAttributes, integers: &AttributeValues, floats: &FloatValues) {
    for (name, &value) in integers {
        assert!(attributes.set(name, value), "the operator has no attribute {name}");
    }
    for (name, &value) in floats {
        assert!(attributes.set_float(name, value), "the operator has no float attribute {name}");
    }
}

/// The operands of a call: inputs by their names, `cache` and `scale`.
pub fn operands<'a>(
    operator: case::Operator,
    given: impl Fn(&str) -> Option<TensorRef<'a>>,
    [mut cache, mut scale]: [Option<TensorMut<'a>>; 2],
) -> Operands<'a> {
    let operand = |&name: &&str| match name {
        "cache" => cache.take().map(Into::into),
        "scale" => scale.take().map(Into::into),
        name => given(name).map(Into::into),
    };
    operator.kind().inputs().iter().map(operand).collect()
}

/// The results of a case's calls on its state, which `run` makes once they are checked.
pub fn run_calls(
    case: &Case,
    backends: Kernels,
    run: impl Fn(Checked<'_>, &mut [Tensor]) -> Result<(), Error>,
) -> Vec<CallResult> {
    let operator = operator(case.operator, &case.attributes, &case.floats).map(|op| op.with_backends(backends));
    let call = |inputs: &Tensors, state: [Option<TensorMut<'_>>; 2]| {
        let operands = operands(case.operator, |name| inputs.get(name).map(read), state);
        let checked = operator.as_ref().map_err(Error::clone)?.check(operands)?;
        let expected = checked.outputs().iter().filter(|output| case.outputs.contains(&output.name));
        let outputs: Option<Vec<_>> =
            expected.map(|output| Tensor::zeros(output.element, output.shape.to_vec())).collect();
        let mut outputs = outputs.expect("a checked call has outputs that fit in memory");
        run(checked, &mut outputs)?;
        Ok::<_, Error>(outputs)
    };
    let mut state = [case.cache.clone(), case.scale.clone()];
    let calls = case.steps.iter().map(|step| {
        let outcome = match call(&step.inputs, state.each_mut().map(|state| state.as_mut().map(write))) {
            Ok(outputs) => Outcome::Done(outputs),
            Err(error) => Outcome::Refused { kind: Some(error.kind().to_owned()), message: error.to_string() },
        };
        let [cache, scale] = state.clone();
        CallResult { outcome, cache, scale }
    });
    calls.collect()
}
