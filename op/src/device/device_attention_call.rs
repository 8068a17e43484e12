//! A checked call of an attention operator on a device, waiting for its output and a stream.

use cudarc::driver::{CudaStream, sys};
use kvcache_attention::{DeviceAttention, DeviceKeys, cuda as kernels};
use kvcache_kernels::cuda::{Queue, StatusWord, cudarc};
use kvcache_schema::ElementType;
use kvcache_schema::multi_head_attention::{MASS, OUTPUTS};

use super::device_call::status_address;
use super::device_tensor::{DeviceMut, StreamGuards};
use super::error::Error;
use crate::validate::{AliasCheck, equal_type, shapes};

/// A call whose tensors have been checked as far as the host knows them, and which has launched nothing yet.
#[derive(Debug)]
pub struct DeviceAttentionCall<'a> {
    /// All but the output, scratch memory and the status word.
    pub(super) call: DeviceAttention,
    /// The memory of every tensor checked so far.
    pub(super) aliases: AliasCheck,
    pub(super) guards: StreamGuards<'a>,
}

impl<'a> DeviceAttentionCall<'a> {
    /// The shape of `attn_output`: (`seqstarts[B]`, Hq, Dh).
    pub fn output_shape(&self) -> [usize; 3] {
        [self.call.query_rows, self.call.geometry.num_heads, self.call.geometry.head_dim]
    }

    /// The shape of `attention_mass`: (Hq, the rows that `kvstarts` gives).
    pub fn mass_shape(&self) -> [usize; 2] {
        let keys = match &self.call.keys {
            DeviceKeys::Packed(packed) => packed.rows,
            DeviceKeys::Cache(stores) => stores.all_rows,
        };
        [self.call.geometry.num_heads, keys]
    }

    /// The same call, which writes `attention_mass`, too, float32: for each query head and each key the sum of the
    /// probabilities that the queries of its sequence give it, 0 for a key that none sees. Columns behind `kvstarts[B]`
    /// are not written. Scores are computed twice for that.
    ///
    /// # Errors
    /// An [`Error`] that concerns `attention_mass`.
    pub fn with_mass(mut self, attention_mass: DeviceMut<'a>) -> Result<Self, crate::Error> {
        let tensor = &attention_mass.tensor;
        equal_type(MASS, tensor.element, ElementType::Float32)?;
        shapes::equal(MASS, &tensor.shape, &self.mass_shape(), "the shape (Hq, kvstarts[B]) of this call")?;
        self.aliases.write(MASS, tensor.into())?;
        self.call.attention_mass = Some(attention_mass.address());
        self.guards = StreamGuards::of([(MASS, attention_mass.guard)]).and(self.guards);
        Ok(self)
    }

    /// The bytes of scratch memory that [`launch`](Self::launch) needs, for the sums of pieces of long sequences, and for
    /// the mass; 0 if there is none and no sequence can be as long as that. It depends on the shapes, on the rows that
    /// `kvstarts` gives, and on `max_seqlen` and `max_kvlen`.
    ///
    /// # Errors
    /// Dimensions that are too large for the device, as heads that are too long.
    pub fn scratch_bytes(&self) -> Result<usize, Error> {
        Ok(self.call.scratch_bytes()?)
    }

    /// Enqueues the call on the stream that its tensors were made for. Once the stream has run it, its status is in the
    /// status word. `scratch` is of any type and shape, of [`scratch_bytes`](Self::scratch_bytes) or more, and not
    /// needed where these are 0. It holds nothing from one call to the next: calls of one stream can share it.
    ///
    /// # Errors
    /// An [`Error`] that concerns `attn_output` or `scratch`, the stream, the machine or its driver.
    pub fn launch(
        self,
        attn_output: DeviceMut<'_>,
        scratch: Option<DeviceMut<'_>>,
        status: &StatusWord,
        stream: &CudaStream,
    ) -> Result<(), Error> {
        self.guards.check(stream)?;
        attn_output.check_stream(OUTPUTS[0], stream)?;
        scratch.as_ref().map_or(Ok(()), |scratch| scratch.check_stream("scratch", stream))?;
        let status = status_address(status, stream)?;
        // SAFETY: every slice was made for this stream, checked above, and its use by the stream ends when `self`,
        // `attn_output` and `scratch` are dropped, after the launch; other tensors come from `from_raw_parts`, which
        // asks for memory that is valid when the stream runs the call. Calls of the stream may write the status word, by
        // `status_address`.
        unsafe { self.run(&attn_output, scratch.as_ref(), status, &Queue::new(stream)?) }
    }

