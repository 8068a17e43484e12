//! Launching on a stream: the one place that launches kernels.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr;

use cudarc::driver::{CudaStream, result, sys};
use kvcache_schema::ElementType;

use super::context::Current;
use super::device_problem::DeviceProblem;
use super::driver;
use super::error::Error;
use super::launch::{BLOCK, Launch};
use super::loaded::Loaded;
use super::ptx::{self, Module};

/// A caller's stream, made by any library, and the kernels loaded in its context. The context is current on this thread
/// for as long as this lives.
///
/// Nothing here waits for the device. Only the first use of a combination of types in a context allocates, since it
/// loads the kernels; [`prepare`](Self::prepare) does that ahead of time, so that a call can be captured into a CUDA
/// graph.
pub struct Queue<'a> {
    stream: sys::CUstream,
    loaded: &'static Loaded,
    /// Restores the thread's context when the queue is dropped.
    _current: Current,
    lifetime: PhantomData<&'a CudaStream>,
}

impl<'a> Queue<'a> {
    /// A queue for the stream.
    ///
    /// # Errors
    /// Those of [`available`](driver::available), [`Error::Driver`].
    pub fn new(stream: &'a CudaStream) -> Result<Self, Error> {
        driver::available()?;
        // Errors that cudarc could not return where they happened, as when waiting for a slice's earlier use failed.
        stream.context().check_err().map_err(Error::driver("an earlier use of the context"))?;
        Self::with_current(stream.cu_stream(), Current::of_context(stream.context())?)
    }

    /// The same for a stream of any library. A default stream is that of the current context.
    ///
    /// # Errors
    /// Those of [`available`](driver::available), [`Error::NoContext`], [`Error::Driver`].
    ///
    /// # Safety
    /// `stream` is a default stream or one that lives for `'a`.
    pub unsafe fn from_raw(stream: sys::CUstream) -> Result<Self, Error> {
        driver::available()?;
        // SAFETY: the driver has been opened by `available`; the stream is a default one or lives: see `# Safety`.
        Self::with_current(stream, unsafe { Current::of_stream(stream) }?)
    }

    fn with_current(stream: sys::CUstream, current: Current) -> Result<Self, Error> {
        Ok(Self { stream, loaded: Loaded::of(&current)?, _current: current, lifetime: PhantomData })
    }

    /// The multiprocessors of the device, for [`DeviceProblem`].
    pub fn multiprocessors(&self) -> u32 {
        self.loaded.multiprocessors
    }

    /// Loads the kernels for a legal combination of types, unless the context has them.
    ///
    /// # Errors
    /// [`Error::Module`].
    pub fn prepare(&self, t1: ElementType, t2: ElementType, t3: Option<ElementType>) -> Result<(), Error> {
        self.loaded.load(ptx::module(t1, t2, t3))
    }

    /// Launches a call on the stream: its store, then its load.
    ///
    /// # Errors
    /// [`Error::TooLarge`], [`Error::NotPrepared`], [`Error::Module`]: nothing has been launched.
    /// [`Error::Driver`]: the store may have been.
    ///
    /// # Safety
    /// - The types are a legal combination; `head_dim` is a multiple of the group; strides, `max_t` and rows are those
    ///   of tensors that exist.
    /// - While the stream executes the call (for a captured call: each replay), each address is aligned for its type
    ///   and accessible to the device for its tensor's shape: the current tokens, `seqstarts`, `start_pos` and
    ///   `cachestarts` for reads, outputs for writes, cache and scale for reads and writes, and the status word for
    ///   atomic access to its 8 bytes. Outputs, cache and scale overlap nothing else.
    /// - During that time nothing else writes what the call reads or accesses what it writes.
    ///
    /// Of two current tokens with the same slot, the bytes of either may remain.
    pub unsafe fn run(&self, problem: &DeviceProblem) -> Result<(), Error> {
        let launches = [problem.store()?, problem.load()?];
        let mut functions = [ptr::null_mut(); 2];
        for (function, launch) in functions.iter_mut().zip(&launches) {
            if let Some(launch) = launch {
                *function = self.function(launch.module, launch.kernel)?;
            }
        }
        for (function, launch) in functions.into_iter().zip(launches) {
            if let Some(launch) = launch {
                // SAFETY: `function` has been looked up above by the launch's module and kernel; the memory is as
                // `launch` asks for: see `# Safety`.
                unsafe { self.launch(function, launch) }?;
            }
        }
        Ok(())
    }

    /// A kernel of a module. Loads the module if it is not, unless the stream is being captured.
    fn function(&self, module: &'static Module, kernel: &'static str) -> Result<sys::CUfunction, Error> {
        if let Some(function) = self.loaded.get(module, kernel) {
            return Ok(function);
        }
        if self.is_captured()? {
            return Err(Error::NotPrepared { types: module.types });
        }
        self.loaded.load(module)?;
        self.loaded
            .get(module, kernel)
            .ok_or_else(|| Error::Module { types: module.types, reason: format!("there is no kernel {kernel}") })
    }

    /// Whether the stream is being captured into a graph.
    fn is_captured(&self) -> Result<bool, Error> {
        // SAFETY: the stream is a default one or lives for `'a`: see `new` and `from_raw`.
        let status = unsafe { result::stream::is_capturing(self.stream) };
        let status = status.map_err(Error::driver("finding out whether the stream is captured"))?;
        Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    /// Launches one kernel.
    ///
    /// # Safety
    /// `function` is the kernel that the launch names, of this queue's context; the rest is as for [`run`](Self::run).
    unsafe fn launch(&self, function: sys::CUfunction, mut launch: Launch) -> Result<(), Error> {
        // The driver copies the parameters before it returns.
        let mut parameters = [ptr::from_mut(&mut launch.parameters).cast::<c_void>()];
        // SAFETY: the kernel has one parameter, a `Parameters` by value, is compiled for `BLOCK` threads and uses no
        // dynamic shared memory; the addresses in it are accessible as in `# Safety` of `run`.
        unsafe { result::launch_kernel(function, (launch.grid, 1, 1), (BLOCK, 1, 1), 0, self.stream, &mut parameters) }
            .map_err(Error::driver("launching a kernel"))
    }
}
