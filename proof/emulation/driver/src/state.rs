//! The driver's state, behind one lock, and each thread's contexts; pointer arguments of the driver API.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, c_char};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use kvcache_emulation_ptx::{Access, Code, DeviceMemory, Emulation, Memory};
use kvcache_kernels::cuda::cudarc::driver::sys::{CUresult, CUstreamCaptureMode};

/// Everything that has a handle. Only the primary context's handle is used again.
#[derive(Default)]
pub(crate) struct State {
    last: usize,
    /// How often the primary context has been retained and not released.
    pub(crate) retained: usize,
    /// Living contexts by handle.
    pub(crate) contexts: BTreeMap<usize, Context>,
    pub(crate) streams: BTreeMap<usize, Stream>,
    pub(crate) modules: BTreeMap<usize, LoadedModule>,
    pub(crate) functions: BTreeMap<usize, Function>,
    pub(crate) graphs: BTreeMap<usize, Vec<Node>>,
    pub(crate) pools: BTreeSet<usize>,
    /// By address.
    pub(crate) memory: BTreeMap<u64, Allocation>,
}

#[derive(Default)]
pub(crate) struct Context {
    /// Is never used again.
    pub(crate) id: usize,
    pub(crate) emulation: Emulation,
    /// The error of a launch that has faulted. As with a real driver, every later call of the context returns it.
    pub(crate) fault: Option<CUresult>,
}

pub(crate) struct Allocation {
    pub(crate) context: usize,
    /// Shared with the launches that are running.
    pub(crate) memory: Arc<DeviceMemory>,
    /// The regions that launches may access.
    pub(crate) access: Vec<(u64, usize, Access)>,
}

pub(crate) struct Stream {
    pub(crate) context: usize,
    pub(crate) capture: Option<Capture>,
}

#[derive(Default)]
pub(crate) struct Capture {
    pub(crate) nodes: Vec<Node>,
    pub(crate) invalidated: bool,
}

/// The kernels of a module by name.
pub(crate) type Kernels = Arc<BTreeMap<String, Arc<Code>>>;

pub(crate) struct LoadedModule {
    pub(crate) context: usize,
    pub(crate) kernels: Kernels,
}

pub(crate) struct Function {
    pub(crate) context: usize,
    pub(crate) code: Arc<Code>,
}

#[derive(Clone)]
pub(crate) enum Node {
    Launch { code: Arc<Code>, grid: u32, block: u32, parameters: Arc<[u8]> },
    Copy { to: u64, from: u64, len: usize },
}

impl State {
    pub(crate) fn new_handle(&mut self) -> usize {
        // 0 to 2 are the default streams.
        self.last = self.last.max(0x1000) + 0x10;
        self.last
    }

    /// Makes a context with this handle.
    pub(crate) fn create(&mut self, context: usize) {
        let id = self.new_handle();
        self.contexts.insert(context, Context { id, ..Context::default() });
    }

    pub(crate) fn context(&mut self, context: usize) -> Result<&mut Context, CUresult> {
        self.contexts.get_mut(&context).ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)
    }

    /// What a launch of a context may access, and the allocations, which live as long.
    pub(crate) fn memory_of(&self, context: usize) -> (Memory, Vec<Arc<DeviceMemory>>) {
        let allocations = || self.memory.values().filter(|allocation| allocation.context == context);
        let regions = allocations().flat_map(|allocation| allocation.access.iter().copied());
        (Memory::new(regions), allocations().map(|allocation| Arc::clone(&allocation.memory)).collect())
    }

    /// Destroys a context, and the modules that it has loaded.
    pub(crate) fn destroy(&mut self, context: usize) {
        self.contexts.remove(&context);
        self.modules.retain(|_, module| module.context != context);
        self.functions.retain(|_, function| function.context != context);
    }

    /// Adds a node to what is being captured from a stream; returns it where nothing is.
    pub(crate) fn captured(&mut self, stream: usize, node: Node) -> Option<Node> {
        match self.streams.get_mut(&stream).and_then(|stream| stream.capture.as_mut()) {
            Some(capture) => {
                capture.nodes.push(node);
                None
            }
            None => Some(node),
        }
    }

    /// Fails while any stream is being captured, and invalidates the capture, unless the thread has no part in
    /// captures.
    pub(crate) fn not_captured(&mut self) -> Result<(), CUresult> {
        if CAPTURE_MODE.get() == CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED {
            return Ok(());
        }
        let mut captures = self.streams.values_mut().filter_map(|stream| stream.capture.as_mut()).peekable();
        if captures.peek().is_none() {
            return Ok(());
        }
        captures.for_each(|capture| capture.invalidated = true);
        Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
    }
}

thread_local! {
    pub(crate) static CAPTURE_MODE: Cell<CUstreamCaptureMode> =
        const { Cell::new(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL) };

    /// The thread's contexts, the current one last.
    pub(crate) static CURRENT: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// The thread's current context.
pub(crate) fn current() -> Result<usize, CUresult> {
    CURRENT.with_borrow(|stack| stack.last().copied()).ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)
}

/// The context of a stream; a default stream's is the current one.
pub(crate) fn context_of(state: &State, stream: usize) -> Result<usize, CUresult> {
    match stream {
        0..=2 => current(),
        _ => state.streams.get(&stream).map(|stream| stream.context).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE),
    }
}

/// Runs a function of the driver API on the state, unless a launch of the current context has faulted.
pub(crate) fn driver(f: impl FnOnce(&mut State) -> Result<(), CUresult>) -> CUresult {
    let mut state = lock();
    let context = current().ok().and_then(|context| state.contexts.get(&context));
    if let Some(fault) = context.and_then(|context| context.fault) {
        return fault;
    }
    f(&mut state).err().unwrap_or(CUresult::CUDA_SUCCESS)
}

pub(crate) fn lock() -> MutexGuard<'static, State> {
    static DRIVER: LazyLock<Mutex<State>> = LazyLock::new(Mutex::default);
    DRIVER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where a function stores a result.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Stores the result, unless the pointer is null.
    pub(crate) fn put(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: the driver API requires a pointer that is null or valid for this write.
            unsafe { self.0.write(value) }
        }
    }
}

pub(crate) fn text<'a>(text: *const c_char) -> &'a str {
    // SAFETY: the driver API requires a text that ends with NUL and lives for the call, which is as long as it is used.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or_default()
}
