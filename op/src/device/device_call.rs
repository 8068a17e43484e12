//! A checked call on a device, waiting for its outputs and a stream.

use cudarc::driver::{CudaStream, sys};
use kvcache_kernels::cuda::{Error as LaunchError, Queue, StatusWord, cudarc};
use kvcache_kernels::{AlikeSequences, DeviceProblem, DeviceStores};
use kvcache_schema::OUTPUTS;

use super::device_tensor::{DeviceMut, DeviceRef, StreamGuards};
use super::error::Error;
use crate::operands::{IndexInputs, Inputs};
use crate::tensor::TensorRef;
use crate::validate::{AliasCheck, ExpectedOutputs};

/// The inputs of `KeyValueCache` that are only read, for a call on a device.
pub type DeviceInputs<'a> = Inputs<'a, DeviceRef<'a>, OutputRows<'a>>;

/// The index inputs of `KeyValueCache`: three in the device's memory, and three that the host reads.
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

impl<'a> From<TensorRef<'a>> for OutputRows<'a> {
    fn from(kvstarts: TensorRef<'a>) -> Self {
        Self::Kvstarts(kvstarts)
    }
}

/// The operator's outputs in a device's memory.
#[derive(Debug)]
pub struct DeviceOutputs<'a> {
    /// T1, shape (`kvstarts[B]`, H * `num_repeat`, Dh).
    pub key: DeviceMut<'a>,
    /// T1, shape (`kvstarts[B]`, H * `num_repeat`, Dh).
    pub value: DeviceMut<'a>,
}

/// A call whose tensors have been checked as far as the host knows them, and which has launched nothing yet: of outputs
/// of rank 3, or of static batching of rank 4, which launches first what makes its index inputs in memory of the stream.
#[derive(Debug)]
pub struct DeviceCall<'a, const RANK: usize = 3> {
    pub(super) checked: CheckedDeviceStores<'a>,
    pub(super) outputs: ExpectedOutputs,
    pub(super) output_shape: [usize; RANK],
    /// Sequences whose index inputs the launch makes.
    pub(super) alike: Option<AlikeSequences>,
}

/// The stores of a call, checked as far as the host knows them.
#[derive(Debug)]
pub(super) struct CheckedDeviceStores<'a> {
    /// All but the status word.
    pub(super) stores: DeviceStores,
    /// The memory of every tensor checked so far.
    pub(super) aliases: AliasCheck,
    pub(super) guards: StreamGuards<'a>,
}

/// The address on the device of a status word, which must be of the stream's context: its `Drop` waits for the calls of
/// that.
pub(super) fn status_address(status: &StatusWord, stream: &CudaStream) -> Result<u64, LaunchError> {
    let same_context = status.context().cu_ctx() == stream.context().cu_ctx();
    if same_context { Ok(status.address()) } else { Err(LaunchError::OtherContext) }
}

impl<const RANK: usize> DeviceCall<'_, RANK> {
    /// The shape of `key` and of `value`: (`kvstarts[B]`, H * `num_repeat`, Dh), of static batching (B, `start_pos` + S,
    /// H * `num_repeat`, Dh).
    pub fn output_shape(&self) -> [usize; RANK] {
        self.output_shape
    }

    /// Enqueues the call on the stream that its tensors were made for. Once the stream has run it, its status is in the
    /// status word.
    ///
    /// # Errors
    /// An [`Error`] that concerns `key` or `value`, the stream, the machine or its driver.
    pub fn launch(self, outputs: DeviceOutputs<'_>, status: &StatusWord, stream: &CudaStream) -> Result<(), Error> {
        self.checked.guards.check(stream)?;
        outputs.key.check_stream(OUTPUTS[0], stream)?;
        outputs.value.check_stream(OUTPUTS[1], stream)?;
        let status = status_address(status, stream)?;
        // SAFETY: every slice was made for this stream, checked above, and its use by the stream ends when `self` and
        // `outputs` are dropped, after the launch; other tensors come from `from_raw_parts`, which asks for memory that
        // is valid when the stream runs the call. Calls of the stream may write the status word, by `status_address`.
        unsafe { self.run(&outputs, status, &Queue::new(stream)?) }
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
        outputs: DeviceOutputs<'_>,
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
    /// Slices among the tensors were made for the queue's stream; the status word is one that
    /// [`launch_raw`](Self::launch_raw) may be given.
    unsafe fn run(
        &self,
        DeviceOutputs { key, value }: &DeviceOutputs<'_>,
        status: u64,
        queue: &Queue<'_>,
    ) -> Result<(), Error> {
        let Self { checked, outputs: expected, alike, .. } = self;
        expected.check(checked.stores.geometry.t1, checked.aliases.clone(), [&key.tensor, &value.tensor])?;
        let problem = DeviceProblem {
            stores: DeviceStores { status, ..checked.stores },
            num_repeat: expected.num_repeat,
            outputs: [key.address(), value.address()],
        };
        // SAFETY: `check_device` and `expected.check` above have checked types, shapes, alignment and overlap; each
        // tensor's memory is accessible to the device when the stream runs the call, as `DeviceRef` and `DeviceMut` ask
        // for, and so is the status word: see `# Safety`. Alike sequences are those of static batching, whose slots have
        // been checked to be inside the cache.
        unsafe {
            match alike {
                None => queue.run(&problem)?,
                Some(sequences) => queue.run_alike(&problem, *sequences)?,
            }
        }
        Ok(())
    }
}
