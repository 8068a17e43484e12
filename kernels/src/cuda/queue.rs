//! Launching on a stream: the one place that launches kernels.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr;

use cudarc::driver::{CudaStream, result, sys};
use kvcache_schema::ElementType;

use super::context::{Current, available};
use super::error::Error;
use super::launch::{BLOCK, Launch};
use super::loaded::Loaded;
use super::ptx::{self, Module};
use crate::device_problem::{AlikeSequences, DeviceProblem};

/// A caller's stream, made by any library, and the kernels loaded in its context. The context is current on this thread
/// for as long as this lives.
///
/// Nothing here waits for the device. Only the first use of a combination of types in a context allocates, since it
/// loads the kernels, and the first use of scratch memory, since it makes a pool; [`prepare`](Self::prepare) does both
/// ahead of time, so that a call can be captured into a CUDA graph.
pub struct Queue<'a> {
    stream: sys::CUstream,
    loaded: &'static Loaded,
    /// Restores the thread's context when the queue is dropped.
    current: Current,
    lifetime: PhantomData<&'a CudaStream>,
}

impl<'a> Queue<'a> {
    /// A queue for the stream.
    ///
    /// # Errors
    /// As [`available`]; [`Error::Driver`].
    pub fn new(stream: &'a CudaStream) -> Result<Self, Error> {
        available()?;
        // Errors that cudarc could not return where they happened, as when waiting for a slice's earlier use failed.
        stream.context().check_err().map_err(Error::driver("an earlier use of the context"))?;
        Self::with_current(stream.cu_stream(), Current::of_context(stream.context())?)
    }

    /// A queue on a stream of any library. A default stream is the current context's.
    ///
    /// # Errors
    /// As [`available`]; [`Error::NoContext`], [`Error::Driver`].
    ///
    /// # Safety
    /// `stream` is a default stream or one that lives for `'a`.
    pub unsafe fn from_raw(stream: sys::CUstream) -> Result<Self, Error> {
        available()?;
        // SAFETY: the driver has been opened by `available`; the stream is a default one or lives: see `# Safety`.
        Self::with_current(stream, unsafe { Current::of_stream(stream) }?)
    }

    fn with_current(stream: sys::CUstream, current: Current) -> Result<Self, Error> {
        Ok(Self { stream, loaded: Loaded::of(&current)?, current, lifetime: PhantomData })
    }

    /// The multiprocessors of the device, which size a launch's grid.
    pub fn multiprocessors(&self) -> u32 {
        self.loaded.multiprocessors
    }

    /// Loads the kernels for a legal combination of types, unless the context has them.
    ///
    /// # Errors
    /// [`Error::Module`].
    pub fn prepare(&self, t1: ElementType, t2: ElementType, t3: Option<ElementType>) -> Result<(), Error> {
        self.prepare_module(ptx::module(&ptx::MODULES, (t1, t2, t3)))
    }

    /// Loads a module, unless the context has it, and makes the pool of scratch memory.
    ///
    /// # Errors
    /// [`Error::Module`].
    pub fn prepare_module(&self, module: &'static Module) -> Result<(), Error> {
        self.loaded.load(module)?;
        // Where there is none, as on a device without pools, what needs scratch memory fails, and nothing else.
        let _made = self.loaded.pool(&self.current);
        Ok(())
    }

    /// Launches a call on the stream: its store, then its load. Where its sequences are alike, what makes their index
    /// inputs goes before these, in memory that is allocated and freed in the stream's order.
    ///
    /// # Errors
    /// [`Error::TooLarge`], [`Error::NotPrepared`], [`Error::Module`]: nothing has been launched.
    /// [`Error::Driver`]: the store may have been.
    ///
    /// # Safety
    /// The conditions of [`DeviceProblem`], while the stream executes the call (for a captured call: each replay).
    /// Sequences that are alike have slots inside the cache; the addresses of index inputs are then not used.
    pub unsafe fn run(&self, problem: &DeviceProblem, alike: Option<AlikeSequences>) -> Result<(), Error> {
        let multiprocessors = self.multiprocessors();
        let ready = |launch: Option<Launch>| launch.map(|launch| self.ready(launch)).transpose();
        let (store, load) = (problem.stores.store(multiprocessors)?, problem.load(multiprocessors)?);
        let mut launches = [ready(store)?, ready(load)?];
        let Some(module) = launches.iter().flatten().next().map(|first| first.launch.module) else { return Ok(()) };
        // The memory is freed when it is dropped, behind the launches.
        let mut memory = None;
        if let Some(sequences) = alike {
            let batch = problem.stores.geometry.batch;
            let memory = memory.insert(self.scratch(AlikeSequences::index_bytes(batch))?);
            let indices = self.ready(sequences.launch(module, batch, memory.address(), multiprocessors))?;
            let made = indices.launch.parameters;
            for Ready { launch: Launch { parameters, .. }, .. } in launches.iter_mut().flatten() {
                (parameters.seqstarts, parameters.start_pos, parameters.cachestarts) =
                    (made.seqstarts, made.start_pos, made.cachestarts);
            }
            // SAFETY: the memory has room for the index inputs of `batch` sequences.
            unsafe { indices.launch() }?;
        }
        for launch in launches.into_iter().flatten() {
            // SAFETY: a launch of `DeviceProblem` has the parameters of its kernel; the memory is accessible as the
            // launch needs it, and index inputs have been made: see `# Safety`.
            unsafe { launch.launch() }?;
        }
        Ok(())
    }

