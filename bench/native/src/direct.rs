//! Calls of the operators without ONNX Runtime, and the comparison of any contender's answer with the reference's.

use std::collections::HashMap;

use kvcache_kernels::{CacheBytes, Cpu, Kernel, Problem, Reference};
use kvcache_op::{
    Attributes, CacheAttentionAttributes, CacheAttentionInputs, ElementType, IndexInputs, Inputs, KeyValueCache,
    MultiHeadCacheAttention, Outputs, Serial, TensorMut, TensorRef,
};
use pyo3::prelude::*;
use xxhash_rust::xxh3::Xxh3;

use crate::refused;
use crate::team::{Sample, Team};

/// `KeyValueCache` with all tensors of a call, which may be made again and again.
#[pyclass(unsendable)]
pub(crate) struct CacheCall {
    op: KeyValueCache,
    tensors: Tensors,
}

#[pymethods]
impl CacheCall {
    /// The call of an operator with these attributes on these tensors, each an element type, a shape and an address.
    #[new]
    fn new(attributes: HashMap<String, i64>, tensors: HashMap<String, (i32, Vec<usize>, usize)>) -> PyResult<Self> {
        let mut made = Attributes::default();
        for (name, value) in attributes {
            made.set(&name, value).then_some(()).ok_or_else(|| refused(format!("no attribute is {name}")))?;
        }
        let call = Self { op: KeyValueCache::new(made).map_err(refused)?, tensors: Tensors(tensors) };
        call.problem().map_err(refused)?;
        Ok(call)
    }

    /// Measures the kernel's `store` or `load`, or with `op` all that a user calls, the check of the inputs included.
    fn measure(&mut self, team: &Team, phase: &str, iterations: usize) -> PyResult<Sample> {
        if phase == "op" {
            return team.measure(iterations, || self.run(team)).map_err(refused);
        }
        let mut problem = self.problem().map_err(refused)?;
        let mut kernel = |part: fn(&Cpu, &mut Problem<'_>, &Team)| {
            let mut run = || part(&Cpu::default(), &mut problem, team);
            team.measure(iterations, || {
                run();
                Ok::<_, String>(())
            })
            .map_err(refused)
        };
        match phase {
            "store" => kernel(|cpu, problem, team| cpu.store(problem.reborrow_stores(), team)),
            "load" => kernel(|cpu, problem, team| cpu.load(problem, team)),
            _ => Err(refused(format!("no phase is {phase}"))),
        }
    }

    /// Runs the reference kernel: the right answer is then in cache, scale and outputs.
    fn run_reference(&mut self) -> PyResult<()> {
        Reference.run(&mut self.problem().map_err(refused)?, &Serial);
        Ok(())
    }

    /// Overwrites all that a contender must write, so that an answer cannot be left over.
    fn scramble(&mut self, byte: u8) -> PyResult<()> {
        self.visit_written(|bytes| bytes.fill(byte)).map_err(refused)
    }

    /// A hash of all that a contender must write: the outputs, and cache and scale where the current tokens are.
    fn answer(&mut self) -> PyResult<u128> {
        let mut hash = Xxh3::new();
        self.visit_written(|bytes| hash.update(bytes)).map_err(refused)?;
        Ok(hash.digest128())
    }
}

impl CacheCall {
    fn run(&self, team: &Team) -> Result<(), String> {
        let (cache, scale) = (self.tensors.write("cache")?, self.tensors.optional("scale")?);
        self.op.run(&self.tensors.inputs()?, cache, scale, self.outputs()?, team).map_err(|error| error.to_string())
    }

    fn outputs(&self) -> Result<Outputs<'static>, String> {
        Ok(Outputs { key: self.tensors.write("key")?, value: self.tensors.write("value")? })
    }

    /// The checked call with its outputs, for the kernels.
    fn problem(&self) -> Result<Problem<'static>, String> {
        let (cache, scale) = (self.tensors.write("cache")?, self.tensors.optional("scale")?);
        let checked = self.op.check(&self.tensors.inputs()?, cache, scale).map_err(|error| error.to_string())?;
        checked.bind(self.outputs()?).map_err(|error| error.to_string())
    }

    fn visit_written(&mut self, mut visit: impl FnMut(&mut [u8])) -> Result<(), String> {
        visit(self.tensors.bytes("key")?);
        visit(self.tensors.bytes("value")?);
        let problem = self.problem()?;
        let stores = problem.stores();
        let (geometry, indices, pointers) = (stores.geometry(), stores.indices(), stores.pointers());
        let bytes = CacheBytes::new(geometry);
        for b in 0..geometry.batch {
            let sequence = indices.sequence(b);
            for t in sequence.start_pos..sequence.all.len() {
                let slot = indices.addressing.slot(b, t);
                for (kv, h) in (0..2).flat_map(|kv| (0..geometry.num_heads).map(move |h| (kv, h))) {
                    let (cache, scale) = bytes.head(slot, kv, h);
                    // SAFETY: `Stores`: slot < max_t, so the head lies in the cache; `&mut self` keeps others away.
                    visit(unsafe { std::slice::from_raw_parts_mut(pointers.cache.add(cache), bytes.cache.head_len) });
                    if geometry.quant.is_some() {
                        let len = bytes.scale.head_len;
                        // SAFETY: `Stores`: slot < max_t, so the head's scales lie in `scale`.
                        visit(unsafe { std::slice::from_raw_parts_mut(pointers.scale.add(scale), len) });
                    }
                }
            }
        }
        Ok(())
    }
}

