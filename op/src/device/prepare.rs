//! The operators' entries for a device: typed inputs, and the kernels that are loaded before the first call.

use cudarc::driver::CudaStream;
use kvcache_attention::cuda::{MAX_HEAD_DIM, MODULES};
use kvcache_kernels::cuda::{Queue, TooLarge, cudarc, module};
use kvcache_schema::ElementType;

use super::device_tensor::{DeviceMut, DeviceRef};
use super::error::Error;
use crate::attention::{AttentionInputs, CacheAttentionInputs, MultiHeadAttention, MultiHeadCacheAttention};
use crate::checked::Checked;
use crate::config::CacheConfig;
use crate::key_value_cache::KeyValueCache;
use crate::operands::{IndexInputs, Inputs, OutputRows, Outputs};
use crate::static_batching::{StaticInputs, StaticKeyValueCache};

/// The inputs of `KeyValueCache` that are only read, for a call on a device.
pub type DeviceInputs<'a> = Inputs<'a, DeviceRef<'a>, OutputRows<'a>>;

/// The index inputs of `KeyValueCache`: three in the device's memory, and three that the host reads.
pub type DeviceIndexInputs<'a> = IndexInputs<'a, DeviceRef<'a>, OutputRows<'a>>;

/// The outputs of `KeyValueCache` in a device's memory.
pub type DeviceOutputs<'a> = Outputs<DeviceMut<'a>>;

/// The inputs of a call of static batching that are only read, for a call on a device.
pub type StaticDeviceInputs<'a> = StaticInputs<'a, DeviceRef<'a>>;

/// The inputs of `MultiHeadAttention` for a call on a device.
pub type DeviceAttentionInputs<'a> = AttentionInputs<'a, DeviceRef<'a>>;

/// The inputs of `MultiHeadCacheAttention` that are only read, for a call on a device. What `stored` says of the rows
/// of `key` holds for the rows that `key` would have.
pub type DeviceCacheAttentionInputs<'a> = CacheAttentionInputs<'a, DeviceRef<'a>, OutputRows<'a>>;

/// T1, T2 and T3.
type Types = (ElementType, ElementType, Option<ElementType>);

impl KeyValueCache {
    /// Checks a call on a device as far as the host can; nothing is launched yet, and no driver is needed.
    /// [`Checked::outputs`] are then known, and [`Checked::launch`] does the work.
    ///
    /// # Errors
    /// Every [`Error`](crate::Error) that concerns the types, shapes and memory of the inputs, `cache` and `scale`, and
    /// the values of `kvstarts`, `max_seqlen` and `max_kvlen`.
    pub fn check_device<'a>(
        &self,
        inputs: DeviceInputs<'a>,
        cache: DeviceMut<'a>,
        scale: Option<DeviceMut<'a>>,
    ) -> Result<Checked<'a>, crate::Error> {
        self.check_operands(&mut inputs.operands(cache, scale))
    }

    /// Loads the kernels for these types into the stream's context, so that the first call takes no longer than others
    /// and can be captured into a CUDA graph. A graph executor does so when it loads a model.
    ///
    /// # Errors
    /// Those of [`check_types`](Self::check_types); what concerns the machine or its driver.
    pub fn prepare_device(
        &self,
        t1: ElementType,
        t2: ElementType,
        t3: Option<ElementType>,
        stream: &CudaStream,
    ) -> Result<(), Error> {
        self.check_types(t1, t1, t2, t3)?;
        prepare(&self.config.cache, (t1, t2, t3), &Queue::new(stream)?)
    }
}

impl StaticKeyValueCache {
    /// Checks a call on a device, as on the host; nothing is launched yet, and no driver is needed. The host knows all
    /// that there is to check, so the status word stays 0.
    ///
    /// # Errors
    /// Every [`Error`](crate::Error) that concerns the inputs, `cache` or `scale`.
    pub fn check_device<'a>(
        &self,
        inputs: StaticDeviceInputs<'a>,
        cache: DeviceMut<'a>,
        scale: Option<DeviceMut<'a>>,
    ) -> Result<Checked<'a>, crate::Error> {
        self.check_operands(&mut inputs.operands(cache, scale))
    }

    /// Loads the kernels: [`KeyValueCache::prepare_device`].
    ///
    /// # Errors
    /// Those of [`check_types`](Self::check_types); what concerns the machine or its driver.
    pub fn prepare_device(
        &self,
        t1: ElementType,
        t2: ElementType,
        t3: Option<ElementType>,
        stream: &CudaStream,
    ) -> Result<(), Error> {
        self.check_types(t1, t1, t2, t3)?;
        prepare(&self.config.cache, (t1, t2, t3), &Queue::new(stream)?)
    }
}

impl MultiHeadAttention {
    /// Checks a call on a device as far as the host can; nothing is launched yet, and no driver is needed. A graph of
    /// CUDA that is replayed with shorter batches comes from [`Operator::check`](crate::Operator::check) of operands
    /// [`with_rows_at_most`](crate::Operands::with_rows_at_most).
    ///
    /// # Errors
    /// Every [`Error`](crate::Error) that concerns the types, shapes and memory of the inputs, and the values of
    /// `decoding_batches`, `max_seqlen` and `max_kvlen`.
    pub fn check_device<'a>(&self, inputs: DeviceAttentionInputs<'a>) -> Result<Checked<'a>, crate::Error> {
        self.check_operands(&mut inputs.operands())
    }

    /// Loads the kernels: [`KeyValueCache::prepare_device`].
    ///
    /// # Errors
    /// Those of [`check_types`](Self::check_types); what concerns the machine or its driver; heads that are too long.
    pub fn prepare_device(&self, t1: ElementType, stream: &CudaStream) -> Result<(), Error> {
        self.check_types(t1, t1, t1)?;
        prepare_attention((t1, t1, None), self.config.head_dim, &Queue::new(stream)?)
    }
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
    ) -> Result<Checked<'a>, crate::Error> {
        self.check_operands(&mut inputs.operands(cache, scale))
    }

    /// Loads the kernels: [`KeyValueCache::prepare_device`].
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
        let queue = Queue::new(stream)?;
        let quant = self.cache.cache.quant;
        prepare_attention((t1, t2, quant.and(t3)), self.config.head_dim, &queue)?;
        prepare(&self.cache.cache, (t1, t2, t3), &queue)
    }
}

/// Loads the kernels that store and load a cache of these types.
fn prepare(config: &CacheConfig, (t1, t2, t3): Types, queue: &Queue<'_>) -> Result<(), Error> {
    // A scale that is given without quantization is not used.
    Ok(queue.prepare(t1, t2, config.quant.and(t3))?)
}

/// Loads the kernels of attention for a legal combination of types (of packed keys, T1 twice), for heads of this
/// length.
fn prepare_attention(types: Types, head_dim: usize, queue: &Queue<'_>) -> Result<(), Error> {
    if head_dim > MAX_HEAD_DIM {
        return Err(TooLarge { what: "head_dim", got: head_dim, limit: MAX_HEAD_DIM }.into());
    }
    Ok(queue.prepare_module(module(&MODULES, types))?)
}
