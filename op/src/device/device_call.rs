//! A checked call on a device, waiting for its outputs and a stream.

use kvcache_kernels::{DeviceProblem, DeviceStores};
use kvcache_schema::OUTPUTS;
use smallvec::SmallVec;

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
    pub(super) checked: CheckedDeviceStores<'a, D>,
    pub(super) outputs: ExpectedOutputs<RANK>,
}

/// The stores of a call, checked as far as the host knows them.
#[derive(Debug)]
pub(super) struct CheckedDeviceStores<'a, D: Device> {
    /// All but the status word.
    pub(super) stores: DeviceStores,
    /// The memory of every tensor checked so far.
    pub(super) extents: Extents,
    pub(super) uses: Uses<'a, D>,
}

/// The slices of the device's own library among a call's tensors, with their names. They are in use until this is
/// dropped.
#[derive(Debug)]
pub(super) struct Uses<'a, D: Device>(SmallVec<[(&'static str, D::Usage<'a>); 9]>);

impl<'a, D: Device> Uses<'a, D> {
    /// The slices of tensors, of which some are in none.
    pub(super) fn of<const N: usize>(tensors: [(&'static str, Option<D::Usage<'a>>); N]) -> Self {
        Self(tensors.into_iter().filter_map(|(name, usage)| Some((name, usage?))).collect())
    }

    pub(super) fn and(mut self, others: Self) -> Self {
        self.0.extend(others.0);
        self
    }

    pub(super) fn check(&self, stream: &D::Stream) -> Result<(), Error<D>> {
        self.0.iter().try_for_each(|(name, usage)| D::check_usage(usage, name, stream))
    }
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
        self.checked.uses.check(stream)?;
        outputs.key.check_use(OUTPUTS[0], stream)?;
        outputs.value.check_use(OUTPUTS[1], stream)?;
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
        expected.check(checked.stores.geometry.t1, checked.extents.clone(), [&key.tensor, &value.tensor])?;
        let problem = DeviceProblem {
            stores: DeviceStores { status, ..checked.stores },
            num_repeat: expected.num_repeat,
            outputs: [key.address(), value.address()],
        };
        // SAFETY: `check_device` and `expected.check` above have checked types, shapes, alignment and overlap; each
        // tensor's memory is accessible to the device when the stream runs the call, as `DeviceRef` and `DeviceMut` ask
        // for, and so is the status word: see `# Safety`.
        unsafe { D::run(queue, &problem) }.map_err(Error::Launch)
    }
}