    /// Enqueues the call on a stream of any library. A default stream is that of the current context.
    ///
    /// # Errors
    /// An [`Error`] that concerns `attn_output` or `scratch`, the machine or its driver.
    ///
    /// # Safety
    /// The conditions of [`DeviceCall::launch_raw`](super::DeviceCall::launch_raw).
    pub unsafe fn launch_raw(
        self,
        attn_output: DeviceMut<'_>,
        scratch: Option<DeviceMut<'_>>,
        status: u64,
        stream: sys::CUstream,
    ) -> Result<(), Error> {
        // SAFETY: `stream` lives or is a default stream, slices were made for it, and `status` is such an address: see
        // `# Safety`.
        unsafe { self.run(&attn_output, scratch.as_ref(), status, &Queue::from_raw(stream)?) }
    }

    /// Enqueues the call as [`launch_raw`](Self::launch_raw) does, with scratch memory that is allocated here and freed
    /// in the stream's order, which waits for nothing: in a capture by nodes of the graph, whose launches do both.
    ///
    /// # Errors
    /// An [`Error`] that concerns `attn_output`, the machine or its driver.
    ///
    /// # Safety
    /// The conditions of [`DeviceCall::launch_raw`](super::DeviceCall::launch_raw).
    pub unsafe fn launch_raw_alloc(
        self,
        attn_output: DeviceMut<'_>,
        status: u64,
        stream: sys::CUstream,
    ) -> Result<(), Error> {
        // SAFETY: `stream` lives or is a default stream: see `# Safety`.
        let queue = unsafe { Queue::from_raw(stream) }?;
        let bytes = self.scratch_bytes()?;
        if bytes == 0 {
            // SAFETY: slices were made for the stream, and `status` is such an address: see `# Safety`.
            return unsafe { self.run(&attn_output, None, status, &queue) };
        }
        let memory = queue.scratch(bytes)?;
        // SAFETY: the memory has been allocated in the stream's order, of so many bytes, and is freed in that order when
        // it is dropped, after the launches.
        let scratch = unsafe { DeviceMut::from_raw_parts(ElementType::Int8, [bytes], memory.address()) };
        // SAFETY: slices were made for the stream, and `status` is such an address: see `# Safety`.
        unsafe { self.run(&attn_output, Some(&scratch), status, &queue) }
    }

    /// Enqueues the call.
    ///
    /// # Safety
    /// Slices among the tensors were made for the queue's stream; the status word is one that
    /// [`launch_raw`](Self::launch_raw) may be given.
    unsafe fn run(
        &self,
        attn_output: &DeviceMut<'_>,
        scratch: Option<&DeviceMut<'_>>,
        status: u64,
        queue: &Queue<'_>,
    ) -> Result<(), Error> {
        let output = &attn_output.tensor;
        equal_type(OUTPUTS[0], output.element, self.call.geometry.t1)?;
        let reason = "the shape (seqstarts[B], Hq, Dh) of this call";
        shapes::equal(OUTPUTS[0], &output.shape, &self.output_shape(), reason)?;
        let mut aliases = self.aliases.clone();
        aliases.write(OUTPUTS[0], output.into())?;
        let expected = self.scratch_bytes()?;
        let mut scratch_at = 0;
        if expected > 0 {
            let got = scratch.map_or(Ok(0), |scratch| aliases.write_bytes("scratch", (&scratch.tensor).into()))?;
            scratch_at = scratch.map_or(0, DeviceMut::address);
            if got < expected || !scratch_at.is_multiple_of(4) {
                return Err(Error::Scratch { got, expected });
            }
        }
        let mut call = DeviceAttention { attn_output: attn_output.address(), scratch: scratch_at, ..self.call };
        match &mut call.keys {
            DeviceKeys::Packed(packed) => packed.status = status,
            DeviceKeys::Cache(stores) => stores.status = status,
        }
        // SAFETY: `check_device` and the checks above have checked types, shapes, alignment and overlap; each tensor's
        // memory is accessible to the device when the stream runs the call, as `DeviceRef` and `DeviceMut` ask for, and
        // so is the status word: see `# Safety`.
        Ok(unsafe { kernels::run(queue, &call) }?)
    }
}
