//! The trait of devices: what runs checked calls elsewhere than on the host.

use std::error::Error as StdError;
use std::fmt::Debug;

use kvcache_attention::DeviceAttention;
use kvcache_kernels::DeviceProblem;
use kvcache_schema::ElementType;

use super::error::Error;

/// A device: CUDA is the first, and one file, `device/cuda.rs`. A second one is another implementation beside it.
///
/// The checks of a call are the same on every device. The host knows addresses, shapes and numbers of rows; lengths and
/// slots stay on the device, whose kernels check them and report what they find in a status word.
pub trait Device: Debug + Copy + Eq + 'static {
    /// What calls are put into: a stream of the device's own library.
    type Stream: ?Sized;
    /// A stream of any library.
    type RawStream;
    /// Where the calls of a stream report what they find.
    type StatusWord: ?Sized;
    /// The use of a slice of the device's own library by a stream. It ends when this is dropped, after the launch.
    type Usage<'a>: Debug;
    /// A stream that can be launched on.
    type Queue<'a>;
    /// Why the device cannot run a call.
    type Error: StdError + Clone + Eq + 'static;

    /// A stable name of what is wrong, for programs.
    fn error_kind(error: &Self::Error) -> &'static str;

    /// Checks that a call on `stream` may use the slice called `input`.
    ///
    /// # Errors
    /// [`Error::OtherStream`], [`Error::OtherContext`].
    fn check_usage(usage: &Self::Usage<'_>, input: &'static str, stream: &Self::Stream) -> Result<(), Error<Self>>;

    /// The address on the device of a status word: 8 aligned bytes, which lives until the calls of `stream` are done.
    ///
    /// # Errors
    /// If calls of `stream` cannot write it.
    fn status_address(status: &Self::StatusWord, stream: &Self::Stream) -> Result<u64, Self::Error>;

    /// A queue for the stream.
    ///
    /// # Errors
    /// What is wrong with the device or its driver.
    fn queue(stream: &Self::Stream) -> Result<Self::Queue<'_>, Self::Error>;

    /// A queue for a stream of any library.
    ///
    /// # Errors
    /// What is wrong with the device or its driver.
    ///
    /// # Safety
    /// `stream` is one that lives for `'a`, or a default stream.
    unsafe fn raw_queue<'a>(stream: Self::RawStream) -> Result<Self::Queue<'a>, Self::Error>;

    /// Loads the kernels of `KeyValueCache` for a legal combination of types.
    ///
    /// # Errors
    /// What is wrong with the device or its driver.
    fn prepare(
        queue: &Self::Queue<'_>,
        t1: ElementType,
        t2: ElementType,
        t3: Option<ElementType>,
    ) -> Result<(), Self::Error>;

    /// Loads the kernels of attention over keys of types T2 and T3, for heads of this length.
    ///
    /// # Errors
    /// What is wrong with the device or its driver; heads that are too long.
    fn prepare_attention(
        queue: &Self::Queue<'_>,
        t1: ElementType,
        t2: ElementType,
        t3: Option<ElementType>,
        head_dim: usize,
    ) -> Result<(), Self::Error>;

    /// Puts a call into the queue: its store, then its load.
    ///
    /// # Errors
    /// What is wrong with the device or its driver; dimensions that are too large for it.
    ///
    /// # Safety
    /// - The types are a legal combination; `head_dim` is a multiple of the group; strides, `max_t` and rows are those
    ///   of tensors that exist.
    /// - While the device executes the call (for a captured call: each replay), each address is aligned for its type
    ///   and accessible to the device for its tensor's shape: the current tokens, `seqstarts`, `start_pos` and
    ///   `cachestarts` for reads, outputs for writes, cache and scale for reads and writes, and the status word for
    ///   atomic access to its 8 bytes. Outputs, cache and scale overlap nothing else.
    /// - During that time nothing else writes what the call reads or accesses what it writes.
    unsafe fn run(queue: &Self::Queue<'_>, problem: &DeviceProblem) -> Result<(), Self::Error>;

    /// The bytes of scratch memory that a call of attention needs. Its addresses do not decide it.
    ///
    /// # Errors
    /// Dimensions that are too large for the device.
    fn scratch_bytes(call: &DeviceAttention) -> Result<usize, Self::Error>;

    /// Allocates scratch memory in the queue's order for what `run` puts into it, given the address; it is freed in that
    /// order, too. Nothing waits.
    ///
    /// # Errors
    /// What is wrong with the device or its driver, also for a stream that is being captured.
    fn with_scratch<R>(queue: &Self::Queue<'_>, bytes: usize, run: impl FnOnce(u64) -> R) -> Result<R, Self::Error>;

    /// Puts a call of attention into the queue; over a cache, first its store.
    ///
    /// # Errors
    /// What is wrong with the device or its driver; dimensions that are too large for it.
    ///
    /// # Safety
    /// - `num_kv_heads` divides `num_heads`, and a mask is as wide as there are rows of keys. The stores, if there are
    ///   any, are as [`run`](Self::run) asks for.
    /// - While the device executes the call (for a captured call: each replay), each address is aligned for its type
    ///   and accessible to the device for its tensor's shape: `attn_output` and scratch memory for writes and reads,
    ///   the status word for atomic access to its 8 bytes, the others for reads. `attn_output` and scratch memory
    ///   overlap nothing else.
    /// - During that time nothing else writes what the call reads or accesses what it writes.
    unsafe fn attend(queue: &Self::Queue<'_>, call: &DeviceAttention) -> Result<(), Self::Error>;
}
