//! Puts kernels into a stream: the one place that launches.

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

/// A stream of the caller's, made by whatever library, and the kernels of its context, which is current as long as this
/// lives.
///
/// Nothing here waits for the device, and nothing allocates but the first use of a combination of types in a context, which
/// loads its kernels; [`prepare`](Self::prepare) does that ahead. So a prepared call can be captured into a CUDA graph.
pub struct Queue<'a> {
    stream: sys::CUstream,
    loaded: &'static Loaded,
    /// Restores the thread's context when the queue is dropped.
    _current: Current,
    lifetime: PhantomData<&'a CudaStream>,
}

impl<'a> Queue<'a> {
    /// The kernels of the stream's context, ready to be put into the stream.
    ///
    /// # Errors
    /// Those of [`available`](driver::available), [`Error::Driver`].
    pub fn new(stream: &'a CudaStream) -> Result<Self, Error> {
        driver::available()?;
        // What cudarc could not tell when it happened: a wait for a slice's earlier use that failed, say.
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
        // SAFETY: the driver is there; the caller promises that the stream lives.
        Self::with_current(stream, unsafe { Current::of_stream(stream) }?)
    }

    fn with_current(stream: sys::CUstream, current: Current) -> Result<Self, Error> {
        Ok(Self { stream, loaded: Loaded::of(&current)?, _current: current, lifetime: PhantomData })
    }

    /// The multiprocessors of the device, for [`DeviceProblem`].
    pub fn multiprocessors(&self) -> u32 {
        self.loaded.multiprocessors
    }

    /// Loads the kernels for a legal combination of types, if the context has not done so.
    ///
    /// # Errors
    /// [`Error::Module`].
    pub fn prepare(&self, t1: ElementType, t2: ElementType, t3: Option<ElementType>) -> Result<(), Error> {
        self.loaded.load(ptx::module(t1, t2, t3))
    }

    /// Puts a call into the stream: first its store, then its load.
    ///
    /// # Errors
    /// [`Error::TooLarge`], [`Error::NotPrepared`], [`Error::Module`]: nothing has been put into the stream.
    /// [`Error::Driver`]: the store may have been.
    ///
    /// # Safety
    /// - The types are a legal combination; `head_dim` is a multiple of the group; strides, `max_t` and rows are those of
    ///   tensors that exist.
    /// - When the stream comes to the call, and until it is through with it (for a captured call: at each replay), each
    ///   address is aligned for its type and accessible to the device for its tensor's shape: the current tokens,
    ///   `seqstarts`, `start_pos` and `cachestarts` for reads, outputs for writes, cache and scale for reads and writes,
    ///   and the status word for atomic access to its 8 bytes. Outputs, cache and scale overlap nothing else.
    /// - Meanwhile nothing else writes what the call reads or touches what it writes.
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
                // SAFETY: the function is the one that the launch names, and the caller's promises are those it needs.
                unsafe { self.launch(function, launch) }?;
            }
        }
        Ok(())
    }

    /// A kernel of a module, which is loaded now if it can be.
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
        // SAFETY: the stream lives, as promised when the queue was made.
        let status = unsafe { result::stream::is_capturing(self.stream) };
        let status = status.map_err(Error::driver("telling whether the stream is captured"))?;
        Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    /// Puts one kernel into the stream.
    ///
    /// # Safety
    /// `function` is the kernel that the launch names, of this queue's context; the rest is as for [`run`](Self::run).
    unsafe fn launch(&self, function: sys::CUfunction, mut launch: Launch) -> Result<(), Error> {
        // The driver copies the parameters before it returns.
        let mut parameters = [ptr::from_mut(&mut launch.parameters).cast::<c_void>()];
        // SAFETY: the kernel takes this one parameter by value, and is compiled for so many threads and no dynamic shared
        // memory; its addresses are as the caller promises.
        unsafe { result::launch_kernel(function, (launch.grid, 1, 1), (BLOCK, 1, 1), 0, self.stream, &mut parameters) }
            .map_err(Error::driver("launching a kernel"))
    }
}
