//! `KeyValueCache` on a device, and that of static batching: checking a call, and loading the kernels.

use cudarc::driver::CudaStream;
use kvcache_kernels::cuda::{Queue, cudarc};
use kvcache_kernels::{DeviceAddressing, DeviceStores, Pointers};
use kvcache_schema::{CacheMode, ElementType};

use super::device_call::{CheckedDeviceStores, DeviceCall, DeviceInputs, OutputRows};
use super::device_tensor::{DeviceMut, DeviceRef, StreamGuards};
use super::error::Error;
use crate::config::{CacheConfig, Config};
use crate::key_value_cache::KeyValueCache;
use crate::operands::{IndexInputs, Inputs};
use crate::static_batching::{StaticInputs, StaticKeyValueCache};
use crate::validate::checked_stores::dynamic_tensors;
use crate::validate::{CheckedTensors, ExpectedOutputs, indices};

impl KeyValueCache {
    /// Checks a call on a device as far as the host can; nothing is launched yet, and no driver is needed.
    /// [`DeviceCall::output_shape`] is then known, and [`DeviceCall::launch`] does the work.
    ///
    /// # Errors
    /// Every [`Error`](crate::Error) that concerns the types, shapes and memory of the inputs, `cache` and `scale`, and
    /// the values of `kvstarts`, `max_seqlen` and `max_kvlen`.
    pub fn check_device<'a>(
        &self,
        inputs: DeviceInputs<'a>,
        cache: DeviceMut<'a>,
        scale: Option<DeviceMut<'a>>,
    ) -> Result<DeviceCall<'a>, crate::Error> {
        let [current_key, current_value] = [&inputs.current_key, &inputs.current_value].map(|input| &input.tensor);
        let t3 = scale.as_ref().map(|scale| scale.tensor.element);
        self.check_types(current_key.element, current_value.element, cache.tensor.element, t3)?;
        let checked = check_stores(&self.config, inputs, cache, scale)?;
        let outputs =
            ExpectedOutputs::new(&checked.stores.geometry, self.config.cache.num_repeat, checked.stores.all_rows)?;
        let output_shape = [checked.stores.all_rows, outputs.heads, checked.stores.geometry.head_dim];
        Ok(DeviceCall { checked, outputs, output_shape, alike: None })
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
        let current = [&current_key.tensor, &current_value.tensor];
        let scale_tensor = scale.as_ref().map(|scale| &scale.tensor);
        let checked = self.check_tensors(current, &start_pos, &cache.tensor, scale_tensor)?;
        let output_shape @ [batch, kvlen, ..] = checked.output_shape;
        // No more than there are elements in the tensors, whose sizes fit, unless these are empty.
        let [current_rows, all_rows] = [checked.sequences.seqlen, kvlen].map(|len| batch.saturating_mul(len));
        let geometry = &checked.tensors.geometry;
        // An upper bound of the slots' numbers, which the host has checked.
        let max_t = geometry.cache_len.checked_div(geometry.cache.token).unwrap_or(0);
        let rows = [max_t, current_rows, all_rows];
        let guards = StreamGuards::of([
            ("current_key", current_key.guard),
            ("current_value", current_value.guard),
            ("cache", cache.guard),
            ("scale", scale.and_then(|scale| scale.guard)),
        ]);
        let stores = without_indices(&checked.tensors, rows, DeviceAddressing::Offset);
        let checked_stores = CheckedDeviceStores { stores, aliases: checked.tensors.aliases, guards };
        let alike = Some(checked.sequences);
        Ok(DeviceCall { checked: checked_stores, outputs: checked.outputs, output_shape, alike })
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

/// Loads the kernels that store and load a cache of these types.
pub(super) fn prepare(
    config: &CacheConfig,
    (t1, t2, t3): (ElementType, ElementType, Option<ElementType>),
    queue: &Queue<'_>,
) -> Result<(), Error> {
    // A scale that is given without quantization is not used.
    Ok(queue.prepare(t1, t2, config.quant.and(t3))?)
}

