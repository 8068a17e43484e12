//! A checked call on a device, waiting for its outputs and a stream.

use kvcache_kernels::{DeviceProblem, DeviceStores, Geometry, Pages};
use kvcache_schema::OUTPUTS;

use super::device_tensor::{DeviceMut, DeviceRef};
use super::device_trait::Device;
use super::error::Error;
use crate::operands::{IndexInputs, Inputs};
use crate::tensor::TensorRef;
use crate::validate::{ExpectedOutputs, Extents};

/// The inputs of `KeyValueCache` that are only read, for a call on a device.
pub type DeviceInputs<'a, D> = Inputs<'a, DeviceRef<'a, D>, OutputRows<'a>>;

/// Its index inputs: three in the device's memory, and three that the host reads.
pub type DeviceIndexInputs<'a, D> = IndexInputs<'a, DeviceRef<'a, D>, OutputRows<'a>>;

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

impl<'a> From<TensorRef<'a>> for OutputRows<'a> {
    fn from(kvstarts: TensorRef<'a>) -> Self {
        Self::Kvstarts(kvstarts)
    }
}

/// The operator's outputs in a device's memory.
#[derive(Debug)]
pub struct DeviceOutputs<'a, D: Device> {
    /// T1, shape (`kvstarts[B]`, H * `num_repeat`, Dh).
    pub key: DeviceMut<'a, D>,
    /// T1, shape (`kvstarts[B]`, H * `num_repeat`, Dh).
    pub value: DeviceMut<'a, D>,
}

/// A call whose tensors have been checked as far as the host knows them, and which has launched nothing yet. Its outputs
/// have `RANK` axes: three, or in static batching four.
#[derive(Debug)]
pub struct DeviceCall<'a, D: Device, const RANK: usize = 3> {
    pub(crate) checked: CheckedDeviceStores<'a, D>,
    pub(crate) outputs: ExpectedOutputs<RANK>,
}

/// The stores of a call, checked as far as the host knows them.
#[derive(Debug)]
pub(crate) struct CheckedDeviceStores<'a, D: Device> {
    pub(crate) geometry: Geometry,
    pub(crate) max_t: usize,
    pub(crate) pages: Pages,
    pub(crate) current_rows: usize,
    pub(crate) all_rows: usize,
    pub(crate) exact_rows: bool,
    pub(crate) extents: Extents,
    /// `current_key` and `current_value`.
    pub(crate) current: [DeviceRef<'a, D>; 2],
    /// None in static batching.
    pub(crate) indices: Option<DeviceIndices<'a, D>>,
    pub(crate) cache: DeviceMut<'a, D>,
    pub(crate) scale: Option<DeviceMut<'a, D>>,
}

/// The index inputs that the device reads.
#[derive(Debug)]
pub(crate) struct DeviceIndices<'a, D: Device> {
    pub(crate) seqstarts: DeviceRef<'a, D>,
    pub(crate) cachestarts: DeviceRef<'a, D>,
    pub(crate) start_pos: DeviceRef<'a, D>,
}

impl<'a, D: Device, const RANK: usize> DeviceCall<'a, D, RANK> {
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
    pub fn launch(
        self,
        outputs: DeviceOutputs<'_, D>,
        status: &D::StatusWord,
        stream: &D::Stream,
    ) -> Result<(), Error<D>> {
        check_uses(self.checked.uses(), stream)?;
        let DeviceOutputs { key, value } = &outputs;
        check_uses([(OUTPUTS[0], key.usage.as_ref()), (OUTPUTS[1], value.usage.as_ref())], stream)?;
        let status = D::status_address(status, stream).map_err(Error::Launch)?;
        // SAFETY: every slice was made for this stream, checked above, and its use by the stream ends when `self` and
        // `outputs` are dropped, after the launch; other tensors come from `from_raw_parts`, which asks for memory that
        // is valid when the stream runs the call. Calls of the stream may write the status word, by `status_address`.
        unsafe { self.run(&outputs, status, &D::queue(stream).map_err(Error::Launch)?) }
    }

