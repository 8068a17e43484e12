//! Calls on a CUDA device: tensors in its memory, work on a stream, the same rules and the same bits.
//!
//! [`KeyValueCache::check_device`](crate::KeyValueCache::check_device) checks a call,
//! [`Checked::launch`](crate::Checked::launch) puts it into a stream: two kernels, without an allocation and without
//! waiting for the device.
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
//! call.launch(outputs, None, &status, &stream)?;
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
//! Calls of `MultiHeadAttention` and `MultiHeadCacheAttention` are launched with
//! [scratch memory](crate::Checked::scratch_bytes), which calls of one stream can
//! share. The order of sums is the kernels' own, fixed by a token's sequence alone: the CPU gives other bits.
//! Heads have 256 elements at most. A key whose slot is wrong takes no part, and is reported; with a wrong length
//! nothing is written. All of this has run on an interpreter of PTX, never on a GPU.
//!
//! # Streams of other libraries
//! [`DeviceRef::from_raw_parts`], [`DeviceMut::from_raw_parts`] and [`Checked::launch_raw`](crate::Checked::launch_raw)
//! take plain addresses, streams and status words.
//!
//! # CUDA graphs
//! A call can be captured once its kernels are loaded:
//! [`KeyValueCache::prepare_device`](crate::KeyValueCache::prepare_device) before the capture, or an earlier call of
//! the same types. A graph keeps the addresses of the tensors and the number of rows, and reads the lengths at each
//! replay: [`OutputRows::AtMost`] makes room for the largest. The graph must not be replayed after one of the tensors,
//! or the status word, is freed; with cudarc's own slices, capture on a context without event tracking.

mod cache_rows;
mod device_tensor;
mod error;
mod launch;
mod prepare;
mod work;

pub use cache_rows::{CacheRowsError, DeviceCacheRows, Staging};
pub use device_tensor::{DeviceMut, DeviceRef};
pub(crate) use device_tensor::{StreamGuard, StreamGuards};
pub use error::Error;
pub use kvcache_kernels::cuda::{
    Error as LaunchError, Finding, Status, StatusWord, available, cudarc, primary_context,
};
pub use prepare::{
    DeviceAttentionInputs, DeviceCacheAttentionInputs, DeviceIndexInputs, DeviceInputs, DeviceOutputs,
    StaticDeviceInputs,
};
pub(crate) use work::{DeviceWork, alike_stores, attention, stores, without_indices};

pub use crate::operands::OutputRows;
