//! Calls on a CUDA device: tensors in its memory, work on a stream, the same rules and the same bits.
//!
//! [`KeyValueCache::check_device`](crate::KeyValueCache::check_device) checks a call, [`DeviceCall::launch`] puts it
//! into a stream: two kernels, without an allocation and without waiting for the device.
//!
//! ```no_run
//! use kvcache_op::cuda::{DeviceInputs, DeviceMut, DeviceOutputs, DeviceRef, OutputRows, StatusWord, primary_context};
//! use kvcache_op::{Attributes, IndexInputs, KeyValueCache};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let context = primary_context(0)?; // an error where there is no CUDA
//! let stream = context.default_stream();
//! let status = StatusWord::new(&context)?;
//! let op = KeyValueCache::new(Attributes { num_repeat: 4, ..Attributes::default() })?;
//!
//! let mut cache = stream.alloc_zeros::<f32>(1024 * 2 * 8 * 64)?; // (MaxT, L, 2, H, Dh): cache_layout 0
//! let current = stream.clone_htod(&vec![1f32; 3 * 8 * 64])?; // one sequence of 2 new tokens, one of 1
//! let [seqstarts, cachestarts, start_pos] = [&[0i64, 2, 3][..], &[0, 512], &[0, 10]].map(|x| stream.clone_htod(x));
//! let (seqstarts, cachestarts, start_pos) = (seqstarts?, cachestarts?, start_pos?);
//! let (mut key, mut value) = (stream.alloc_zeros::<f32>(13 * 32 * 64)?, stream.alloc_zeros::<f32>(13 * 32 * 64)?);
//!
//! let inputs = DeviceInputs {
//!     current_key: DeviceRef::new([3, 8, 64], &current, &stream),
//!     current_value: DeviceRef::new([3, 8, 64], &current, &stream),
//!     indices: IndexInputs {
//!         seqstarts: DeviceRef::new([3], &seqstarts, &stream),
//!         cachestarts: DeviceRef::new([2], &cachestarts, &stream),
//!         start_pos: DeviceRef::new([2], &start_pos, &stream),
//!         kvstarts: OutputRows::Kvstarts((&[0, 2, 13]).into()), // these three are read on the host
//!         max_seqlen: (&2).into(),
//!         max_kvlen: (&11).into(),
//!     },
//! };
//! let call = op.check_device(inputs, DeviceMut::new([1024, 1, 2, 8, 64], &mut cache, &stream), None)?;
//! assert_eq!(call.output_shape(), [13, 32, 64]);
//! let outputs = DeviceOutputs {
//!     key: DeviceMut::new([13, 32, 64], &mut key, &stream),
//!     value: DeviceMut::new([13, 32, 64], &mut value, &stream),
//! };
//! call.launch(outputs, &status, &stream)?;
//!
//! stream.synchronize()?; // whenever the caller wants to
//! assert_eq!(status.take(), None);
//! # Ok(())
//! # }
//! ```
//!
//! # What differs from a call on the host
//! The host does not read device memory, since that would be a synchronization. It checks attributes, types, shapes,
//! memory, `kvstarts` and the bounds before anything is launched. The kernels check `seqstarts`, `start_pos` and
//! `cachestarts`, and report what they find through a [`StatusWord`], with the sequence and the token:
//! - Where a length is wrong, the kernel that finds it copies nothing. Both kernels look at `seqstarts` and
//!   `start_pos`.
//! - Where a slot is wrong (a page outside the cache, or past the end of its row of the page table), that token is
//!   skipped: not stored, and its rows of `key` and `value` stay as they were. **All other tokens are stored and
//!   loaded.** This is the one difference: on the host a refused call changes nothing.
//! - Two current tokens with the same slot are not detected. One of the two is stored, or a mixture of both.
//! - `kvstarts` and the sums of `start_pos` and the lengths of `seqstarts` are compared by their last entries only.
//!
//! Whatever values the index inputs have, nothing outside the tensors is read or written.
//!
//! # Attention
//! `MultiHeadAttention::check_device` and `MultiHeadCacheAttention::check_device` give a [`DeviceAttentionCall`]. It is
//! launched with the output and with [scratch memory](DeviceAttentionCall::scratch_bytes), which calls of one stream can
//! share. The order of sums is the kernels' own, fixed by a token's sequence alone: the bits are not those of the CPU.
//! Heads have 256 elements at most. A key whose slot is wrong takes no part, and is reported; with a wrong length
//! nothing is written. No GPU has run these kernels yet: they are proven on the emulated driver.
//!
//! # Streams of other libraries
//! [`DeviceRef::from_raw_parts`], [`DeviceMut::from_raw_parts`] and [`DeviceCall::launch_raw`] take plain addresses,
//! streams and status words.
//!
//! # CUDA graphs
//! A call can be captured once its kernels are loaded:
//! [`KeyValueCache::prepare_device`](crate::KeyValueCache::prepare_device) before the capture, or an earlier call of
//! the same types. A graph keeps the addresses of the tensors and the number of rows, and reads the lengths at each
//! replay: [`OutputRows::AtMost`] makes room for the largest. The graph must not be replayed after one of the tensors,
//! or the status word, is freed; with cudarc's own slices, capture on a context without event tracking.

