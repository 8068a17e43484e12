//! The operator on a device: checking a call, and loading its kernels.

use kvcache_kernels::{DeviceStores, Pages, Pointers};
use kvcache_schema::{CacheMode, ElementType};

use super::device_call::{CheckedDeviceStores, DeviceCall, DeviceInputs, OutputRows, Uses};
use super::device_tensor::DeviceMut;
use super::device_trait::Device;
use super::error::Error;
use crate::config::Config;
use crate::key_value_cache::KeyValueCache;
use crate::operands::{IndexInputs, Inputs};
use crate::static_batching::StaticKeyValueCache;
use crate::validate::{self, CheckedTensors, ExpectedOutputs};

impl KeyValueCache {
    /// Checks a call on a device as far as the host can; nothing is launched yet, and no driver is needed.
    /// [`DeviceCall::output_shape`] is then known, and [`DeviceCall::launch`] does the work.
    ///
    /// # Errors
    /// Every [`Error`](crate::Error) that concerns the types, shapes and memory of the inputs, `cache` and `scale`, and
    /// the values of `kvstarts`, `max_seqlen` and `max_kvlen`.
    pub fn check_device<'a, D: Device>(
        &self,
        inputs: DeviceInputs<'a, D>,
        cache: DeviceMut<'a, D>,
        scale: Option<DeviceMut<'a, D>>,
    ) -> Result<DeviceCall<'a, D>, crate::Error> {
        let [current_key, current_value] = [&inputs.current_key, &inputs.current_value].map(|input| &input.tensor);
        let t3 = scale.as_ref().map(|scale| scale.tensor.element);
        self.check_types(current_key.element, current_value.element, cache.tensor.element, t3)?;
        let checked = check_stores(self.config(), inputs, cache, scale)?;
        let outputs =
            ExpectedOutputs::new(&checked.stores.geometry, self.config().cache.num_repeat, checked.stores.all_rows)?;
        Ok(DeviceCall { checked, outputs })
    }
}

/// Loading the kernels of operators that store, which are the same.
macro_rules! prepare_device {
    ($($operator:ty),*) => { $(
        impl $operator {
            /// Loads the kernels for these types into the stream's context, so that the first call takes no longer than others
            /// and can be captured into a CUDA graph. A graph executor does so when it loads a model.
            ///
            /// # Errors
            /// Those of [`check_types`](Self::check_types); what concerns the machine or its driver.
            pub fn prepare_device<D: Device>(
                &self,
                t1: ElementType,
                t2: ElementType,
                t3: Option<ElementType>,
                stream: &D::Stream,
            ) -> Result<(), Error<D>> {
                self.check_types(t1, t1, t2, t3)?;
                // A scale that is given without quantization is not used.
                let types = (t1, t2, self.config().cache.quant.and(t3));
                D::queue(stream).and_then(|queue| D::prepare(&queue, types)).map_err(Error::Launch)
            }
        }
    )* };
}

prepare_device!(KeyValueCache, StaticKeyValueCache);

/// The check of a call whose types go together, but for its outputs.
pub(super) fn check_stores<'a, D: Device>(
    config: &Config,
    inputs: DeviceInputs<'a, D>,
    cache: DeviceMut<'a, D>,
    scale: Option<DeviceMut<'a, D>>,
) -> Result<CheckedDeviceStores<'a, D>, crate::Error> {
    let [current_key, current_value] = [&inputs.current_key, &inputs.current_value].map(|input| &input.tensor);
    let scale_tensor = scale.as_ref().map(|scale| &scale.tensor);
    let (kvstarts, exact_rows) = match &inputs.indices.kvstarts {
        OutputRows::Kvstarts(kvstarts) => (kvstarts, true),
        // No input at all then, so nothing can be wrong with it; its shape is that of `seqstarts`.
        OutputRows::AtMost(_) => (&inputs.indices.seqstarts.tensor, false),
    };
    let indices = IndexInputs {
        seqstarts: inputs.indices.seqstarts.tensor.clone(),
        kvstarts: kvstarts.clone(),
        cachestarts: inputs.indices.cachestarts.tensor.clone(),
        start_pos: inputs.indices.start_pos.tensor.clone(),
        max_seqlen: inputs.indices.max_seqlen.clone(),
        max_kvlen: inputs.indices.max_kvlen.clone(),
    };
    let current = Some([current_key, current_value]);
    let (tensors, dims) =
        validate::dynamic_tensors(config, current_key.element, current, &indices, &cache.tensor, scale_tensor)?;
    let all_rows = match inputs.indices.kvstarts {
        // SAFETY: `kvstarts`, `max_seqlen` and `max_kvlen` are `TensorRef`s of the host in `DeviceInputs`.
        OutputRows::Kvstarts(_) => unsafe { validate::kvstarts_on_host(config, &indices, &dims) }?,
        OutputRows::AtMost(rows) => {
            // SAFETY: `max_seqlen` and `max_kvlen` are `TensorRef`s of the host in `DeviceInputs`.
            unsafe { validate::bounds_on_host(&indices, &[]) }?;
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
            [dims.cache.max_t, current_rows, all_rows],
            match config.mode {
                CacheMode::Offset => Pages::Offset,
                CacheMode::Paged => Pages::Paged { max_p: dims.max_p, page_size: config.page_size },
            },
        )
    };
    let uses = [
        ("current_key", current_key.usage),
        ("current_value", current_value.usage),
        ("seqstarts", seqstarts.usage),
        ("cachestarts", cachestarts.usage),
        ("start_pos", start_pos.usage),
        ("cache", cache.usage),
        ("scale", scale.and_then(|scale| scale.usage)),
    ];
    Ok(CheckedDeviceStores { stores, extents: tensors.extents, uses: Uses::of(uses) })
}

/// The stores of checked tensors, with MaxT and the rows of current tokens and of all; without index inputs.
pub(super) fn without_indices(
    tensors: &CheckedTensors,
    [max_t, current_rows, all_rows]: [usize; 3],
    pages: Pages,
) -> DeviceStores {
    let Pointers { current, cache, scale } = tensors.pointers;
    DeviceStores {
        geometry: tensors.geometry,
        max_t,
        pages,
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
