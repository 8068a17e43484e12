//! The operators of this project as an implementation.

use kvcache_op::{
    AttentionBackend, AttentionCall, AttentionInputs, Attributes, Backend, CacheAttentionAttributes,
    CacheAttentionInputs, Call, ElementType, Error, IndexInputs, Inputs, KeyValueCache, MultiHeadAttention,
    MultiHeadCacheAttention, Outputs, Shape, StaticAttributes, StaticCall, StaticInputs, StaticKeyValueCache,
    TensorMut, TensorRef, Workers,
};

use crate::case::{AttributeValues, Case, FloatValues, Operator, Tensors};
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

impl<W: Workers> Implementation for Backends<W> {
    fn run(&self, case: &Case) -> Result<Vec<CallResult>, String> {
        let workers = &self.workers;
        Ok(match case.operator {
            Operator::KeyValueCache => run_calls(case, self.backend, |call, outputs| call.run(outputs, workers)),
            Operator::StaticKeyValueCache => {
                run_static_calls(case, self.backend, |call, outputs| call.run(outputs, workers))
            }
            Operator::MultiHeadAttention | Operator::MultiHeadCacheAttention => {
                run_attention(case, (self.attention, self.backend), |call, output, mass| match mass {
                    None => call.run(write(output), workers),
                    Some(mass) => call.run_with_mass(write(output), write(mass), workers),
                })
            }
        })
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

/// The attributes of `KeyValueCache`.
pub fn cache_attributes(values: &AttributeValues) -> Attributes {
    typed(values, Attributes::set)
}

/// The attributes of `KeyValueCache` of static batching.
pub fn static_attributes(values: &AttributeValues) -> StaticAttributes {
    typed(values, StaticAttributes::set)
}

/// The attributes of an attention operator; `MultiHeadAttention` does not use the cache's.
pub fn attention_attributes(values: &AttributeValues, floats: &FloatValues) -> CacheAttentionAttributes {
    let mut attributes = typed(values, CacheAttentionAttributes::set);
    for (name, &value) in floats {
        assert!(attributes.attention.set_float(name, value), "the operator has no float attribute {name}");
    }
    attributes
}

fn typed<A: Default>(values: &AttributeValues, set: fn(&mut A, &str, i64) -> bool) -> A {
    let mut attributes = A::default();
    for (name, &value) in values {
        assert!(set(&mut attributes, name, value), "the operator has no attribute {name}");
    }
    attributes
}

/// The results of a case's calls, which `run` makes once they are checked.
pub fn run_calls(
    case: &Case,
    backend: Backend,
    run: impl Fn(Call<'_>, Outputs<'_>) -> Result<(), Error>,
) -> Vec<CallResult> {
    let op = KeyValueCache::new(cache_attributes(&case.attributes)).map(|op| op.with_backend(backend));
    results(case, |inputs, cache, scale| {
        let (op, cache) = (op.as_ref().map_err(Error::clone)?, cache.expect("the operator has a cache"));
        let call = op.check(&inputs_of(named(inputs)), write(cache), scale.map(write))?;
        let mut outputs = [(); 2].map(|()| zeros(case.operator.t1(inputs), &call.output_shape()));
        run(call, written(&mut outputs))?;
        Ok(outputs.into())
    })
}

/// The results of a case's calls of static batching, which `run` makes once they are checked.
pub fn run_static_calls(
    case: &Case,
    backend: Backend,
    run: impl Fn(StaticCall<'_>, Outputs<'_>) -> Result<(), Error>,
) -> Vec<CallResult> {
    let op = StaticKeyValueCache::new(static_attributes(&case.attributes)).map(|op| op.with_backend(backend));
    results(case, |inputs, cache, scale| {
        let (op, cache) = (op.as_ref().map_err(Error::clone)?, cache.expect("the operator has a cache"));
        let call = op.check(&static_inputs_of(named(inputs)), write(cache), scale.map(write))?;
        let mut outputs = [(); 2].map(|()| zeros(case.operator.t1(inputs), &call.output_shape()));
        run(call, written(&mut outputs))?;
        Ok(outputs.into())
    })
}

/// The results of a case's calls of attention, which `run` makes once they are checked.
pub fn run_attention(
    case: &Case,
    backends: (AttentionBackend, Backend),
    run: impl Fn(AttentionCall<'_>, &mut Tensor, Option<&mut Tensor>) -> Result<(), Error>,
) -> Vec<CallResult> {
    let attributes = attention_attributes(&case.attributes, &case.floats);
    results(case, |inputs, cache, scale| {
        let call = check_attention(&attributes, named(inputs), [cache, scale].map(|state| state.map(write)), backends)?;
        let mut output = zeros(case.operator.t1(inputs), &call.output_shape());
        let mut mass = case.has_mass().then(|| zeros(ElementType::Float32, &call.mass_shape()));
        run(call, &mut output, mass.as_mut())?;
        Ok([Some(output), mass].into_iter().flatten().collect())
    })
}

/// The results of calls on the state of a case, of which `call` gives the outputs.
fn results(
    case: &Case,
    call: impl Fn(&Tensors, Option<&mut Tensor>, Option<&mut Tensor>) -> Result<Vec<Tensor>, Error>,
) -> Vec<CallResult> {
    let (mut cache, mut scale) = (case.cache.clone(), case.scale.clone());
    let calls = case.steps.iter().map(|step| {
        let outcome = match call(&step.inputs, cache.as_mut(), scale.as_mut()) {
            Ok(outputs) => Outcome::Done(outputs),
            Err(error) => Outcome::Refused { kind: Some(error.kind().to_owned()), message: error.to_string() },
        };
        CallResult { outcome, cache: cache.clone(), scale: scale.clone() }
    });
    calls.collect()
}

/// An output for a checked call to write.
fn zeros(element: ElementType, shape: &[usize]) -> Tensor {
    Tensor::zeros(element, shape.to_vec()).expect("a checked call has outputs that fit in memory")
}

fn written([key, value]: &mut [Tensor; 2]) -> Outputs<'_> {
    Outputs { key: write(key), value: write(value) }
}

/// The inputs of a call by name, as the operators read them.
pub fn named<'a>(inputs: &'a Tensors) -> impl Fn(&str) -> Option<TensorRef<'a>> {
    move |name| inputs.get(name).map(read)
}