use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, SyncOnDrop, sys};
use kvcache_attention::DeviceAttention;
use kvcache_attention::cuda::{self as attention_kernels, MAX_HEAD_DIM};
use kvcache_kernels::DeviceProblem;
use kvcache_kernels::cuda::{Queue, TooLarge, module};
use kvcache_schema::ElementType;

use super::{Device, Types};
use crate::tensor::{Element, Shape};

pub use super::OutputRows;
pub use super::cuda_rows::{CacheRowsError, DeviceCacheRows, Staging};
pub use kvcache_kernels::cuda::{
    Error as LaunchError, Finding, Status, StatusWord, available, cudarc, primary_context,
};

/// CUDA: calls go to streams of `cudarc`, or of any library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cuda;

/// A tensor in a CUDA device's memory, to be read.
pub type DeviceRef<'a> = super::DeviceRef<'a, Cuda>;
/// A tensor in a CUDA device's memory, to be written.
pub type DeviceMut<'a> = super::DeviceMut<'a, Cuda>;
/// The inputs of `KeyValueCache` that are only read.
pub type DeviceInputs<'a> = super::DeviceInputs<'a, Cuda>;
/// Its index inputs: three on the device, and three that the host reads.
pub type DeviceIndexInputs<'a> = super::DeviceIndexInputs<'a, Cuda>;
/// Its outputs.
pub type DeviceOutputs<'a> = super::DeviceOutputs<'a, Cuda>;
/// A checked call of it, whose outputs have `RANK` axes.
pub type DeviceCall<'a, const RANK: usize = 3> = super::DeviceCall<'a, Cuda, RANK>;
/// The inputs of `KeyValueCache` of static batching that are only read.
pub type StaticDeviceInputs<'a> = super::StaticDeviceInputs<'a, Cuda>;
/// The inputs of `MultiHeadAttention`.
pub type DeviceAttentionInputs<'a> = super::DeviceAttentionInputs<'a, Cuda>;
/// The inputs of `MultiHeadCacheAttention` that are only read.
pub type DeviceCacheAttentionInputs<'a> = super::DeviceCacheAttentionInputs<'a, Cuda>;
/// A checked call of an attention operator.
pub type DeviceAttentionCall<'a> = super::DeviceAttentionCall<'a, Cuda>;
/// Why a call was not launched.
pub type Error = super::Error<Cuda>;

impl From<LaunchError> for Error {
    fn from(error: LaunchError) -> Self {
        Self::Launch(error)
    }
}

/// The use of a cudarc slice by a stream. Its start has made the stream wait for earlier uses on other streams; it ends
/// when this is dropped, which must be after the call is enqueued.
#[derive(Debug)]
pub struct Usage<'a> {
    stream: &'a CudaStream,
    same_context: bool,
    _end: SyncOnDrop<'a>,
}

// SAFETY: uses and status words are compared with the stream, and both live until their context is done with them;
// scratch memory is allocated and freed in the stream's order.
unsafe impl Device for Cuda {
    type Stream = CudaStream;
    type RawStream = sys::CUstream;
    type StatusWord = StatusWord;
    type Usage<'a> = Usage<'a>;
    type Queue<'a> = Queue<'a>;
    type Error = LaunchError;

