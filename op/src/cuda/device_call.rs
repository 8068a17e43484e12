//! A checked call on a device, waiting for its outputs and a stream.

use cudarc::driver::{CudaStream, sys};
use kvcache_kernels::cuda::{self, Queue, StatusWord, cudarc};
use kvcache_kernels::{DeviceProblem, DeviceStores, Geometry, Pages};
use kvcache_schema::OUTPUTS;

use super::error::Error;
use super::tensor::{DeviceMut, DeviceRef, Usage};
use crate::inputs::IndexInputs;
use crate::tensor::TensorRef;
use crate::validate::{ExpectedOutputs, Extents};

/// The operator's inputs that are only read, for a call on a device.
#[derive(Debug)]
pub struct DeviceInputs<'a> {
    /// T1, shape (`seqstarts[B]`, H, Dh).
    pub current_key: DeviceRef<'a>,
    /// T1, shape (`seqstarts[B]`, H, Dh).
    pub current_value: DeviceRef<'a>,
    /// The lengths, positions and slots of the sequences.
    pub indices: DeviceIndexInputs<'a>,
}

/// The index inputs of a call on a device: three in its memory, and three that the host reads.
pub type DeviceIndexInputs<'a> = IndexInputs<'a, DeviceRef<'a>, OutputRows<'a>>;

/// What the host knows of `kvstarts`.
#[derive(Debug, Clone)]
pub enum OutputRows<'a> {
    /// The input itself, in memory of the host. The device's lengths must add up to its last entry, and those of
    /// `seqstarts` to the rows of `current_key`; the status word tells if they do not.
    Kvstarts(TensorRef<'a>),
    /// `key` and `value` have so many rows. The device's lengths may add up to less, and those of `seqstarts` to less
    /// than the rows of `current_key`: the remaining rows are left untouched. This is for CUDA graphs that are replayed
    /// with batches of other lengths. (B stays the same; a finished sequence has no tokens: `start_pos` 0 and no
    /// current ones.)
    AtMost(usize),
}

/// The operator's outputs in a device's memory.
#[derive(Debug)]
pub struct DeviceOutputs<'a> {
    /// T1, shape (`kvstarts[B]`, H * `num_repeat`, Dh).
    pub key: DeviceMut<'a>,
    /// T1, shape (`kvstarts[B]`, H * `num_repeat`, Dh).
    pub value: DeviceMut<'a>,
}

/// A call whose tensors have been checked as far as the host knows them, and which has launched nothing yet. Its outputs
/// have `RANK` axes: three, or in static batching four.
#[derive(Debug)]
pub struct DeviceCall<'a, const RANK: usize = 3> {
    pub(crate) checked: CheckedDeviceStores<'a>,
    pub(crate) outputs: ExpectedOutputs<RANK>,
}

/// The stores of a call, checked as far as the host knows them.
#[derive(Debug)]
pub(crate) struct CheckedDeviceStores<'a> {
    pub(crate) geometry: Geometry,
    pub(crate) max_t: usize,
    pub(crate) pages: Pages,
    pub(crate) current_rows: usize,
    pub(crate) all_rows: usize,
    pub(crate) exact_rows: bool,
    pub(crate) extents: Extents,
    /// `current_key` and `current_value`.
    pub(crate) current: [DeviceRef<'a>; 2],
    /// None in static batching.
    pub(crate) indices: Option<DeviceIndices<'a>>,
    pub(crate) cache: DeviceMut<'a>,
    pub(crate) scale: Option<DeviceMut<'a>>,
}

/// The index inputs that the device reads.
#[derive(Debug)]
pub(crate) struct DeviceIndices<'a> {
    pub(crate) seqstarts: DeviceRef<'a>,
    pub(crate) cachestarts: DeviceRef<'a>,
    pub(crate) start_pos: DeviceRef<'a>,
}

impl<'a, const RANK: usize> DeviceCall<'a, RANK> {
    /// The shape of `key` and of `value`: (`kvstarts[B]`, H * `num_repeat`, Dh), in static batching (B, `start_pos` + S,
    /// H * `num_repeat`, Dh).
    pub fn output_shape(&self) -> [usize; RANK] {
        self.outputs.shape
    }

    /// Enqueues the call on the stream that its tensors were made for. Once the stream has run it, its status is in the
    /// status word.
    ///
    /// # Errors
    /// An [`Error`] that concerns `key` or `value`, the stream, the machine or its driver.
    pub fn launch(self, outputs: DeviceOutputs<'a>, status: &StatusWord, stream: &CudaStream) -> Result<(), Error> {
        for (input, usage) in self.uses(&outputs) {
            usage.map_or(Ok(()), |usage| usage.check(input, stream))?;
        }
        if status.context().cu_ctx() != stream.context().cu_ctx() {
            return Err(cuda::Error::OtherContext.into());
        }
        // SAFETY: every slice was made for this stream, checked above, and its use by the stream ends when `self` and
        // `outputs` are dropped, after the launch; other tensors come from `from_raw_parts`, which asks for memory that
        // is valid when the stream runs the call. The status word belongs to this context, checked above, and its
        // `Drop` waits for the context.
        unsafe { self.run(&outputs, status.address(), &Queue::new(stream)?) }
    }