/// The inputs of a call of `KeyValueCache`, or of its part in `MultiHeadCacheAttention`, by their names.
pub fn inputs_of<'a>(given: impl Fn(&str) -> Option<TensorRef<'a>>) -> Inputs<'a> {
    let input = |name: &str| given(name).expect("the operator has the input");
    Inputs {
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
    }
}

/// The inputs of a call of static batching, by their names.
pub fn static_inputs_of<'a>(given: impl Fn(&str) -> Option<TensorRef<'a>>) -> StaticInputs<'a> {
    let input = |name: &str| given(name).expect("the operator has the input");
    StaticInputs {
        current_key: input("current_key"),
        current_value: input("current_value"),
        start_pos: input("start_pos"),
    }
}

/// A checked call of these inputs: with a cache of `MultiHeadCacheAttention`, without one of `MultiHeadAttention`.
pub fn check_attention<'a>(
    attributes: &CacheAttentionAttributes,
    given: impl Fn(&str) -> Option<TensorRef<'a>>,
    [cache, scale]: [Option<TensorMut<'a>>; 2],
    (backend, store): (AttentionBackend, Backend),
) -> Result<AttentionCall<'a>, Error> {
    let input = |name: &str| given(name).expect("the operator has the input");
    let [attn_mask, head_sink] = ["attn_mask", "head_sink"].map(&given);
    let Some(cache) = cache else {
        let op = MultiHeadAttention::new(attributes.attention.clone())?.with_backend(backend);
        return op.check(&AttentionInputs {
            query: input("query"),
            key: input("key"),
            value: input("value"),
            seqstarts: input("seqstarts"),
            kvstarts: input("kvstarts"),
            decoding_batches: input("decoding_batches"),
            max_seqlen: input("max_seqlen"),
            max_kvlen: input("max_kvlen"),
            attn_mask,
            head_sink,
        });
    };
    let op = MultiHeadCacheAttention::new(attributes.clone())?.with_backends(backend, store);
    let inputs = CacheAttentionInputs {
        query: input("query"),
        stored: inputs_of(&given),
        decoding_batches: input("decoding_batches"),
        attn_mask,
        head_sink,
    };
    op.check(&inputs, cache, scale)
}