    /// Allocates memory of the context's pool in the stream's order, for launches that follow; it is freed in that
    /// order, too. Nothing waits. Of a captured stream both become nodes of the graph, whose launches allocate and
    /// free.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn scratch(&self, bytes: usize) -> Result<Scratch<'_>, Error> {
        let pool = self.loaded.pool(&self.current)?;
        // SAFETY: the stream is a default one or lives for `'a`, and its context, which has made the pool, is current
        // as long as the queue lives.
        let address = unsafe { result::mem_pool::alloc_async(pool, bytes, self.stream) };
        let address = address.map_err(Error::driver("allocating scratch memory"))?;
        Ok(Scratch { address, stream: self.stream, queue: PhantomData })
    }

    /// Copies lines of bytes by the driver, in the stream's order. Nothing waits.
    ///
    /// # Errors
    /// [`Error::Driver`].
    ///
    /// # Safety
    /// Whenever the stream executes the copy, the device may access the bytes at both addresses, which do not overlap.
    pub unsafe fn copy(&self, copy: PitchedCopy) -> Result<(), Error> {
        let PitchedCopy { from, from_pitch, to, to_pitch, width, height } = copy;
        let failed = Error::driver("copying rows");
        if width == 0 || height == 0 {
            return Ok(());
        }
        // A device has no larger pitches.
        if height == 1 || from_pitch.max(to_pitch) > i32::MAX as usize {
            return (0..height as u64).try_for_each(|line| {
                let [from, to] = [from + line * from_pitch as u64, to + line * to_pitch as u64];
                // SAFETY: lines of the copy, which the device may access: see `# Safety`.
                unsafe { result::memcpy_dtod_async(to, from, width, self.stream) }.map_err(&failed)
            });
        }
        let described = sys::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            srcHost: ptr::null(),
            srcDevice: from,
            srcArray: ptr::null_mut(),
            srcPitch: from_pitch,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstHost: ptr::null_mut(),
            dstDevice: to,
            dstArray: ptr::null_mut(),
            dstPitch: to_pitch,
            WidthInBytes: width,
            Height: height,
        };
        // SAFETY: the device may access the bytes: see `# Safety`; the context is current as long as the queue lives.
        unsafe { sys::cuMemcpy2DAsync_v2(&raw const described, self.stream) }.result().map_err(failed)
    }

    /// Makes a launch ready: its module is loaded then.
    ///
    /// # Errors
    /// [`Error::NotPrepared`], [`Error::Module`].
    pub fn ready<P>(&self, launch: Launch<P>) -> Result<Ready<'_, P>, Error> {
        Ok(Ready {
            function: self.function(launch.module, launch.kernel)?,
            launch,
            stream: self.stream,
            queue: PhantomData,
        })
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
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn is_captured(&self) -> Result<bool, Error> {
        // SAFETY: the stream is a default one or lives for `'a`: see `new` and `from_raw`.
        let status = unsafe { result::stream::is_capturing(self.stream) };
        let status = status.map_err(Error::driver("finding out whether the stream is captured"))?;
        Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }
}

/// A copy of lines of bytes, each `pitch` bytes behind the one before it, between addresses of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PitchedCopy {
    /// Where the first line is read.
    pub from: u64,
    /// From one line that is read to the next, in bytes.
    pub from_pitch: usize,
    /// Where the first line is written.
    pub to: u64,
    /// From one line that is written to the next, in bytes.
    pub to_pitch: usize,
    /// Bytes of a line, at most a pitch.
    pub width: usize,
    /// Lines.
    pub height: usize,
}

/// Memory of a stream: freed, when this is dropped, behind all that the stream has been given by then.
pub struct Scratch<'q> {
    address: sys::CUdeviceptr,
    stream: sys::CUstream,
    queue: PhantomData<&'q Queue<'q>>,
}

impl Scratch<'_> {
    /// The address on the device.
    pub fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        // SAFETY: the memory has been allocated on this stream, and is not used by what the stream is given
        // later; the queue's context is current. A failure has nobody to go to.
        let _freed = unsafe { result::free_async(self.address, self.stream) };
    }
}

/// A launch whose kernel is loaded in the context of a queue.
pub struct Ready<'q, P> {
    function: sys::CUfunction,
    launch: Launch<P>,
    stream: sys::CUstream,
    queue: PhantomData<&'q Queue<'q>>,
}

impl<P> Ready<'_, P> {
    /// Launches the kernel on the queue's stream.
    ///
    /// # Errors
    /// [`Error::Driver`].
    ///
    /// # Safety
    /// The kernel has one parameter, a `P` by value, is compiled for [`BLOCK`] threads and uses no dynamic shared
    /// memory. Whenever the stream executes the launch, the addresses in the parameter are accessible to the device as
    /// the kernel accesses them.
    pub unsafe fn launch(mut self) -> Result<(), Error> {
        let grid = (self.launch.grid, 1, 1);
        // The driver copies the parameters before it returns.
        let mut parameters = [ptr::from_mut(&mut self.launch.parameters).cast::<c_void>()];
        // SAFETY: the kernel is called as it is compiled, and its addresses are accessible: see `# Safety`. The
        // function belongs to the context of the stream, which is current as long as the queue lives.
        unsafe { result::launch_kernel(self.function, grid, (BLOCK, 1, 1), 0, self.stream, &mut parameters) }
            .map_err(Error::driver("launching a kernel"))
    }
}
