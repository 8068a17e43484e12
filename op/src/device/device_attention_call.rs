//! A checked call of an attention operator on a device, waiting for its output and a stream.

use kvcache_attention::{AttentionGeometry, DeviceAttention, DeviceKeys, DeviceMask, DevicePacked};
use kvcache_schema::ElementType;
use kvcache_schema::multi_head_attention::OUTPUTS;

use super::device_call::{CheckedDeviceStores, check_uses};
use super::device_tensor::{DeviceMut, DeviceRef};
use super::device_trait::Device;
use super::error::Error;
use crate::validate::{Extents, equal_type, shapes};

/// Where the keys and values of a checked call are.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one in a call, and a box would be an allocation in each")]
pub(super) enum DeviceKeyTensors<'a, D: Device> {
    /// `key` and `value`, and `kvstarts`.
    Packed { rows: [DeviceRef<'a, D>; 2], kvstarts: DeviceRef<'a, D>, seqstarts: DeviceRef<'a, D>, exact_rows: bool },
    /// In the cache, after these stores.
    Cache(CheckedDeviceStores<'a, D>),
}

/// A call whose tensors have been checked as far as the host knows them, and which has launched nothing yet.
#[derive(Debug)]
pub struct DeviceAttentionCall<'a, D: Device> {
    pub(super) geometry: AttentionGeometry,
    pub(super) keys: DeviceKeyTensors<'a, D>,
    pub(super) query: DeviceRef<'a, D>,
    /// With its row length, and whether there is a plane for each query head.
    pub(super) attn_mask: Option<(DeviceRef<'a, D>, usize, bool)>,
    pub(super) max_seqlen: usize,
    /// The memory of every tensor checked so far.
    pub(super) extents: Extents,
}

impl<D: Device> DeviceAttentionCall<'_, D> {
    /// The shape of `attn_output`: (`seqstarts[B]`, Hq, Dh).
    pub fn output_shape(&self) -> [usize; 3] {
        [self.query.tensor.shape[0], self.geometry.num_heads, self.geometry.head_dim]
    }

    /// The bytes of scratch memory that [`launch`](Self::launch) needs, for the sums of pieces of long sequences; 0 if
    /// no sequence can be as long as that. It depends on the shapes, on the rows that `kvstarts` gives, and on
    /// `max_seqlen`.
    ///
    /// # Errors
    /// Dimensions that are too large for the device, as heads that are too long.
    pub fn scratch_bytes(&self) -> Result<usize, Error<D>> {
        D::scratch_bytes(&self.on_device(0, 0, 0)).map_err(Error::Launch)
    }

    /// Enqueues the call on the stream that its tensors were made for. Once the stream has run it, its status is in the
    /// status word. `scratch` is of any type and shape, of [`scratch_bytes`](Self::scratch_bytes) or more, and not
    /// needed where these are 0. It holds nothing from one call to the next: calls of one stream can share it.
    ///
    /// # Errors
    /// An [`Error`] that concerns `attn_output` or `scratch`, the stream, the machine or its driver.
    pub fn launch(
        self,
        attn_output: DeviceMut<'_, D>,
        scratch: Option<DeviceMut<'_, D>>,
        status: &D::StatusWord,
        stream: &D::Stream,
    ) -> Result<(), Error<D>> {
        let mask = self.attn_mask.as_ref().and_then(|(mask, ..)| mask.usage.as_ref());
        check_uses([("query", self.query.usage.as_ref()), ("attn_mask", mask)], stream)?;
        check_uses([(OUTPUTS[0], attn_output.usage.as_ref())], stream)?;
        check_uses([("scratch", scratch.as_ref().and_then(|scratch| scratch.usage.as_ref()))], stream)?;
        match &self.keys {
            DeviceKeyTensors::Packed { rows: [key, value], kvstarts, seqstarts, .. } => {
                let uses = [("key", key), ("value", value), ("kvstarts", kvstarts), ("seqstarts", seqstarts)];
                check_uses(uses.map(|(name, tensor)| (name, tensor.usage.as_ref())), stream)?;
            }
            DeviceKeyTensors::Cache(stores) => check_uses(stores.uses(), stream)?,
        }
        let status = D::status_address(status, stream).map_err(Error::Launch)?;
        // SAFETY: every slice was made for this stream, checked above, and its use by the stream ends when `self`,
        // `attn_output` and `scratch` are dropped, after the launch; other tensors come from `from_raw_parts`, which
        // asks for memory that is valid when the stream runs the call. Calls of the stream may write the status word, by
        // `status_address`.
        unsafe { self.run(&attn_output, scratch.as_ref(), status, &D::queue(stream).map_err(Error::Launch)?) }
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
        attn_output: DeviceMut<'_, D>,
        scratch: Option<DeviceMut<'_, D>>,
        status: u64,
        stream: D::RawStream,
    ) -> Result<(), Error<D>> {
        // SAFETY: `stream` lives or is a default stream, slices were made for it, and `status` is such an address: see
        // `# Safety`.
        unsafe { self.run(&attn_output, scratch.as_ref(), status, &D::raw_queue(stream).map_err(Error::Launch)?) }
    }

    /// Enqueues the call as [`launch_raw`](Self::launch_raw) does, with scratch memory that is allocated here and freed
    /// in the stream's order, which waits for nothing. Not for a stream that is being captured.
    ///
    /// # Errors
    /// An [`Error`] that concerns `attn_output`, the machine or its driver.
    ///
    /// # Safety
    /// The conditions of [`DeviceCall::launch_raw`](super::DeviceCall::launch_raw).
    pub unsafe fn launch_raw_alloc(
        self,
        attn_output: DeviceMut<'_, D>,
        status: u64,
        stream: D::RawStream,
    ) -> Result<(), Error<D>> {
        // SAFETY: `stream` lives or is a default stream: see `# Safety`.
        let queue = unsafe { D::raw_queue(stream) }.map_err(Error::Launch)?;
        let bytes = self.scratch_bytes()?;
        if bytes == 0 {
            // SAFETY: slices were made for the stream, and `status` is such an address: see `# Safety`.
            return unsafe { self.run(&attn_output, None, status, &queue) };
        }
        let run = |address| {
            // SAFETY: the memory has been allocated in the stream's order, of so many bytes, and is freed in that order
            // after this.
            let scratch = unsafe { DeviceMut::from_raw_parts(ElementType::Int8, [bytes], address) };
            // SAFETY: slices were made for the stream, and `status` is such an address: see `# Safety`.
            unsafe { self.run(&attn_output, Some(&scratch), status, &queue) }
        };
        D::with_scratch(&queue, bytes, run).map_err(Error::Launch)?
    }

    /// Enqueues the call.
    ///
    /// # Safety
    /// Slices among the tensors were made for the queue's stream; the status word is one that
    /// [`launch_raw`](Self::launch_raw) may be given.
    unsafe fn run(
        &self,
        attn_output: &DeviceMut<'_, D>,
        scratch: Option<&DeviceMut<'_, D>>,
        status: u64,
        queue: &D::Queue<'_>,
    ) -> Result<(), Error<D>> {
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
            scratch_at = scratch.map_or(0, DeviceMut::address);
            if got < expected || !scratch_at.is_multiple_of(4) {
                return Err(Error::Scratch { got, expected });
            }
        }
        let call = self.on_device(attn_output.address(), scratch_at, status);
        // SAFETY: `check_device` and the checks above have checked types, shapes, alignment and overlap; each tensor's
        // memory is accessible to the device when the stream runs the call, as `DeviceRef` and `DeviceMut` ask for, and
        // so is the status word: see `# Safety`.
        unsafe { D::attend(queue, &call) }.map_err(Error::Launch)
    }

    /// The call with output, scratch memory and status word at these addresses.
    fn on_device(&self, attn_output: u64, scratch: u64, status: u64) -> DeviceAttention {
        DeviceAttention {
            geometry: self.geometry,
            keys: match &self.keys {
                DeviceKeyTensors::Packed { rows, kvstarts, seqstarts, exact_rows } => {
                    DeviceKeys::Packed(DevicePacked {
                        rows_at: rows.each_ref().map(DeviceRef::address),
                        rows: rows[0].tensor.shape[0],
                        seqstarts: seqstarts.address(),
                        kvstarts: kvstarts.address(),
                        exact_rows: *exact_rows,
                        status,
                    })
                }
                DeviceKeyTensors::Cache(stores) => DeviceKeys::Cache(stores.stores(status)),
            },
            query_rows: self.query.tensor.shape[0],
            max_seqlen: self.max_seqlen,
            query: self.query.address(),
            attn_mask: self.attn_mask.as_ref().map(|(mask, width, per_head)| DeviceMask {
                address: mask.address(),
                width: *width,
                per_head: *per_head,
            }),
            attn_output,
            scratch,
        }
    }
}