    /// Enqueues the call on a stream of any library. A default stream is that of the current context.
    ///
    /// # Errors
    /// An [`Error`] that concerns `key` or `value`, the machine or its driver.
    ///
    /// # Safety
    /// - `stream` lives, or is a default stream. Slices among the tensors were made for it.
    /// - `status` is the address of 8 aligned bytes, 0 before the first call, that the device can access atomically
    ///   when the stream runs the call. On CUDA, `kvcache_kernels::cuda::Status::from_word` reads what it holds.
    pub unsafe fn launch_raw(
        self,
        outputs: DeviceOutputs<'_, D>,
        status: u64,
        stream: D::RawStream,
    ) -> Result<(), Error<D>> {
        // SAFETY: `stream` lives or is a default stream, slices were made for it, and `status` is such an address: see
        // `# Safety`.
        unsafe { self.run(&outputs, status, &D::raw_queue(stream).map_err(Error::Launch)?) }
    }

    /// Enqueues the call.
    ///
    /// # Safety
    /// Slices among the tensors were made for the queue's stream; the status word is one that
    /// [`launch_raw`](Self::launch_raw) may be given.
    unsafe fn run(
        &self,
        DeviceOutputs { key, value }: &DeviceOutputs<'_, D>,
        status: u64,
        queue: &D::Queue<'_>,
    ) -> Result<(), Error<D>> {
        let Self { checked, outputs: expected } = self;
        expected.check(checked.geometry.t1, checked.extents.clone(), [&key.tensor, &value.tensor])?;
        let (stores, num_repeat) = (checked.stores(status), expected.num_repeat);
        let problem = DeviceProblem { stores, num_repeat, outputs: [key.address(), value.address()] };
        // SAFETY: `check_device` and `expected.check` above have checked types, shapes, alignment and overlap; each
        // tensor's memory is accessible to the device when the stream runs the call, as `DeviceRef` and `DeviceMut` ask
        // for, and so is the status word: see `# Safety`.
        unsafe { D::run(queue, &problem) }.map_err(Error::Launch)
    }
}

/// The uses of slices by a call, with the tensors' names.
pub(super) type Uses<'b, 'a, D, const N: usize> = [(&'static str, Option<&'b <D as Device>::Usage<'a>>); N];

/// Checks that a call on `stream` may use its slices.
pub(super) fn check_uses<D: Device, const N: usize>(
    uses: Uses<'_, '_, D, N>,
    stream: &D::Stream,
) -> Result<(), Error<D>> {
    uses.into_iter().try_for_each(|(input, usage)| match usage {
        Some(usage) => D::check_usage(usage, input, stream),
        None => Ok(()),
    })
}

impl<'a, D: Device> CheckedDeviceStores<'a, D> {
    /// The stores, which report what they find at this address of the device.
    pub(crate) fn stores(&self, status: u64) -> DeviceStores {
        let [seqstarts, start_pos, cachestarts] = self.indices.as_ref().map_or([0; 3], |indices| {
            [&indices.seqstarts, &indices.start_pos, &indices.cachestarts].map(DeviceRef::address)
        });
        DeviceStores {
            geometry: self.geometry,
            max_t: self.max_t,
            pages: self.pages,
            current_rows: self.current_rows,
            all_rows: self.all_rows,
            exact_rows: self.exact_rows,
            current: self.current.each_ref().map(DeviceRef::address),
            cache: self.cache.address(),
            scale: self.scale.as_ref().map_or(0, DeviceMut::address),
            seqstarts,
            start_pos,
            cachestarts,
            status,
        }
    }

    /// The uses of slices, with the tensors' names.
    pub(super) fn uses(&self) -> Uses<'_, 'a, D, 7> {
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
