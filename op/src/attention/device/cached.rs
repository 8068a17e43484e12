//! `MultiHeadCacheAttention` on a device.

use kvcache_attention::cuda::module;
use kvcache_kernels::cuda::Queue;
use kvcache_kernels::cuda::cudarc::driver::CudaStream;
use kvcache_schema::ElementType;

use super::device_attention_call::{DeviceAttentionCall, DeviceKeyTensors};
use super::packed::{check_head_dim, host_scalars};
use crate::attention::cached::MultiHeadCacheAttention;
use crate::attention::config::AttentionConfig;
use crate::attention::validate as attention;
use crate::cuda::{DeviceInputs, DeviceMut, DeviceRef, Error, check_stores};
use crate::tensor::TensorRef;
use crate::validate::shapes;

/// The inputs of `MultiHeadCacheAttention` that are only read, for a call on a device.
#[derive(Debug)]
pub struct DeviceCacheAttentionInputs<'a> {
    /// T1, shape (`seqstarts[B]`, Hq, Dh).
    pub query: DeviceRef<'a>,
    /// Those that are `KeyValueCache`'s. What it says of the rows of `key` holds for the rows that `key` would have.
    pub stored: DeviceInputs<'a>,
    /// int64, a scalar or of shape (1), in memory of the host.
    pub decoding_batches: TensorRef<'a>,
    /// T1, shape (`seqstarts[B]`, W) or (Hq, `seqstarts[B]`, W), if given; without elements it is as good as none.
    pub attn_mask: Option<DeviceRef<'a>>,
}

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
        let DeviceCacheAttentionInputs { query, stored, decoding_batches, attn_mask } = inputs;
        let t1 = stored.current_key.tensor.element;
        let t3 = scale.as_ref().map(|scale| scale.tensor.element);
        let current_value = stored.current_value.tensor.element;
        self.check_types(query.tensor.element, t1, current_value, cache.tensor.element, t3)?;
        attention::query(&self.config, t1, &query.tensor)?;
        let max_seqlen = stored.indices.max_seqlen.clone();
        let mut stored = check_stores(&self.cache, stored, cache, scale)?;
        let AttentionConfig { num_kv_heads, head_dim, .. } = self.config;
        let expected = [stored.current_rows, num_kv_heads, head_dim];
        let current_key = &stored.current[0].tensor;
        shapes::equal("current_key", &current_key.shape, &expected, "by num_kv_heads and head_dim")?;
        attention::query_rows(&query.tensor, stored.current_rows)?;
        let mut extents = std::mem::take(&mut stored.extents);
        extents.read("query", (&query.tensor).into())?;
        let batch = stored.geometry.batch;
        // SAFETY: `decoding_batches` and `max_seqlen` are `TensorRef`s of the host in the inputs.
        let (decoding_batches, max_seqlen) =
            unsafe { host_scalars(&decoding_batches, &max_seqlen, batch, &mut extents) }?;
        let mask = attn_mask.as_ref().map(|mask| &mask.tensor);
        let mask = attention::mask(&self.config, t1, mask, stored.current_rows, stored.all_rows, &mut extents)?;
        Ok(DeviceAttentionCall {
            geometry: attention::geometry(&self.config, t1, batch, decoding_batches),
            attn_mask: attn_mask.zip(mask).map(|(tensor, mask)| (tensor, mask.width, mask.per_head)),
            keys: DeviceKeyTensors::Cache(stored),
            query,
            max_seqlen,
            extents,
        })
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
        check_head_dim(&self.config)?;
        // A scale that is given without quantization is not used.
        let t3 = self.cache.cache.quant.and(t3);
        let queue = Queue::new(stream)?;
        queue.prepare(t1, t2, t3)?;
        Ok(queue.prepare_module(module(t1, t2, t3))?)
    }
}
