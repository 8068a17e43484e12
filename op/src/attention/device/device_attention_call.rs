//! A checked call of an attention operator on a device, waiting for its output and a stream.

use kvcache_attention::cuda::run;
use kvcache_attention::{AttentionGeometry, DeviceAttention, DeviceKeys, DeviceMask, DevicePacked};
use kvcache_kernels::cuda::cudarc::driver::{CudaStream, sys};
use kvcache_kernels::cuda::{self, Queue, StatusWord};
use kvcache_schema::multi_head_attention::OUTPUTS;

use crate::cuda::{CheckedDeviceStores, DeviceMut, DeviceRef, Error, Usage};
use crate::validate::{Extents, equal_type, shapes};

/// Where the keys and values of a checked call are.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one in a call, and a box would be an allocation in each")]
pub(super) enum DeviceKeyTensors<'a> {
    /// `key` and `value`, and `kvstarts`.
    Packed { rows: [DeviceRef<'a>; 2], kvstarts: DeviceRef<'a>, seqstarts: DeviceRef<'a>, exact_rows: bool },
    /// In the cache, after these stores.
    Cache(CheckedDeviceStores<'a>),
}

/// A call whose tensors have been checked as far as the host knows them, and which has launched nothing yet.
#[derive(Debug)]
pub struct DeviceAttentionCall<'a> {
    pub(super) geometry: AttentionGeometry,
    pub(super) keys: DeviceKeyTensors<'a>,
    pub(super) query: DeviceRef<'a>,
    /// With its row length, and whether there is a plane for each query head.
    pub(super) attn_mask: Option<(DeviceRef<'a>, usize, bool)>,
    pub(super) max_seqlen: usize,
    /// The memory of every tensor checked so far.
    pub(super) extents: Extents,
}

impl<'a> DeviceAttentionCall<'a> {
    /// The shape of `attn_output`: (`seqstarts[B]`, Hq, Dh).
    pub fn output_shape(&self) -> [usize; 3] {
        [self.query.tensor.shape[0], self.geometry.num_heads, self.geometry.head_dim]
    }

    /// The bytes of scratch memory that [`launch`](Self::launch) needs, for the sums of pieces of long sequences; 0 if
    /// no sequence can be as long as that. It depends on the shapes, on the rows that `kvstarts` gives, and on
    /// `max_seqlen`.
    ///
    /// # Errors
    /// [`LaunchError::TooLarge`](cuda::Error::TooLarge), for heads that are too long, too.
    pub fn scratch_bytes(&self) -> Result<usize, Error> {
        let call = self.problem(0, 0, 0);
        Ok(call.scratch_bytes().map_err(cuda::Error::TooLarge)?)
    }

    /// Enqueues the call on the stream that its tensors were made for. Once the stream has run it, its status is in the
    /// status word. `scratch` is of any type and shape, of [`scratch_bytes`](Self::scratch_bytes) or more, and not
    /// needed where these are 0. It holds nothing from one call to the next: calls of one stream can share it.
    ///
    /// # Errors
    /// An [`Error`] that concerns `attn_output` or `scratch`, the stream, the machine or its driver.
    pub fn launch(
        self,
        attn_output: DeviceMut<'a>,
        scratch: Option<DeviceMut<'a>>,
        status: &StatusWord,
        stream: &CudaStream,
    ) -> Result<(), Error> {
        let own = [
            ("query", self.query.usage.as_ref()),
            ("attn_mask", self.attn_mask.as_ref().and_then(|(mask, ..)| mask.usage.as_ref())),
            (OUTPUTS[0], attn_output.usage.as_ref()),
            ("scratch", scratch.as_ref().and_then(|scratch| scratch.usage.as_ref())),
        ];
        let keys: [(&'static str, Option<&Usage<'a>>); 7] = match &self.keys {
            DeviceKeyTensors::Packed { rows, kvstarts, seqstarts, .. } => [
                ("key", rows[0].usage.as_ref()),
                ("value", rows[1].usage.as_ref()),
                ("kvstarts", kvstarts.usage.as_ref()),
                ("seqstarts", seqstarts.usage.as_ref()),
                ("key", None),
                ("key", None),
                ("key", None),
            ],
            DeviceKeyTensors::Cache(stored) => stored.uses(),
        };
        for (input, usage) in own.into_iter().chain(keys) {
            usage.map_or(Ok(()), |usage| usage.check(input, stream))?;
        }
        if status.context().cu_ctx() != stream.context().cu_ctx() {
            return Err(cuda::Error::OtherContext.into());
        }
        // SAFETY: every slice was made for this stream, checked above, and its use by the stream ends when `self`,
        // `attn_output` and `scratch` are dropped, after the launch; other tensors come from `from_raw_parts`, which
        // asks for memory that is valid when the stream runs the call. The status word belongs to this context, checked
        // above, and its `Drop` waits for the context.
        unsafe { self.run(&attn_output, scratch.as_ref(), status.address(), &Queue::new(stream)?) }
    }

    /// Enqueues the call on a stream of any library. A default stream is that of the current context.
    ///
    /// # Errors
    /// An [`Error`] that concerns `attn_output` or `scratch`, the machine or its driver.
    ///
    /// # Safety
    /// As for [`DeviceCall::launch_raw`](crate::cuda::DeviceCall::launch_raw).
    pub unsafe fn launch_raw(
        self,
        attn_output: DeviceMut<'a>,
        scratch: Option<DeviceMut<'a>>,
        status: u64,
        stream: sys::CUstream,
    ) -> Result<(), Error> {
        // SAFETY: `stream` lives or is a default stream, slices were made for it, and `status` is such an address: see
        // `# Safety`.
        unsafe { self.run(&attn_output, scratch.as_ref(), status, &Queue::from_raw(stream)?) }
    }

    /// As [`launch_raw`](Self::launch_raw), with scratch memory that is allocated here and freed in the stream's order,
    /// which waits for nothing. Not for a stream that is being captured.
    ///
    /// # Errors
    /// An [`Error`] that concerns `attn_output`, the machine or its driver.
    ///
    /// # Safety
    /// As for [`DeviceCall::launch_raw`](crate::cuda::DeviceCall::launch_raw).
    pub unsafe fn launch_raw_alloc(
        self,
        attn_output: DeviceMut<'a>,
        status: u64,
        stream: sys::CUstream,
    ) -> Result<(), Error> {
        // SAFETY: `stream` lives or is a default stream: see `# Safety`.
        let queue = unsafe { Queue::from_raw(stream)? };
        let bytes = self.scratch_bytes()?;
        if bytes == 0 {
            // SAFETY: slices were made for the stream, and `status` is such an address: see `# Safety`.
            return unsafe { self.run(&attn_output, None, status, &queue) };
        }
        let scratch = queue.scratch(bytes)?;
        // SAFETY: the memory has been allocated in the stream's order, of so many bytes, and is freed in that order
        // when `scratch` is dropped, after the launch.
        let tensor =
            unsafe { DeviceMut::from_raw_parts(kvcache_schema::ElementType::Int8, [bytes], scratch.address()) };
        // SAFETY: slices were made for the stream, and `status` is such an address: see `# Safety`.
        unsafe { self.run(&attn_output, Some(&tensor), status, &queue) }
    }

    /// Enqueues the call.
    ///
    /// # Safety
    /// Slices among the tensors were made for the queue's stream; the status word is as for
    /// [`launch_raw`](Self::launch_raw).
    unsafe fn run(
        &self,
        attn_output: &DeviceMut<'a>,
        scratch: Option<&DeviceMut<'_>>,
        status: u64,
        queue: &Queue<'_>,
    ) -> Result<(), Error> {
        let output = &attn_output.tensor;
        equal_type(OUTPUTS[0], output.element, self.geometry.t1)?;
        let reason = "the shape (seqstarts[B], Hq, Dh) of this call";
        shapes::equal(OUTPUTS[0], &output.shape, &self.output_shape(), reason)?;
        let mut extents = self.extents.clone();
        extents.write(OUTPUTS[0], output.into())?;
        let expected = self.scratch_bytes()?;
        let mut scratch_at = 0;
        if expected > 0 {
            let got = scratch.map_or(Ok(0), |scratch| extents.write_bytes("scratch", (&scratch.tensor).into()))?;
            scratch_at = scratch.map_or(0, |scratch| scratch.tensor.data.addr() as u64);
            if got < expected || !scratch_at.is_multiple_of(4) {
                return Err(Error::Scratch { got, expected });
            }
        }
        let call = self.problem(output.data.addr() as u64, scratch_at, status);
        // SAFETY: `check_device` and the checks above have checked types, shapes, alignment and overlap; each tensor's
        // memory is accessible to the device when the stream runs the call, as `DeviceRef` and `DeviceMut` ask for;
        // `status` is as for `launch_raw`, see `# Safety`.
        Ok(unsafe { run(queue, &call) }?)
    }

    fn problem(&self, attn_output: u64, scratch: u64, status: u64) -> DeviceAttention {
        let address = |tensor: &DeviceRef<'_>| tensor.tensor.data.addr() as u64;
        DeviceAttention {
            geometry: self.geometry,
            keys: match &self.keys {
                DeviceKeyTensors::Packed { rows, kvstarts, seqstarts, exact_rows } => {
                    DeviceKeys::Packed(DevicePacked {
                        rows_at: rows.each_ref().map(address),
                        rows: rows[0].tensor.shape[0],
                        seqstarts: address(seqstarts),
                        kvstarts: address(kvstarts),
                        exact_rows: *exact_rows,
                        status,
                    })
                }
                DeviceKeyTensors::Cache(stored) => DeviceKeys::Cache(stored.stores(status)),
            },
            query_rows: self.query.tensor.shape[0],
            max_seqlen: self.max_seqlen,
            query: address(&self.query),
            attn_mask: self.attn_mask.as_ref().map(|(mask, width, per_head)| DeviceMask {
                address: address(mask),
                width: *width,
                per_head: *per_head,
            }),
            attn_output,
            scratch,
        }
    }
}