/// The check of a call whose types go together, but for its outputs.
pub(super) fn check_stores<'a>(
    config: &Config,
    inputs: DeviceInputs<'a>,
    cache: DeviceMut<'a>,
    scale: Option<DeviceMut<'a>>,
) -> Result<CheckedDeviceStores<'a>, crate::Error> {
    let [current_key, current_value] = [&inputs.current_key, &inputs.current_value].map(|input| &input.tensor);
    let scale_tensor = scale.as_ref().map(|scale| &scale.tensor);
    let (kvstarts, exact_rows) = match &inputs.indices.kvstarts {
        OutputRows::Kvstarts(kvstarts) => (kvstarts, true),
        // No input at all then, so nothing can be wrong with it; its shape is that of `seqstarts`.
        OutputRows::AtMost(_) => (&inputs.indices.seqstarts.tensor, false),
    };
    let index_inputs = IndexInputs {
        seqstarts: inputs.indices.seqstarts.tensor.clone(),
        kvstarts: kvstarts.clone(),
        cachestarts: inputs.indices.cachestarts.tensor.clone(),
        start_pos: inputs.indices.start_pos.tensor.clone(),
        max_seqlen: inputs.indices.max_seqlen.clone(),
        max_kvlen: inputs.indices.max_kvlen.clone(),
    };
    let current = Some([current_key, current_value]);
    let (tensors, dims) =
        dynamic_tensors(config, current_key.element, current, &index_inputs, &cache.tensor, scale_tensor)?;
    let all_rows = match inputs.indices.kvstarts {
        OutputRows::Kvstarts(_) => kvstarts_on_host(config, &index_inputs, dims.max_p)?,
        OutputRows::AtMost(rows) => {
            bounds_on_host(&index_inputs, &[])?;
            rows
        }
    };
    let current_rows = current_key.shape[0];
    let Inputs { current_key, current_value, indices: IndexInputs { seqstarts, cachestarts, start_pos, .. } } = inputs;
    let stores = DeviceStores {
        seqstarts: seqstarts.address(),
        start_pos: start_pos.address(),
        cachestarts: cachestarts.address(),
        exact_rows,
        ..without_indices(
            &tensors,
            [dims.max_t, current_rows, all_rows],
            match config.mode {
                CacheMode::Offset => DeviceAddressing::Offset,
                CacheMode::Paged => DeviceAddressing::Paged { max_p: dims.max_p, page_size: config.page_size },
            },
        )
    };
    let guards = [
        ("current_key", current_key.guard),
        ("current_value", current_value.guard),
        ("seqstarts", seqstarts.guard),
        ("cachestarts", cachestarts.guard),
        ("start_pos", start_pos.guard),
        ("cache", cache.guard),
        ("scale", scale.and_then(|scale| scale.guard)),
    ];
    Ok(CheckedDeviceStores { stores, aliases: tensors.aliases, guards: StreamGuards::of(guards) })
}

/// Checks what the host can know of lengths: `kvstarts`, the bounds, and that rows of the page table are long enough.
/// Gives the rows of `key` and `value`.
fn kvstarts_on_host(config: &Config, inputs: &IndexInputs<'_>, max_p: usize) -> Result<usize, crate::Error> {
    let kvstarts = indices::values(&inputs.kvstarts);
    indices::starts("kvstarts", kvstarts)?;
    bounds_on_host(inputs, kvstarts)?;
    if config.mode == CacheMode::Paged {
        for (b, pair) in kvstarts.windows(2).enumerate() {
            indices::pages(b, (pair[1] - pair[0]) as usize, config.page_size, max_p)?;
        }
    }
    Ok(kvstarts.last().map_or(0, |&total| total as usize))
}

/// Checks `max_seqlen` and `max_kvlen` against the lengths that the host knows: those of `kvstarts`, or none.
fn bounds_on_host(inputs: &IndexInputs<'_>, kvstarts: &[i64]) -> Result<(), crate::Error> {
    indices::bound("max_seqlen", indices::values(&inputs.max_seqlen), &[])?;
    indices::bound("max_kvlen", indices::values(&inputs.max_kvlen), kvstarts)
}

/// The stores of checked tensors, with MaxT and the rows of current tokens and of all; without index inputs.
pub(super) fn without_indices(
    tensors: &CheckedTensors,
    [max_t, current_rows, all_rows]: [usize; 3],
    addressing: DeviceAddressing,
) -> DeviceStores {
    let Pointers { current, cache, scale } = tensors.pointers;
    DeviceStores {
        geometry: tensors.geometry,
        max_t,
        addressing,
        current_rows,
        all_rows,
        exact_rows: true,
        current: current.map(|current| current.addr() as u64),
        cache: cache.addr() as u64,
        scale: scale.addr() as u64,
        seqstarts: 0,
        start_pos: 0,
        cachestarts: 0,
        status: 0,
    }
}
