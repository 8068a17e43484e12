//! `MultiHeadCacheAttention` on a device.

use cudarc::driver::CudaStream;
use kvcache_attention::{DeviceAttention, DeviceKeys};
use kvcache_kernels::cuda::{Queue, cudarc};
use kvcache_schema::ElementType;

use super::device_attention_call::DeviceAttentionCall;
use super::device_call::{CheckedDeviceStores, OutputRows};
use super::device_tensor::{DeviceMut, DeviceRef, StreamGuards};
use super::error::Error;
use super::key_value_cache::{check_stores, prepare};
use super::multi_head_attention::{host_scalars, on_device, prepare_attention};
use crate::attention::attention_config::AttentionConfig;
use crate::attention::{CacheAttentionInputs, MultiHeadCacheAttention, queries_and_mask as checks};
use crate::validate::shapes;

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
        let CacheAttentionInputs { query, stored, decoding_batches, attn_mask } = inputs;
        let t1 = stored.current_key.tensor.element;
        let t3 = scale.as_ref().map(|scale| scale.tensor.element);
        let current_value = stored.current_value.tensor.element;
        self.check_types(query.tensor.element, t1, current_value, cache.tensor.element, t3)?;
        checks::query(&self.config, t1, &query.tensor)?;
        let max_seqlen = stored.indices.max_seqlen.clone();
        let current_key = stored.current_key.tensor.shape.clone();
        let CheckedDeviceStores { stores, mut extents, guards } = check_stores(&self.cache, stored, cache, scale)?;
        let AttentionConfig { num_kv_heads, head_dim, .. } = self.config;
        let expected = [stores.current_rows, num_kv_heads, head_dim];
        shapes::equal("current_key", &current_key, &expected, "by num_kv_heads and head_dim")?;
        checks::query_rows(&query.tensor, stores.current_rows)?;
        extents.read("query", (&query.tensor).into())?;
        let batch = stores.geometry.batch;
        // SAFETY: `decoding_batches` and `max_seqlen` are `TensorRef`s of the host in the inputs.
        let (decoding_batches, max_seqlen) =
            unsafe { host_scalars(&decoding_batches, &max_seqlen, batch, &mut extents) }?;
        let mask = attn_mask.as_ref().map(|mask| &mask.tensor);
        let mask = checks::mask(&self.config, t1, mask, stores.current_rows, stores.all_rows, &mut extents)?;
        let call = DeviceAttention {
            geometry: checks::geometry(&self.config, t1, batch, decoding_batches),
            keys: DeviceKeys::Cache(stores),
            query_rows: stores.current_rows,
            max_seqlen,
            query: query.address(),
            attn_mask: mask.map(on_device),
            attn_output: 0,
            attention_mass: None,
            scratch: 0,
        };
        let own =
            [("query", query.guard), ("attn_mask", attn_mask.filter(|_| mask.is_some()).and_then(|mask| mask.guard))];
        Ok(DeviceAttentionCall { call, extents, guards: StreamGuards::of(own).and(guards) })
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