/// `MultiHeadCacheAttention` with all tensors of a call, which may be made again and again.
#[pyclass(unsendable)]
pub(crate) struct AttentionCall {
    op: MultiHeadCacheAttention,
    tensors: Tensors,
}

#[pymethods]
impl AttentionCall {
    /// The call of an operator with these attributes on these tensors, each an element type, a shape and an address.
    #[new]
    fn new(attributes: HashMap<String, i64>, tensors: HashMap<String, (i32, Vec<usize>, usize)>) -> PyResult<Self> {
        let mut made = CacheAttentionAttributes::default();
        for (name, value) in attributes {
            made.set(&name, value).then_some(()).ok_or_else(|| refused(format!("no attribute is {name}")))?;
        }
        Ok(Self { op: MultiHeadCacheAttention::new(made).map_err(refused)?, tensors: Tensors(tensors) })
    }

    /// Measures all that a user calls: the check of the inputs, the stores, the attention.
    fn measure(&mut self, team: &Team, iterations: usize) -> PyResult<Sample> {
        team.measure(iterations, || self.run(team)).map_err(refused)
    }
}

impl AttentionCall {
    fn run(&self, team: &Team) -> Result<(), String> {
        let inputs = CacheAttentionInputs {
            query: self.tensors.read("query")?,
            stored: self.tensors.inputs()?,
            decoding_batches: self.tensors.read("decoding_batches")?,
            attn_mask: None,
        };
        let (cache, scale) = (self.tensors.write("cache")?, self.tensors.optional("scale")?);
        let call = self.op.check(&inputs, cache, scale).map_err(|error| error.to_string())?;
        call.run(self.tensors.write("attn_output")?, team).map_err(|error| error.to_string())
    }
}

/// ONNX's number of the element type, the shape, and the address of the first element.
type Description = (i32, Vec<usize>, usize);

/// The tensors of a call by the specification's names.
///
/// Whoever makes it keeps each tensor's memory valid for its type and shape as long as the call lives, writable where
/// the operator writes, and lets nobody else use it while the call runs.
pub(crate) struct Tensors(pub(crate) HashMap<String, Description>);

impl Tensors {
    fn get(&self, name: &str) -> Result<(ElementType, &[usize], *mut u8), String> {
        let (element, shape, address) = self.0.get(name).ok_or_else(|| format!("there is no {name}"))?;
        let known = ElementType::ALL.into_iter().find(|known| known.onnx() == *element);
        let element = known.ok_or_else(|| format!("{name}: no operator has tensors of ONNX's type {element}"))?;
        Ok((element, shape, *address as *mut u8))
    }

    /// A tensor to read.
    pub(crate) fn read(&self, name: &str) -> Result<TensorRef<'static>, String> {
        let (element, shape, data) = self.get(name)?;
        // SAFETY: valid for its type and shape as long as the call lives: `Tensors`.
        Ok(unsafe { TensorRef::from_raw_parts(element, shape, data) })
    }

    /// A tensor to write.
    pub(crate) fn write(&self, name: &str) -> Result<TensorMut<'static>, String> {
        let (element, shape, data) = self.get(name)?;
        // SAFETY: valid and writable as long as the call lives, and nobody else uses it: `Tensors`.
        Ok(unsafe { TensorMut::from_raw_parts(element, shape, data) })
    }

    /// A tensor to write that may be left out.
    pub(crate) fn optional(&self, name: &str) -> Result<Option<TensorMut<'static>>, String> {
        self.0.contains_key(name).then(|| self.write(name)).transpose()
    }

    /// The bytes of a tensor that is written.
    pub(crate) fn bytes(&mut self, name: &str) -> Result<&mut [u8], String> {
        let (element, shape, data) = self.get(name)?;
        let len = element.bytes(shape.iter().product()).ok_or("too large")?;
        // SAFETY: initialized and writable as long as the call lives: `Tensors`; the slice borrows them.
        Ok(unsafe { std::slice::from_raw_parts_mut(data, len) })
    }

    /// What `KeyValueCache` and `MultiHeadCacheAttention` both take.
    pub(crate) fn inputs(&self) -> Result<Inputs<'static>, String> {
        Ok(Inputs {
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
        })
    }
}
