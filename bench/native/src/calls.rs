//! Calls of the operators without ONNX Runtime, and the threads that native measurements run on.

use std::collections::HashMap;

use kvcache_op::schema::OperatorKind;
use kvcache_op::{
    AttentionBackend, Backend, Backends, ElementType, Error, Operands, Operator, Rayon, Serial, TensorMut, TensorRef,
    Workers,
};
use pyo3::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::refused;

/// The name of the CPU kernel that operators run on here.
#[pyfunction]
pub(crate) fn kernel() -> &'static str {
    AttentionBackend::default().name()
}

/// So many threads; one is the caller's.
pub(crate) struct Threads(Option<ThreadPool>);

impl Threads {
    pub(crate) fn new(count: usize) -> PyResult<Self> {
        let build = || ThreadPoolBuilder::new().num_threads(count).build().map_err(refused);
        Ok(Self((count > 1).then(build).transpose()?))
    }

    /// Runs `work` with workers that are these threads.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce(&dyn Workers) -> T + Send) -> T {
        match &self.0 {
            Some(pool) => pool.install(|| work(&Rayon)),
            None => work(&Serial),
        }
    }
}

/// An operator with all tensors of a call, which may be made again and again.
#[pyclass(unsendable)]
pub(crate) struct Call {
    operator: Operator,
    tensors: Tensors,
    threads: Threads,
}

#[pymethods]
impl Call {
    /// The call of `MultiHeadCacheAttention` if there is a query, else of `KeyValueCache`, on `threads` threads; the
    /// cache's rows are moved by the reference kernel if wanted. Tensors are an element type, a shape and an address.
    #[new]
    fn new(
        attributes: HashMap<String, i64>,
        tensors: HashMap<String, (i32, Vec<usize>, usize)>,
        threads: usize,
        by_reference: bool,
    ) -> PyResult<Self> {
        let backend = if by_reference { Backend::Reference } else { Backend::default() };
        let kind = match tensors.contains_key("query") {
            true => OperatorKind::MultiHeadCacheAttention,
            false => OperatorKind::KeyValueCache,
        };
        let operator =
            Operator::new(kind, |made| match attributes.iter().find(|(name, value)| !made.set(name, **value)) {
                Some((name, _)) => Err(Refused(format!("no attribute is {name}"))),
                None => Ok(()),
            });
        let operator = operator.map_err(|Refused(reason)| refused(reason))?;
        let operator = operator.with_backends(Backends { cache: backend, ..Backends::default() });
        Ok(Self { operator, tensors: Tensors(tensors), threads: Threads::new(threads)? })
    }

    /// Makes the call so many times, each with the check of the inputs.
    fn run(&self, times: usize) -> PyResult<()> {
        let Self { operator, tensors, threads } = self;
        threads.run(|workers| (0..times).try_for_each(|_| tensors.call(operator, workers))).map_err(refused)
    }
}

/// Why an operator cannot be made.
struct Refused(String);

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self(error.to_string())
    }
}

/// The tensors of a call by the specification's names: ONNX's number of the element type, the shape, and the address of
/// the first element.
///
/// Whoever makes it keeps each tensor's memory valid for its type and shape as long as the call lives, writable where
/// the operator writes, and lets nobody else use it while the call runs.
struct Tensors(HashMap<String, (i32, Vec<usize>, usize)>);

impl Tensors {
    fn get(&self, name: &str) -> Result<(ElementType, &[usize], *mut u8), String> {
        let (element, shape, address) = self.0.get(name).ok_or_else(|| format!("there is no {name}"))?;
        let known = ElementType::ALL.into_iter().find(|known| known.onnx() == *element);
        let element = known.ok_or_else(|| format!("{name}: no operator has tensors of ONNX's type {element}"))?;
        Ok((element, shape, *address as *mut u8))
    }

    fn read(&self, name: &str) -> Result<TensorRef<'_>, String> {
        let (element, shape, data) = self.get(name)?;
        // SAFETY: valid for its type and shape as long as the call lives: `Tensors`.
        Ok(unsafe { TensorRef::from_raw_parts(element, shape, data) })
    }

    fn write(&self, name: &str) -> Result<TensorMut<'_>, String> {
        let (element, shape, data) = self.get(name)?;
        // SAFETY: valid and writable as long as the call lives, and nobody else uses it: `Tensors`.
        Ok(unsafe { TensorMut::from_raw_parts(element, shape, data) })
    }

    fn call(&self, operator: &Operator, workers: &dyn Workers) -> Result<(), String> {
        let kind = operator.kind();
        let mut operands = Operands::default();
        for &name in kind.inputs() {
            operands.push(match name {
                name if OperatorKind::is_optional(name) && !self.0.contains_key(name) => None,
                "cache" | "scale" => Some(self.write(name)?.into()),
                name => Some(self.read(name)?.into()),
            });
        }
        let outputs: Vec<_> = kind.outputs().iter().map(|name| self.write(name)).collect::<Result<_, _>>()?;
        let checked = operator.check(operands);
        checked.and_then(|checked| checked.run(outputs, workers)).map_err(|error| error.to_string())
    }
}
