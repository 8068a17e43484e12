//! Launches a checked call, whose outputs are then known, on a stream.

use cudarc::driver::{CudaStream, sys};
use kvcache_attention::{DeviceAttention, DeviceKeys, cuda as attention};
use kvcache_kernels::cuda::{Error as LaunchError, Queue, StatusWord, cudarc};
use kvcache_kernels::{DeviceProblem, DeviceStores};
use kvcache_schema::ElementType;
use smallvec::SmallVec;

use super::device_tensor::DeviceMut;
use super::error::Error;
use super::work::DeviceWork;
use crate::checked::{Checked, Work};
use crate::operands::Operand;

/// The address on the device of a status word, which must be of the stream's context: its `Drop` waits for the calls of
/// that.
fn status_address(status: &StatusWord, stream: &CudaStream) -> Result<u64, LaunchError> {
    let same_context = status.context().cu_ctx() == stream.context().cu_ctx();
    if same_context { Ok(status.address()) } else { Err(LaunchError::OtherContext) }
}

/// A call on a device: checked as far as the host knows it.
impl Checked<'_> {
    /// The bytes of scratch memory that [`launch`](Self::launch) needs with this number of outputs, for the sums of
    /// pieces of long sequences, and for the mass; 0 if there is none and no sequence can be as long as that. It
    /// depends on the shapes, on the rows that `kvstarts` gives, and on `max_seqlen` and `max_kvlen`.
    ///
    /// # Errors
    /// Dimensions that are too large for the device, as heads that are too long.
    pub fn scratch_bytes(&self, outputs: usize) -> Result<usize, Error> {
        match &self.work {
            // What counts of the mass is that there is one.
            Work::Device(DeviceWork::Attention(call)) => {
                let attention_mass = (outputs > 1).then_some(0);
                Ok(DeviceAttention { attention_mass, ..*call }.scratch_bytes()?)
            }
            _ => Ok(0),
        }
    }

    /// Enqueues the call on the stream that its tensors were made for. Once the stream has run it, its status is in the
    /// status word. `outputs` are in their order; optional ones may be left out at the end, and columns of
    /// `attention_mass` behind `kvstarts[B]` are not written. `scratch` is of any type and shape, of
    /// [`scratch_bytes`](Self::scratch_bytes) or more, and not needed where these are 0. It holds nothing from one call
    /// to the next: calls of one stream can share it.
    ///
    /// # Errors
    /// An [`Error`] that concerns the outputs or `scratch`, the stream, the machine or its driver.
    pub fn launch<'o>(
        self,
        outputs: impl IntoIterator<Item = DeviceMut<'o>>,
        scratch: Option<DeviceMut<'o>>,
        status: &StatusWord,
        stream: &CudaStream,
    ) -> Result<(), Error> {
        self.guards.iter().try_for_each(|(name, guard)| guard.check(name, stream))?;
        let outputs: SmallVec<[DeviceMut<'_>; 2]> = outputs.into_iter().collect();
        let names = self.outputs().iter().map(|output| output.name);
        let written = names.zip(&outputs).chain(scratch.as_ref().map(|scratch| ("scratch", scratch)));
        for (name, tensor) in written {
            tensor.check_stream(name, stream)?;
        }
        let status = status_address(status, stream)?;
        // SAFETY: every slice was made for this stream, checked above, and its use by the stream ends when `self`,
        // `outputs` and `scratch` are dropped, after the launch; other tensors come from `from_raw_parts`, which asks
        // for memory that is valid when the stream runs the call. Calls of the stream may write the status word, by
        // `status_address`.
        unsafe { self.enqueue(outputs, scratch, status, &Queue::new(stream)?) }
    }

    /// Enqueues the call on a stream of any library. A default stream is the current context's.
    ///
    /// # Errors
    /// An [`Error`] that concerns the outputs or `scratch`, the machine or its driver.
    ///
    /// # Safety
    /// - `stream` lives, or is a default stream. Slices among the tensors were made for it.
    /// - `status` is the address of 8 aligned bytes, 0 before the first call, that the device can access atomically
    ///   when the stream runs the call. On CUDA, `kvcache_kernels::cuda::Status::from_word` reads what it holds.
    pub unsafe fn launch_raw<'o>(
        self,
        outputs: impl IntoIterator<Item = DeviceMut<'o>>,
        scratch: Option<DeviceMut<'o>>,
        status: u64,
        stream: sys::CUstream,
    ) -> Result<(), Error> {
        // SAFETY: `stream` lives or is a default stream, slices were made for it, and `status` is such an address: see
        // `# Safety`.
        unsafe { self.enqueue(outputs, scratch, status, &Queue::from_raw(stream)?) }
    }

    /// Enqueues the call as [`launch_raw`](Self::launch_raw) does, with scratch memory that is allocated here and freed
    /// in the stream's order, which waits for nothing: in a capture by nodes of the graph, whose launches do both.
    ///
    /// # Errors
    /// An [`Error`] that concerns the outputs, the machine or its driver.
    ///
    /// # Safety
    /// The conditions of [`launch_raw`](Self::launch_raw).
    pub unsafe fn launch_raw_alloc<'o>(
        self,
        outputs: impl IntoIterator<Item = DeviceMut<'o>>,
        status: u64,
        stream: sys::CUstream,
    ) -> Result<(), Error> {
        // SAFETY: `stream` lives or is a default stream: see `# Safety`.
        let queue = unsafe { Queue::from_raw(stream) }?;
        let outputs: SmallVec<[DeviceMut<'_>; 2]> = outputs.into_iter().collect();
        let bytes = self.scratch_bytes(outputs.len())?;
        if bytes == 0 {
            // SAFETY: slices were made for the stream, and `status` is such an address: see `# Safety`.
            return unsafe { self.enqueue(outputs, None, status, &queue) };
        }
        let memory = queue.scratch(bytes)?;
        // SAFETY: the memory has been allocated in the stream's order, of so many bytes, and is freed in that order
        // when it is dropped, after the launches.
        let scratch = unsafe { DeviceMut::from_raw_parts(ElementType::Int8, [bytes], memory.address()) };
        // SAFETY: slices were made for the stream, and `status` is such an address: see `# Safety`.
        unsafe { self.enqueue(outputs, Some(scratch), status, &queue) }
    }

    /// Enqueues the call.
    ///
    /// # Safety
    /// Slices among the tensors were made for the queue's stream; the status word is one that
    /// [`launch_raw`](Self::launch_raw) may be given.
    unsafe fn enqueue<'o>(
        mut self,
        outputs: impl IntoIterator<Item = DeviceMut<'o>>,
        scratch: Option<DeviceMut<'o>>,
        status: u64,
        queue: &Queue<'_>,
    ) -> Result<(), Error> {
        // Slices are in use until these are dropped.
        let outputs: SmallVec<[Operand<'_>; 2]> = outputs.into_iter().map(Operand::from).collect();
        let scratch = scratch.map(Operand::from);
        let memory = self.bind(&outputs)?;
        let address = |at: usize| memory.get(at).map(|(data, _)| data.addr() as u64);
        let scratch_at = self.scratch_address(outputs.len(), scratch.as_ref())?;
        let Work::Device(work) = &self.work else {
            // Without inputs on a device, none of the outputs has been accepted.
            return Ok(());
        };
        // SAFETY: the check of the call, `bind` and `scratch_address` have found types, shapes, alignment and overlap
        // right; each tensor's memory is accessible to the device when the stream runs the call, as `DeviceRef` and
        // `DeviceMut` ask for, and so is the status word: see `# Safety`. Alike sequences come from static batching,
        // whose slots have been checked to be inside the cache.
        unsafe {
            match *work {
                DeviceWork::Stores { stores, num_repeat, alike } => {
                    let outputs = [0, 1].map(|at| address(at).unwrap_or_default());
                    let stores = DeviceStores { status, ..stores };
                    queue.run(&DeviceProblem { stores, num_repeat, outputs }, alike)?;
                }
                DeviceWork::Attention(call) => {
                    let (attn_output, attention_mass) = (address(0).unwrap_or_default(), address(1));
                    let mut call = DeviceAttention { attn_output, attention_mass, scratch: scratch_at, ..call };
                    match &mut call.keys {
                        DeviceKeys::Packed(packed) => packed.status = status,
                        DeviceKeys::Cache(stores) => stores.status = status,
                    }
                    attention::run(queue, &call)?;
                }
            }
        }
        Ok(())
    }

    /// The address of scratch memory, 0 where none is needed.
    fn scratch_address(&mut self, outputs: usize, scratch: Option<&Operand<'_>>) -> Result<u64, Error> {
        let expected = self.scratch_bytes(outputs)?;
        if expected == 0 {
            return Ok(0);
        }
        let got = scratch.map_or(Ok(0), |scratch| self.check_scratch(scratch))?;
        let address = scratch.map_or(0, Operand::address);
        let fits = got >= expected && address.is_multiple_of(4);
        if fits { Ok(address) } else { Err(Error::Scratch { got, expected }) }
    }
}
