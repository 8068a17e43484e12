//! Legal calls on an attention kernel.

use std::collections::BTreeMap;
use std::mem::MaybeUninit;

use kvcache_attention::AttentionKernel;
use kvcache_conformance::Tensor;
use kvcache_conformance::backends::{check_attention, inputs_of, write};
use kvcache_kernels::{Kernel, Reference, Serial, Workers};
use kvcache_op::{AttentionBackend, Backend, KeyValueCache, Outputs};
use kvcache_schema::{CacheAttentionAttributes, CacheDims, CacheLayout};

/// The inputs of a call by name, but for `cache` and `scale`.
pub type Inputs = BTreeMap<&'static str, Tensor>;

/// `cache` and `scale`; nothing for packed keys and values.
#[derive(Debug, Clone, PartialEq)]
pub struct State {
    /// Where there is one.
    pub cache: Option<Tensor>,
    /// Where there is one.
    pub scale: Option<Tensor>,
}

/// Makes a legal call; gives `attn_output`.
pub fn attend(
    kernel: &dyn AttentionKernel,
    attributes: &CacheAttentionAttributes,
    inputs: &Inputs,
    state: &mut State,
) -> Tensor {
    attend_on(kernel, attributes, inputs, state, None, &Serial)
}

/// As [`attend`], on the threads of `workers`; writes the attention's mass, too, if there is memory for it.
pub fn attend_on(
    kernel: &dyn AttentionKernel,
    attributes: &CacheAttentionAttributes,
    inputs: &Inputs,
    state: &mut State,
    mass: Option<&mut [MaybeUninit<f32>]>,
    workers: &dyn Workers,
) -> Tensor {
    let query = &inputs["query"];
    let mut output = Tensor::zeros(query.element(), query.shape().to_vec()).expect("it fits");
    let state = [state.cache.as_mut(), state.scale.as_mut()];
    let call = check_attention(attributes, inputs, state, (AttentionBackend::Reference, Backend::Reference));
    let (mut problem, attn_output) = call.and_then(|call| call.bind(write(&mut output))).expect("a legal call");
    problem.store(&Reference, &Serial);
    kernel.attend(&problem, attn_output, mass, workers);
    output
}

/// What `KeyValueCache` gives of all tokens of a call that has been made: `key` and `value`.
pub fn load(attributes: &CacheAttentionAttributes, inputs: &Inputs, state: &mut State) -> [Tensor; 2] {
    let op = KeyValueCache::new(attributes.cache.clone()).expect("a legal node");
    let cache = state.cache.as_mut().expect("the call has a cache");
    let call = op.check(&inputs_of(inputs), write(cache), state.scale.as_mut().map(write)).expect("a legal call");
    let output = || Tensor::zeros(inputs["query"].element(), call.output_shape().to_vec()).expect("it fits");
    let mut outputs = [output(), output()];
    let [key, value] = outputs.each_mut().map(write);
    Reference.load(&mut call.bind(Outputs { key, value }).expect("outputs of its shape"), &Serial);
    outputs
}

/// The shape of a cache, or of its scale, by layout.
pub fn cache_shape(attributes: &CacheAttentionAttributes, max_t: usize, num_heads: usize, inner: usize) -> Vec<usize> {
    let layout = CacheLayout::from_code(attributes.cache.cache_layout).expect("a legal layout");
    layout.shape(CacheDims { max_t, num_layer: attributes.cache.num_layer as usize, num_heads, inner }).to_vec()
}
