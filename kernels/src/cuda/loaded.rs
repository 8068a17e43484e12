//! What each context has been given at its first use, until the process ends: kernels, each module once, and a pool of
//! scratch memory.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::{Mutex, PoisonError, RwLock};

use cudarc::driver::{result, sys};

use super::context::Current;
use super::error::{Error, reason};
use super::ptx::Module;

/// The bytes that a pool keeps for later calls when its stream is synchronized; a pool of the driver's keeps none.
const KEPT: u64 = 1 << 28;

/// What one context has loaded.
pub(super) struct Loaded {
    pub(super) multiprocessors: u32,
    /// None until its first use.
    pool: Mutex<Option<Pool>>,
    /// Few: a process runs models of few types.
    modules: RwLock<Vec<(&'static Module, Functions)>>,
    /// Held while a module is loaded, so that none is loaded twice.
    loading: Mutex<()>,
}

/// The handles of a module's kernels, in the order of [`Module::kernels`].
type Functions = Box<[Function]>;

/// A pool's handle, valid until the process ends: no pool that has been set up is destroyed.
#[derive(Clone, Copy)]
struct Pool(sys::CUmemoryPool);

// SAFETY: the driver accepts a pool's handle on every thread.
unsafe impl Send for Pool {}

/// A kernel's handle, valid as long as its context lives.
struct Function(sys::CUfunction);

// SAFETY: the driver accepts a function's handle on every thread.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Loaded {
    /// The modules that the current context has loaded.
    ///
    /// They are kept until the process ends, and so is a primary context: contexts are few, and the driver unloads the
    /// kernels with their context.
    pub(super) fn of(current: &Current) -> Result<&'static Self, Error> {
        static CONTEXTS: RwLock<Option<HashMap<u64, &'static Loaded>>> = RwLock::new(None);
        let id = current.id()?;
        let known = CONTEXTS.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(loaded) = known.as_ref().and_then(|contexts| contexts.get(&id)) {
            return Ok(loaded);
        }
        drop(known);
        let multiprocessors = current.multiprocessors()?;
        current.keep()?;
        let mut contexts = CONTEXTS.write().unwrap_or_else(PoisonError::into_inner);
        let loaded = contexts.get_or_insert_default().entry(id).or_insert_with(|| {
            let (pool, modules, loading) = Default::default();
            Box::leak(Box::new(Self { multiprocessors, pool, modules, loading }))
        });
        Ok(loaded)
    }

    /// The pool of scratch memory of the current context, which must be this one. After a failure the next call tries
    /// again.
    pub(super) fn pool(&self, current: &Current) -> Result<sys::CUmemoryPool, Error> {
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        let Pool(handle) = match *pool {
            Some(made) => made,
            None => *pool.insert(beside_captures(|| make_pool(current.device()?))?),
        };
        Ok(handle)
    }

    /// The kernel of that name in a module, if the module is loaded.
    pub(super) fn get(&self, module: &'static Module, kernel: &str) -> Option<sys::CUfunction> {
        let modules = self.modules.read().unwrap_or_else(PoisonError::into_inner);
        let (_, functions) = modules.iter().find(|(loaded, _)| ptr::eq(*loaded, module))?;
        let i = module.kernels.iter().position(|name| *name == kernel)?;
        Some(functions[i].0)
    }

    /// Loads a module into the current context, which must be this one.
    pub(super) fn load(&self, module: &'static Module) -> Result<(), Error> {
        let _loading = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        let modules = self.modules.read().unwrap_or_else(PoisonError::into_inner);
        let is_loaded = modules.iter().any(|(loaded, _)| ptr::eq(*loaded, module));
        drop(modules);
        if !is_loaded {
            // Other modules stay in use meanwhile; no other thread loads this one, since `loading` is held.
            let functions = beside_captures(|| load(module))?;
            self.modules.write().unwrap_or_else(PoisonError::into_inner).push((module, functions));
        }
        Ok(())
    }
}

/// Does what would end the captures of other threads' streams, PyTorch's for one, unless this thread says that it has
/// no part in them.
fn beside_captures<T>(load: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: reads the mode and writes the thread's earlier one.
    let mut exchange = || unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) }.result();
    exchange().map_err(Error::driver("relaxing captures"))?;
    let loaded = load();
    exchange().map_err(Error::driver("restoring the mode of captures"))?;
    loaded
}

/// A pool of a device's memory.
fn make_pool(device: sys::CUdevice) -> Result<Pool, Error> {
    // SAFETY: numbers, for which 0 is valid, and a null pointer.
    let mut properties: sys::CUmemPoolProps = unsafe { std::mem::zeroed() };
    properties.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device;
    // SAFETY: the properties are filled as the driver asks for.
    let pool = unsafe { result::mem_pool::create(&properties) };
    let pool = pool.map_err(Error::driver("making a pool of scratch memory"))?;
    let (threshold, mut kept) = (sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, KEPT);
    // SAFETY: the pool has been made above, and the attribute's value is a u64.
    let set = unsafe { result::mem_pool::set_attribute(pool, threshold, (&raw mut kept).cast()) };
    set.map_err(|error| {
        // SAFETY: the pool has been made above, and nobody else knows it.
        let _destroyed = unsafe { result::mem_pool::destroy(pool) };
        Error::driver("setting up a pool of scratch memory")(error)
    })?;
    Ok(Pool(pool))
}

/// Loads a module and its kernels into the current context, completely: what the driver leaves for later it would load
/// at the first launch, which may be captured.
fn load(module: &'static Module) -> Result<Functions, Error> {
    let types = module.types;
    let failed = |reason: String| Error::Module { types, reason };
    let ptx = module.ptx().map_err(|error| failed(error.to_string()))?;
    let ptx = CString::new(ptx).map_err(|error| failed(error.to_string()))?;
    let mut log = [0u8; 4096];
    let mut options =
        [sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER, sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    let mut values = [log.as_mut_ptr().cast::<c_void>(), ptr::without_provenance_mut(log.len())];
    let mut handle = ptr::null_mut();
    // SAFETY: `ptx` ends with NUL, the options give the log's address and length, and all outlive the call.
    let status = unsafe {
        sys::cuModuleLoadDataEx(
            &mut handle,
            ptx.as_ptr().cast(),
            options.len() as u32,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
        )
    };
    status.result().map_err(|error| {
        let written = log.split(|&byte| byte == 0).next().unwrap_or_default();
        let log = String::from_utf8_lossy(written).trim().replace('\n', "; ");
        failed(if log.is_empty() { reason(error) } else { format!("{}: {log}", reason(error)) })
    })?;
    let function = |name: &'static str| {
        let name = CString::new(name).map_err(|error| failed(error.to_string()))?;
        // SAFETY: `handle` is a module that has been loaded above and is never unloaded.
        let function = unsafe { result::module::get_function(handle, name) }.map_err(|error| failed(reason(error)))?;
        // SAFETY: `function` belongs to that module.
        unsafe { sys::cuFuncLoad(function) }.result().map_err(|error| failed(reason(error)))?;
        Ok::<_, Error>(Function(function))
    };
    module.kernels.iter().map(|&name| function(name)).collect()
}
