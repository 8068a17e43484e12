//! The operator of static batching on a device: checking a call.

use kvcache_kernels::Pages;

use super::device_call::{CheckedDeviceStores, DeviceCall, Uses};
use super::device_tensor::{DeviceMut, DeviceRef};
use super::device_trait::Device;
use super::key_value_cache::without_indices;
use crate::static_batching::{StaticInputs, StaticKeyValueCache, checked_sequences as checks};

/// The inputs of a call of static batching that are only read, for a call on a device.
pub type StaticDeviceInputs<'a, D> = StaticInputs<'a, DeviceRef<'a, D>>;

impl StaticKeyValueCache {
    /// Checks a call on a device, as on the host; nothing is launched yet, and no driver is needed. The host knows all
    /// that there is to check, so the status word stays 0.
    ///
    /// # Errors
    /// Every [`Error`](crate::Error) that concerns the inputs, `cache` or `scale`.
    pub fn check_device<'a, D: Device>(
        &self,
        inputs: StaticDeviceInputs<'a, D>,
        cache: DeviceMut<'a, D>,
        scale: Option<DeviceMut<'a, D>>,
    ) -> Result<DeviceCall<'a, D, 4>, crate::Error> {
        let StaticInputs { current_key, current_value, start_pos } = inputs;
        let scale_tensor = scale.as_ref().map(|scale| &scale.tensor);
        let (t1, t3) = (current_key.tensor.element, scale_tensor.map(|scale| scale.element));
        self.check_types(t1, current_value.tensor.element, cache.tensor.element, t3)?;
        let current = [&current_key.tensor, &current_value.tensor];
        let checked = checks::tensors(self.config(), current, &start_pos, &cache.tensor, scale_tensor)?;
        let max_t = checked.slots();
        // SAFETY: `start_pos` is a `TensorRef` of the host in `StaticInputs`.
        let checked = unsafe { checked.at(&start_pos) }?;
        let checks::Sequences { seqlen, start_pos, stride } = checked.sequences;
        let [batch, kvlen, ..] = checked.outputs.shape;
        // No more than there are elements in the tensors, whose sizes fit, unless these are empty.
        let [current_rows, all_rows] = [seqlen, kvlen].map(|len| batch.saturating_mul(len));
        let rows = [max_t, current_rows, all_rows];
        let uses = [
            ("current_key", current_key.usage),
            ("current_value", current_value.usage),
            ("cache", cache.usage),
            ("scale", scale.and_then(|scale| scale.usage)),
        ];
        let stores = CheckedDeviceStores {
            stores: without_indices(&checked.tensors, rows, Pages::Strided { stride, start_pos }),
            extents: checked.tensors.extents,
            uses: Uses::of(uses),
        };
        Ok(DeviceCall { checked: stores, outputs: checked.outputs })
    }
}
