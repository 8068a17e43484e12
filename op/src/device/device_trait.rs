//! The trait of devices: what runs checked calls elsewhere than on the host.

use std::error::Error as StdError;
use std::fmt::Debug;

use kvcache_attention::DeviceAttention;
use kvcache_kernels::DeviceProblem;
use kvcache_schema::ElementType;

use super::error::Error;

/// T1, T2 and, with quantization, T3.
pub type Types = (ElementType, ElementType, Option<ElementType>);

/// A device: CUDA is the first, and one file, `device/cuda.rs`. A second one is another implementation beside it.
///
/// The checks of a call are the same on every device. The host knows addresses, shapes and numbers of rows; lengths and
/// slots stay on the device, whose kernels check them and report what they find in a status word.
///
/// # Safety
/// [`check_usage`](Self::check_usage) accepts a use by this stream alone, [`status_address`](Self::status_address) gives
/// a word that calls of this stream may write, and the memory of [`with_scratch`](Self::with_scratch) has as many bytes
/// as asked for until what has been put into the queue is done with it.
pub unsafe trait Device: Debug + Copy + Eq + 'static {
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
    fn prepare(queue: &Self::Queue<'_>, types: Types) -> Result<(), Self::Error>;

    /// Loads the kernels of attention for a legal combination of types (of packed keys, T1 twice), for heads of this
    /// length.
    ///
    /// # Errors
    /// What is wrong with the device or its driver; heads that are too long.
    fn prepare_attention(queue: &Self::Queue<'_>, types: Types, head_dim: usize) -> Result<(), Self::Error>;

    /// Puts a call into the queue: its store, then its load.
    ///
    /// # Errors
    /// What is wrong with the device or its driver; dimensions that are too large for it.
    ///
    /// # Safety
    /// The conditions of [`DeviceProblem`], while the device executes the call (for a captured call: each replay).
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
    /// The conditions of [`DeviceAttention`], while the device executes the call (for a captured call: each replay).
    unsafe fn attend(queue: &Self::Queue<'_>, call: &DeviceAttention) -> Result<(), Self::Error>;
}
