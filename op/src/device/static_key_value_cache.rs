//! The operator of static batching on a device: checking a call.

use cudarc::driver::CudaStream;
use kvcache_kernels::Pages;
use kvcache_kernels::cuda::{Queue, cudarc};
use kvcache_schema::ElementType;

use super::device_call::{CheckedDeviceStores, DeviceCall};
use super::device_tensor::{DeviceMut, DeviceRef, StreamGuards};
use super::error::Error;
use super::key_value_cache::{prepare, without_indices};
use crate::static_batching::{StaticInputs, StaticKeyValueCache, checked_sequences as checks};

/// The inputs of a call of static batching that are only read, for a call on a device.
pub type StaticDeviceInputs<'a> = StaticInputs<'a, DeviceRef<'a>>;

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
    ) -> Result<DeviceCall<'a, 4>, crate::Error> {
        let StaticInputs { current_key, current_value, start_pos } = inputs;
        let scale_tensor = scale.as_ref().map(|scale| &scale.tensor);
        let (t1, t3) = (current_key.tensor.element, scale_tensor.map(|scale| scale.element));
        self.check_types(t1, current_value.tensor.element, cache.tensor.element, t3)?;
        let current = [&current_key.tensor, &current_value.tensor];
        let checked = checks::tensors(&self.config, current, &start_pos, &cache.tensor, scale_tensor)?;
        // SAFETY: `start_pos` is a `TensorRef` of the host in `StaticInputs`.
        let checked = unsafe { checked.at(&start_pos) }?;
        let checks::Sequences { seqlen, start_pos, stride } = checked.sequences;
        let [batch, kvlen, ..] = checked.outputs.shape;
        // No more than there are elements in the tensors, whose sizes fit, unless these are empty.
        let [current_rows, all_rows] = [seqlen, kvlen].map(|len| batch.saturating_mul(len));
        let geometry = &checked.tensors.geometry;
        // An upper bound of the slots' numbers.
        let max_t = geometry.cache_len.checked_div(geometry.cache.token).unwrap_or(0);
        let rows = [max_t, current_rows, all_rows];
        let guards = [
            ("current_key", current_key.guard),
            ("current_value", current_value.guard),
            ("cache", cache.guard),
            ("scale", scale.and_then(|scale| scale.guard)),
        ];
        let stores = CheckedDeviceStores {
            stores: without_indices(&checked.tensors, rows, Pages::Strided { stride, start_pos }),
            extents: checked.tensors.extents,
            guards: StreamGuards::of(guards),
        };
        Ok(DeviceCall { checked: stores, outputs: checked.outputs })
    }

    /// Loads the kernels: [`KeyValueCache::prepare_device`](crate::KeyValueCache::prepare_device).
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
