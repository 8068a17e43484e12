//! `MultiHeadAttention` and `MultiHeadCacheAttention` on a device: checking a call, and loading the kernels.

use cudarc::driver::CudaStream;
use kvcache_attention::cuda::{MAX_HEAD_DIM, MODULES};
use kvcache_attention::{DeviceAttention, DeviceKeys, DeviceMask, DevicePacked};
use kvcache_kernels::cuda::{Queue, TooLarge, cudarc, module};
use kvcache_schema::ElementType;

use super::device_attention_call::DeviceAttentionCall;
use super::device_call::{CheckedDeviceStores, OutputRows};
use super::device_tensor::{DeviceMut, DeviceRef, StreamGuards};
use super::error::Error;
use super::key_value_cache::{check_stores, prepare};
use crate::attention::queries_and_mask::{self as checks, Attention};
use crate::attention::{CacheAttentionInputs, MultiHeadAttention, MultiHeadCacheAttention};
use crate::tensor::TensorRef;
use crate::validate::indices;

/// The inputs of `MultiHeadAttention` for a call on a device.
#[derive(Debug)]
pub struct DeviceAttentionInputs<'a> {
    /// T1, shape (`seqstarts[B]`, Hq, Dh).
    pub query: DeviceRef<'a>,
    /// T1, shape (`kvstarts[B]`, Hk, Dh).
    pub key: DeviceRef<'a>,
    /// T1, shape (`kvstarts[B]`, Hk, Dh).
    pub value: DeviceRef<'a>,
    /// int64, shape (B + 1).
    pub seqstarts: DeviceRef<'a>,
    /// int64, shape (B + 1).
    pub kvstarts: DeviceRef<'a>,
    /// int64, a scalar or of shape (1), in memory of the host.
    pub decoding_batches: TensorRef<'a>,
    /// int64, a scalar or of shape (1), in memory of the host.
    pub max_seqlen: TensorRef<'a>,
    /// int64, a scalar or of shape (1), in memory of the host.
    pub max_kvlen: TensorRef<'a>,
    /// T1, shape (`seqstarts[B]`, W) or (Hq, `seqstarts[B]`, W), if given; without elements it is as good as none.
    pub attn_mask: Option<DeviceRef<'a>>,
    /// T1, shape (Hq), if given; without elements it is as good as none.
    pub head_sink: Option<DeviceRef<'a>>,
    /// Whether the status word tells if the device's lengths add up to fewer rows than `query` and `key` have. Without,
    /// rows behind them are left untouched: for CUDA graphs that are replayed with batches of other lengths.
    pub exact_rows: bool,
}

impl MultiHeadAttention {
    /// Checks a call on a device as far as the host can; nothing is launched yet, and no driver is needed.
    ///
    /// # Errors
    /// Every [`Error`](crate::Error) that concerns the types, shapes and memory of the inputs, and the values of
    /// `decoding_batches`, `max_seqlen` and `max_kvlen`.
    pub fn check_device<'a>(&self, inputs: DeviceAttentionInputs<'a>) -> Result<DeviceAttentionCall<'a>, crate::Error> {
        let DeviceAttentionInputs { query, key, value, seqstarts, kvstarts, attn_mask, head_sink, .. } = inputs;
        let DeviceAttentionInputs { decoding_batches, max_seqlen, max_kvlen, exact_rows, .. } = inputs;
        let tensors = crate::AttentionInputs {
            query: query.tensor.clone(),
            key: key.tensor.clone(),
            value: value.tensor.clone(),
            seqstarts: seqstarts.tensor.clone(),
            kvstarts: kvstarts.tensor.clone(),
            decoding_batches,
            max_seqlen,
            max_kvlen,
            attn_mask: attn_mask.as_ref().map(|mask| mask.tensor.clone()),
            head_sink: head_sink.as_ref().map(|sinks| sinks.tensor.clone()),
        };
        let checked = self.check_inputs(&tensors, false)?;
        let [query_rows, rows] = [&tensors.query, &tensors.key].map(|tensor| tensor.shape[0]);
        let keys = DevicePacked {
            rows_at: [key.address(), value.address()],
            rows,
            seqstarts: seqstarts.address(),
            kvstarts: kvstarts.address(),
            exact_rows,
            status: 0,
        };
        let (attention, sinks) = (checked.attention, checked.head_sink);
        let bounds = [&tensors.max_seqlen, &tensors.max_kvlen].map(bound);
        let guards = [
            ("query", query.guard),
            ("attn_mask", attention.attn_mask.and(attn_mask).and_then(|mask| mask.guard)),
            ("head_sink", sinks.and(head_sink).and_then(|sinks| sinks.guard)),
            ("key", key.guard),
            ("value", value.guard),
            ("kvstarts", kvstarts.guard),
            ("seqstarts", seqstarts.guard),
        ];
        Ok(DeviceAttentionCall {
            call: call(attention, sinks, DeviceKeys::Packed(keys), query_rows, &tensors.query, bounds),
            aliases: checked.aliases,
            guards: StreamGuards::of(guards),
        })
    }

    /// Loads the kernels for this type into the stream's context, so that the first call takes no longer than others
    /// and can be captured into a CUDA graph. A graph executor does so when it loads a model.
    ///
    /// # Errors
    /// Those of [`check_types`](Self::check_types); what concerns the machine or its driver; heads that are too long.
    pub fn prepare_device(&self, t1: ElementType, stream: &CudaStream) -> Result<(), Error> {
        self.check_types(t1, t1, t1)?;
        prepare_attention((t1, t1, None), self.config.head_dim, &Queue::new(stream)?)
    }
}