    /// Enqueues the call on a stream of any library. A default stream is that of the current context.
    ///
    /// # Errors
    /// An [`Error`] that concerns `key` or `value`, the machine or its driver.
    ///
    /// # Safety
    /// - `stream` lives, or is a default stream. Slices among the tensors were made for it.
    /// - `status` is the address of 8 aligned bytes, 0 before the first call, that the device can access atomically
    ///   when the stream runs the call. [`Status::from_word`](kvcache_kernels::cuda::Status::from_word) reads what it
    ///   holds.
    pub unsafe fn launch_raw(
        self,
        outputs: DeviceOutputs<'a>,
        status: u64,
        stream: sys::CUstream,
    ) -> Result<(), Error> {
        // SAFETY: `stream` lives or is a default stream, slices were made for it, and `status` is such an address: see
        // `# Safety`.
        unsafe { self.run(&outputs, status, &Queue::from_raw(stream)?) }
    }

    /// Enqueues the call.
    ///
    /// # Safety
    /// Slices among the tensors were made for the queue's stream; the status word is as for
    /// [`launch_raw`](Self::launch_raw).
    unsafe fn run(&self, outputs: &DeviceOutputs<'a>, status: u64, queue: &Queue<'_>) -> Result<(), Error> {
        let Self { checked, outputs: expected } = self;
        let DeviceOutputs { key, value } = outputs;
        expected.check(checked.geometry.t1, checked.extents.clone(), [&key.tensor, &value.tensor])?;
        let operands = DeviceProblem {
            stores: checked.stores(status),
            num_repeat: expected.num_repeat,
            outputs: [key, value].map(|output| output.tensor.data.addr() as u64),
        };
        // SAFETY: `check_device` and `expected.check` above have checked types, shapes, alignment and overlap; each
        // tensor's memory is accessible to the device when the stream runs the call, as `DeviceRef` and `DeviceMut` ask
        // for; `status` is as for `launch_raw`, see `# Safety`.
        Ok(unsafe { queue.run(&operands) }?)
    }

    /// The uses of slices by this call, with the tensors' names.
    fn uses<'b>(
        &'b self,
        outputs: &'b DeviceOutputs<'a>,
    ) -> impl Iterator<Item = (&'static str, Option<&'b Usage<'a>>)> {
        let outputs = [(OUTPUTS[0], outputs.key.usage.as_ref()), (OUTPUTS[1], outputs.value.usage.as_ref())];
        self.checked.uses().into_iter().chain(outputs)
    }
}

impl<'a> CheckedDeviceStores<'a> {
    /// The stores, which report what they find at this address of the device.
    pub(crate) fn stores(&self, status: u64) -> DeviceStores {
        let address = |tensor: &TensorRef<'_>| tensor.data.addr() as u64;
        let address_mut = |tensor: &DeviceMut<'_>| tensor.tensor.data.addr() as u64;
        let [seqstarts, start_pos, cachestarts] = self.indices.as_ref().map_or([0; 3], |indices| {
            [&indices.seqstarts, &indices.start_pos, &indices.cachestarts].map(|input| address(&input.tensor))
        });
        DeviceStores {
            geometry: self.geometry,
            max_t: self.max_t,
            pages: self.pages,
            current_rows: self.current_rows,
            all_rows: self.all_rows,
            exact_rows: self.exact_rows,
            current: self.current.each_ref().map(|current| address(&current.tensor)),
            cache: address_mut(&self.cache),
            scale: self.scale.as_ref().map_or(0, address_mut),
            seqstarts,
            start_pos,
            cachestarts,
            status,
        }
    }

    /// The uses of slices, with the tensors' names.
    pub(crate) fn uses(&self) -> [(&'static str, Option<&Usage<'a>>); 7] {
        let indices = self.indices.as_ref();
        [
            ("current_key", self.current[0].usage.as_ref()),
            ("current_value", self.current[1].usage.as_ref()),
            ("seqstarts", indices.and_then(|indices| indices.seqstarts.usage.as_ref())),
            ("cachestarts", indices.and_then(|indices| indices.cachestarts.usage.as_ref())),
            ("start_pos", indices.and_then(|indices| indices.start_pos.usage.as_ref())),
            ("cache", self.cache.usage.as_ref()),
            ("scale", self.scale.as_ref().and_then(|scale| scale.usage.as_ref())),
        ]
    }
}
