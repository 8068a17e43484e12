//! The kernels that each context has loaded: each module once, at its first use.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::{Mutex, OnceLock, PoisonError, RwLock};

use cudarc::driver::{result, sys};

use super::context::Current;
use super::error::{Error, reason};
use super::ptx::{MODULES, Module};

/// The modules that one context has loaded.
pub(super) struct Loaded {
    pub(super) multiprocessors: u32,
    modules: [OnceLock<Functions>; MODULES.len()],
    /// Held while a module is loaded, so that none is loaded twice.
    loading: Mutex<()>,
}

/// The handles of a module's kernels, in the order of [`Module::kernels`].
type Functions = [Function; 4];

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
            let modules = [const { OnceLock::new() }; MODULES.len()];
            Box::leak(Box::new(Self { multiprocessors, modules, loading: Mutex::new(()) }))
        });
        Ok(loaded)
    }

    /// The kernel of that name in a module, if the module is loaded.
    pub(super) fn get(&self, module: &'static Module, kernel: &str) -> Option<sys::CUfunction> {
        let functions = self.place(module).get()?;
        let i = module.kernels().iter().position(|name| *name == kernel)?;
        Some(functions[i].0)
    }

    /// Loads a module into the current context, which must be this one.
    pub(super) fn load(&self, module: &'static Module) -> Result<(), Error> {
        let place = self.place(module);
        let _loading = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        if place.get().is_none() {
            let functions = load(module)?;
            // No other thread has set it, since `loading` is held.
            place.get_or_init(|| functions);
        }
        Ok(())
    }

    fn place(&self, module: &'static Module) -> &OnceLock<Functions> {
        let place = MODULES.iter().position(|other| other.types == module.types);
        &self.modules[place.unwrap_or_else(|| unreachable!("{} is one of the modules", module.types))]
    }
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
    let [store_wide, store_narrow, load_wide, load_narrow] = module.kernels();
    Ok([function(store_wide)?, function(store_narrow)?, function(load_wide)?, function(load_narrow)?])
}