/// The inputs of `MultiHeadCacheAttention` that are only read, for a call on a device. What `stored` says of the rows of
/// `key` holds for the rows that `key` would have.
pub type DeviceCacheAttentionInputs<'a> = CacheAttentionInputs<'a, DeviceRef<'a>, OutputRows<'a>>;

impl MultiHeadCacheAttention {
    /// Checks a call on a device as far as the host can; nothing is launched yet, and no driver is needed.
    ///
    /// # Errors
    /// Every [`Error`](crate::Error) that concerns the types, shapes and memory of the inputs, `cache` and `scale`, and
    /// the values of `kvstarts`, `decoding_batches`, `max_seqlen` and `max_kvlen`.
    pub fn check_device<'a>(
        &self,
        inputs: DeviceCacheAttentionInputs<'a>,
        cache: DeviceMut<'a>,
        scale: Option<DeviceMut<'a>>,
    ) -> Result<DeviceAttentionCall<'a>, crate::Error> {
        let CacheAttentionInputs { query, stored, decoding_batches, attn_mask, head_sink } = inputs;
        let t1 = stored.current_key.tensor.element;
        let t3 = scale.as_ref().map(|scale| scale.tensor.element);
        let current_value = stored.current_value.tensor.element;
        self.check_types(query.tensor.element, t1, current_value, cache.tensor.element, t3)?;
        checks::query(&self.config, t1, &query.tensor)?;
        let bounds = [&stored.indices.max_seqlen, &stored.indices.max_kvlen].map(TensorRef::clone);
        let current_key = stored.current_key.tensor.shape.clone();
        let CheckedDeviceStores { stores, mut aliases, guards } = check_stores(&self.cache, stored, cache, scale)?;
        let rows @ [query_rows, _] = [stores.current_rows, stores.all_rows];
        checks::current_heads(&self.config, &current_key, query_rows)?;
        let mask = attn_mask.as_ref().map(|mask| &mask.tensor);
        let batch = stores.geometry.batch;
        let decoding_batches = checks::decoding_batches(&decoding_batches, batch, &mut aliases)?;
        let attention = Attention::check(&self.config, (t1, batch), rows, decoding_batches, mask, &mut aliases)?;
        checks::query_rows(&query.tensor, query_rows, &mut aliases)?;
        let sinks = head_sink.as_ref().map(|sinks| &sinks.tensor);
        let sinks = checks::head_sink(&self.config, t1, sinks, &mut aliases)?;
        let call =
            call(attention, sinks, DeviceKeys::Cache(stores), query_rows, &query.tensor, bounds.each_ref().map(bound));
        let own = [
            ("query", query.guard),
            ("attn_mask", attention.attn_mask.and(attn_mask).and_then(|mask| mask.guard)),
            ("head_sink", sinks.and(head_sink).and_then(|sinks| sinks.guard)),
        ];
        Ok(DeviceAttentionCall { call, aliases, guards: StreamGuards::of(own).and(guards) })
    }

    /// Loads the kernels for these types into the stream's context, so that the first call takes no longer than others
    /// and can be captured into a CUDA graph. A graph executor does so when it loads a model.
    ///
    /// # Errors
    /// Those of [`check_types`](Self::check_types); what concerns the machine or its driver; heads that are too long.
    pub fn prepare_device(
        &self,
        t1: ElementType,
        t2: ElementType,
        t3: Option<ElementType>,
        stream: &CudaStream,
    ) -> Result<(), Error> {
        self.check_types(t1, t1, t1, t2, t3)?;
        // A scale that is given without quantization is not used.
        let types = (t1, t2, self.cache.cache.quant.and(t3));
        let queue = Queue::new(stream)?;
        prepare_attention(types, self.config.head_dim, &queue)?;
        prepare(&self.cache.cache, types, &queue)
    }
}

/// Loads the kernels of attention for a legal combination of types (of packed keys, T1 twice), for heads of this length.
pub(super) fn prepare_attention(
    types: (ElementType, ElementType, Option<ElementType>),
    head_dim: usize,
    queue: &Queue<'_>,
) -> Result<(), Error> {
    if head_dim > MAX_HEAD_DIM {
        return Err(TooLarge { what: "head_dim", got: head_dim, limit: MAX_HEAD_DIM }.into());
    }
    Ok(queue.prepare_module(module(&MODULES, types))?)
}

/// A bound, in memory of the host, that has been checked: below 0 it is refused.
fn bound(tensor: &TensorRef<'_>) -> usize {
    usize::try_from(indices::values(tensor)[0]).unwrap_or(0)
}

/// A call of checked tensors, with the bounds of seqlen and kvlen, without output and scratch memory.
fn call(
    Attention { geometry, attn_mask }: Attention,
    head_sink: Option<*const u8>,
    keys: DeviceKeys,
    query_rows: usize,
    query: &TensorRef<'_>,
    [max_seqlen, max_kvlen]: [usize; 2],
) -> DeviceAttention {
    let on_device = |mask: kvcache_attention::Mask| DeviceMask {
        address: mask.data.addr() as u64,
        width: mask.width,
        per_head: mask.per_head,
    };
    DeviceAttention {
        geometry,
        keys,
        query_rows,
        max_seqlen,
        max_kvlen,
        query: query.data.addr() as u64,
        attn_mask: attn_mask.map(on_device),
        head_sink: head_sink.map(|sinks| sinks.addr() as u64),
        attn_output: 0,
        attention_mass: None,
        scratch: 0,
    }
}
