//! Calls of the operators without ONNX Runtime, and the threads that native measurements run on.

use std::collections::HashMap;

use kvcache_op::{
    AttentionBackend, Attributes, Backend, CacheAttentionAttributes, CacheAttentionInputs, ElementType, IndexInputs,
    Inputs, KeyValueCache, MultiHeadCacheAttention, Outputs, Rayon, Serial, TensorMut, TensorRef, Workers,
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

enum Operator {
    Cache(KeyValueCache),
    Attention(MultiHeadCacheAttention),
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
        let operator = if tensors.contains_key("query") {
            let mut made = CacheAttentionAttributes::default();
            set_all(&attributes, |name, value| made.set(name, value))?;
            let operator = MultiHeadCacheAttention::new(made).map_err(refused)?;
            Operator::Attention(operator.with_backends(AttentionBackend::default(), backend))
        } else {
            let mut made = Attributes::default();
            set_all(&attributes, |name, value| made.set(name, value))?;
            Operator::Cache(KeyValueCache::new(made).map_err(refused)?.with_backend(backend))
        };
        Ok(Self { operator, tensors: Tensors(tensors), threads: Threads::new(threads)? })
    }

    /// Makes the call so many times, each with the check of the inputs.
    fn run(&self, times: usize) -> PyResult<()> {
        let Self { operator, tensors, threads } = self;
        threads.run(|workers| (0..times).try_for_each(|_| tensors.call(operator, workers))).map_err(refused)
    }
}

fn set_all(attributes: &HashMap<String, i64>, mut set: impl FnMut(&str, i64) -> bool) -> PyResult<()> {
    match attributes.iter().find(|&(name, &value)| !set(name, value)) {
        Some((name, _)) => Err(refused(format!("no attribute is {name}"))),
        None => Ok(()),
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
        let stored = Inputs {
            current_key: self.read("current_key")?,
            current_value: self.read("current_value")?,
            indices: IndexInputs {
                seqstarts: self.read("seqstarts")?,
                kvstarts: self.read("kvstarts")?,
                cachestarts: self.read("cachestarts")?,
                start_pos: self.read("start_pos")?,
                max_seqlen: self.read("max_seqlen")?,
                max_kvlen: self.read("max_kvlen")?,
            },
        };
        let scale = self.0.contains_key("scale").then(|| self.write("scale")).transpose()?;
        let cache = self.write("cache")?;
        match operator {
            Operator::Cache(operator) => {
                let outputs = Outputs { key: self.write("key")?, value: self.write("value")? };
                operator.run(&stored, cache, scale, outputs, workers)
            }
            Operator::Attention(operator) => {
                let (query, decoding_batches) = (self.read("query")?, self.read("decoding_batches")?);
                let inputs = CacheAttentionInputs { query, stored, decoding_batches, attn_mask: None, head_sink: None };
                let output = self.write("attn_output")?;
                operator.check(&inputs, cache, scale).and_then(|call| call.run(output, workers))
            }
        }
        .map_err(|error| error.to_string())
    }
}
