//! The operators of this project as an implementation.

use std::collections::BTreeMap;

use kvcache_op::schema::OperatorAttributes;
use kvcache_op::{
    AttentionBackend, Attributes, Backend, Backends as Kernels, Error, Operands, Operator, Output, Shape, TensorMut,
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
        Ok(run_calls(case, self, Tensor::clone))
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

/// What has the bytes of a call's tensor.
pub trait Memory {
    /// The tensor as the operator reads it.
    fn read(&self) -> TensorRef<'_>;
    /// The tensor as the operator writes it.
    fn write(&mut self) -> TensorMut<'_>;
    /// A copy of the tensor.
    fn tensor(&self) -> Tensor;
}

impl Memory for Tensor {
    fn read(&self) -> TensorRef<'_> {
        read(self)
    }

    fn write(&mut self) -> TensorMut<'_> {
        write(self)
    }

    fn tensor(&self) -> Tensor {
        self.clone()
    }
}

/// The results of a case's calls on its state, all of whose tensors are where `place` puts them.
pub fn run_calls<M: Memory>(
    case: &Case,
    backends: &Backends<impl Workers>,
    place: impl Fn(&Tensor) -> M,
) -> Vec<CallResult> {
    let operator = operator(case.operator, &case.attributes, &case.floats);
    let operator = operator.map(|operator| operator.with_backends(backends.kernels()));
    let call = |inputs: &Tensors, state: [Option<TensorMut<'_>>; 2]| {
        let inputs: BTreeMap<_, _> = inputs.iter().map(|(&name, tensor)| (name, place(tensor))).collect();
        let operands = operands(case.operator, |name| inputs.get(name).map(M::read), state);
        let checked = operator.as_ref().map_err(Error::clone)?.check(operands)?;
        let expected = checked.outputs().iter().filter(|output| case.outputs.contains(&output.name));
        let output = |output: &Output| Tensor::zeros(output.element, output.shape.to_vec()).map(|zeros| place(&zeros));
        let outputs: Option<Vec<_>> = expected.map(output).collect();
        let mut outputs = outputs.expect("a checked call has outputs that fit in memory");
        checked.run(outputs.iter_mut().map(M::write), &backends.workers)?;
        Ok::<_, Error>(outputs.iter().map(M::tensor).collect())
    };
    let mut state = [&case.cache, &case.scale].map(|tensor| tensor.as_ref().map(&place));
    let calls = case.steps.iter().map(|step| {
        let outcome = match call(&step.inputs, state.each_mut().map(|state| state.as_mut().map(M::write))) {
            Ok(outputs) => Outcome::Done(outputs),
            Err(error) => Outcome::Refused { kind: Some(error.kind().to_owned()), message: error.to_string() },
        };
        let [cache, scale] = state.each_ref().map(|state| state.as_ref().map(M::tensor));
        CallResult { outcome, cache, scale }
    });
    calls.collect()
}