    fn error_kind(error: &LaunchError) -> &'static str {
        error.kind()
    }

    fn check_usage(usage: &Usage<'_>, input: &'static str, stream: &CudaStream) -> Result<(), Error> {
        if !usage.same_context {
            return Err(Error::OtherContext { input });
        }
        if usage.stream != stream {
            return Err(Error::OtherStream { input });
        }
        Ok(())
    }

    /// The word's `Drop` waits for its context.
    fn status_address(status: &StatusWord, stream: &CudaStream) -> Result<u64, LaunchError> {
        let same_context = status.context().cu_ctx() == stream.context().cu_ctx();
        if same_context { Ok(status.address()) } else { Err(LaunchError::OtherContext) }
    }

    fn queue(stream: &CudaStream) -> Result<Queue<'_>, LaunchError> {
        Queue::new(stream)
    }

    unsafe fn raw_queue<'a>(stream: sys::CUstream) -> Result<Queue<'a>, LaunchError> {
        // SAFETY: `stream` lives for 'a, or is a default stream: see `# Safety`.
        unsafe { Queue::from_raw(stream) }
    }

    fn prepare(queue: &Queue<'_>, (t1, t2, t3): Types) -> Result<(), LaunchError> {
        queue.prepare(t1, t2, t3)
    }

    fn prepare_attention(queue: &Queue<'_>, types: Types, head_dim: usize) -> Result<(), LaunchError> {
        if head_dim > MAX_HEAD_DIM {
            return Err(TooLarge { what: "head_dim", got: head_dim, limit: MAX_HEAD_DIM }.into());
        }
        queue.prepare_module(module(&attention_kernels::MODULES, types))
    }

    unsafe fn run(queue: &Queue<'_>, problem: &DeviceProblem) -> Result<(), LaunchError> {
        // SAFETY: the conditions are the same: see `# Safety`.
        unsafe { queue.run(problem) }
    }

    fn scratch_bytes(call: &DeviceAttention) -> Result<usize, LaunchError> {
        Ok(call.scratch_bytes()?)
    }

    fn with_scratch<R>(queue: &Queue<'_>, bytes: usize, run: impl FnOnce(u64) -> R) -> Result<R, LaunchError> {
        Ok(run(queue.scratch(bytes)?.address()))
    }

    unsafe fn attend(queue: &Queue<'_>, call: &DeviceAttention) -> Result<(), LaunchError> {
        // SAFETY: the conditions are the same: see `# Safety`.
        unsafe { attention_kernels::run(queue, call) }
    }
}

/// Tensors of slices: what a call on their stream may do, their type, and how a slice is borrowed.
macro_rules! of_slices {
    ($done:literal $tensor:ident, $slice:ident.$device_ptr:ident $(, $mutable:tt)?) => {
        impl<'a> $tensor<'a> {
            #[doc = concat!("A slice as a row-major tensor of this shape, to be ", $done, " by a call on this stream.")]
            pub fn new<T: Element>(
                shape: impl Into<Shape>,
                slice: &'a $($mutable)? impl $slice<T>,
                stream: &'a CudaStream,
            ) -> Self {
                Self::of(T::TYPE, shape.into(), slice, stream)
            }

            /// A tensor from bytes, little-endian: for every type, int4 included, which has `ceil(n / 2)` bytes for n
            /// elements.
            pub fn from_bytes(
                element: ElementType,
                shape: impl Into<Shape>,
                slice: &'a $($mutable)? impl $slice<u8>,
                stream: &'a CudaStream,
            ) -> Self {
                Self::of(element, shape.into(), slice, stream)
            }

            fn of<T>(
                element: ElementType,
                shape: Shape,
                slice: &'a $($mutable)? impl $slice<T>,
                stream: &'a CudaStream,
            ) -> Self {
                let bytes = slice.num_bytes();
                let same_context = slice.stream().context().cu_ctx() == stream.context().cu_ctx();
                let (address, end) = slice.$device_ptr(stream);
                // SAFETY: the slice is borrowed for 'a, mutably if it is written; a call uses it through its stream
                // only, in which every later writer of the slice, or user of one that is written, waits for it.
                unsafe { Self::of_slice(element, shape, (address, bytes), Usage { stream, same_context, _end: end }) }
            }
        }
    };
}

of_slices!("read" DeviceRef, DevicePtr.device_ptr);
of_slices!("written" DeviceMut, DevicePtrMut.device_ptr_mut, mut);
