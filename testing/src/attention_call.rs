//! Calls of an attention kernel on tensors whose call is legal.

use std::collections::BTreeMap;
use std::mem::MaybeUninit;

use kvcache_attention::{
    AttentionGeometry, AttentionIndices, AttentionKernel, AttentionPointers, AttentionProblem, Keys, Mask,
};
use kvcache_conformance::Tensor;
use kvcache_kernels::{
    Addressing, Geometry, Indices, Kernel, Outputs, Pointers, Problem, Quant, Reference, Serial, Stores, Workers,
};
use kvcache_schema::{CacheAttentionAttributes, CacheDims, CacheLayout, CacheMode, ElementType, QuantBit};

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

/// Makes a call that obeys all rules; gives `attn_output`.
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
    let geometry = geometry(attributes, inputs);
    let query = &inputs["query"];
    let keys = match &mut state.cache {
        None => Keys::Packed {
            pointers: ["key", "value"].map(|name| inputs[name].bytes().as_ptr()),
            indices: AttentionIndices {
                seqstarts: int64s(&inputs["seqstarts"]),
                kvstarts: int64s(&inputs["kvstarts"]),
            },
        },
        Some(cache) => Keys::Cache(stores(attributes, &geometry, inputs, cache, state.scale.as_mut())),
    };
    let mask = inputs.get("attn_mask").filter(|mask| !mask.bytes().is_empty());
    let mut output = Tensor::zeros(query.element(), query.shape().to_vec()).expect("it fits");
    let pointers = AttentionPointers {
        query: query.bytes().as_ptr(),
        attn_mask: mask.map(|mask| Mask {
            data: mask.bytes().as_ptr(),
            width: *mask.shape().last().expect("a mask has columns"),
            per_head: mask.shape().len() == 3,
        }),
    };
    // SAFETY: the call is legal, so the tensors have the shapes of the geometry and the indices obey the rules; every
    // tensor has memory of its own, which lives to the end of this function.
    let mut problem = unsafe { AttentionProblem::assume_checked(geometry, keys, pointers) };
    problem.store(&Reference, &Serial);
    let bytes = output.bytes_mut();
    // SAFETY: a `MaybeUninit<u8>` has the size and alignment of a byte, and a kernel writes values of T1 there.
    let attn_output = unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len()) };
    kernel.attend(&problem, attn_output, mass, workers);
    output
}

/// What `KeyValueCache` gives of all tokens of a call that has been made: `key` and `value`.
pub fn load(attributes: &CacheAttentionAttributes, inputs: &Inputs, state: &mut State) -> [Tensor; 2] {
    let geometry = geometry(attributes, inputs);
    let rows = *int64s(&inputs["kvstarts"]).last().expect("starts have an end") as usize;
    let shape = vec![rows, geometry.num_kv_heads, geometry.head_dim];
    let mut outputs = [(); 2].map(|()| Tensor::zeros(geometry.t1, shape.clone()).expect("it fits"));
    let cache = state.cache.as_mut().expect("the call has a cache");
    let stores = stores(attributes, &geometry, inputs, cache, state.scale.as_mut());
    let pointers = outputs.each_mut().map(|output| output.bytes_mut().as_mut_ptr());
    // SAFETY: the outputs are new tensors of the shape of a call with `num_repeat` 1.
    let mut problem = unsafe { Problem::assume_checked(stores, Outputs { num_repeat: 1, pointers }) };
    Reference.load(&mut problem, &Serial);
    outputs
}

fn geometry(attributes: &CacheAttentionAttributes, inputs: &Inputs) -> AttentionGeometry {
    let attention = &attributes.attention;
    let batch = int64s(&inputs["seqstarts"]).len() - 1;
    let num_heads = attention.num_heads as usize;
    AttentionGeometry {
        batch,
        num_heads,
        num_kv_heads: match attention.num_kv_heads {
            0 => num_heads,
            heads => heads as usize,
        },
        head_dim: attention.head_dim as usize,
        t1: inputs["query"].element(),
        is_causal: attention.is_causal == 1,
        is_alibi: attention.is_alibi == 1,
        decoding_batches: (int64s(&inputs["decoding_batches"])[0] as usize).min(batch),
    }
}

/// The stores of the call.
fn stores<'a>(
    attributes: &CacheAttentionAttributes,
    attention: &AttentionGeometry,
    inputs: &'a Inputs,
    cache: &'a mut Tensor,
    scale: Option<&'a mut Tensor>,
) -> Stores<'a> {
    let attributes = &attributes.cache;
    let layout = CacheLayout::from_code(attributes.cache_layout).expect("a legal layout");
    let mode = CacheMode::from_code(attributes.cache_mode).expect("a legal mode");
    let strides = |tensor: &Tensor| {
        let shape: [usize; 5] = tensor.shape().try_into().expect("five axes");
        let strides = layout.strides(layout.dims(shape)).expect("it fits");
        (shape.iter().product(), strides)
    };
    let quant = QuantBit::from_codes(attributes.quant_bit, attributes.quant_type).map(|bits| {
        let scale = scale.as_deref().expect("a quantized cache has a scale");
        let (scale_len, strides) = strides(scale);
        Quant { bits, group: attributes.quant_group as usize, t3: scale.element(), scale_len, scale: strides }
    });
    let (cache_len, strides) = strides(cache);
    let geometry = Geometry {
        batch: attention.batch,
        num_heads: attention.num_kv_heads,
        head_dim: attention.head_dim,
        layer_idx: attributes.layer_idx as usize,
        t1: attention.t1,
        t2: cache.element(),
        quant,
        cache_len,
        cache: strides,
    };
    let cachestarts = int64s(&inputs["cachestarts"]);
    let indices = Indices {
        seqstarts: int64s(&inputs["seqstarts"]),
        kvstarts: int64s(&inputs["kvstarts"]),
        start_pos: int64s(&inputs["start_pos"]),
        addressing: match mode {
            CacheMode::Offset => Addressing::Offset { cachestarts },
            CacheMode::Paged => Addressing::Paged {
                cachestarts,
                max_p: inputs["cachestarts"].shape()[1],
                page_size: attributes.page_size as usize,
            },
        },
    };
    let pointers = Pointers {
        current: ["current_key", "current_value"].map(|name| inputs[name].bytes().as_ptr()),
        cache: cache.bytes_mut().as_mut_ptr(),
        scale: scale.map_or(std::ptr::null_mut(), |scale| scale.bytes_mut().as_mut_ptr()),
    };
    // SAFETY: the call is legal; cache and scale are borrowed mutably for 'a.
    unsafe { Stores::assume_checked(geometry, indices, pointers) }
}

/// The shape of a cache, or of its scale, by layout.
pub fn cache_shape(attributes: &CacheAttentionAttributes, max_t: usize, num_heads: usize, inner: usize) -> Vec<usize> {
    let layout = CacheLayout::from_code(attributes.cache.cache_layout).expect("a legal layout");
    layout.shape(CacheDims { max_t, num_layer: attributes.cache.num_layer as usize, num_heads, inner }).to_vec()
}

/// The values of an int64 tensor.
fn int64s(tensor: &Tensor) -> &[i64] {
    assert_eq!(tensor.element(), ElementType::Int64);
    // SAFETY: a Tensor's memory is aligned for its elements, and any eight bytes are an i64.
    let (head, values, tail) = unsafe { tensor.bytes().align_to() };
    assert!(head.is_empty() && tail.is_empty());
    values
}
