//! The kernels as each context has loaded them: each module once, when it is first wanted.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::{Mutex, OnceLock, PoisonError, RwLock};

use cudarc::driver::{result, sys};

use super::context::Current;
use super::error::{Error, reason};
use super::ptx::{MODULES, Module};

/// Kernels of a module, and modules.
const KERNELS: usize = 4;

/// What one context has loaded.
pub(super) struct Loaded {
    pub(super) multiprocessors: u32,
    modules: [OnceLock<[Function; KERNELS]>; MODULES.len()],
    /// Held while a module is loaded, so that none is twice.
    loading: Mutex<()>,
}

/// A kernel that lives as long as its context.
struct Function(sys::CUfunction);

// SAFETY: the driver takes a function's handle from every thread.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Loaded {
    /// What the current context has loaded.
    ///
    /// It is kept as long as the process lives, and so is a primary context: contexts are few, and the driver unloads the
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
        let i = names(module).iter().position(|name| *name == kernel)?;
        Some(functions[i].0)
    }

    /// Loads a module into the current context, which is the one that this is of.
    pub(super) fn load(&self, module: &'static Module) -> Result<(), Error> {
        let place = self.place(module);
        let _turn = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        if place.get().is_none() {
            let functions = load(module)?;
            // Nobody else has set it: they wait for their turn.
            place.get_or_init(|| functions);
        }
        Ok(())
    }

    fn place(&self, module: &'static Module) -> &OnceLock<[Function; KERNELS]> {
        let place = MODULES.iter().position(|other| other.types == module.types);
        &self.modules[place.unwrap_or_else(|| unreachable!("{} is one of the modules", module.types))]
    }
}

/// The names of a module's kernels.
fn names(module: &Module) -> [&'static str; KERNELS] {
    [module.store_wide, module.store_narrow, module.load_wide, module.load_narrow]
}

/// Loads a module and its kernels into the current context, completely: a lazy rest would be loaded by the first launch,
/// which may be captured.
fn load(module: &'static Module) -> Result<[Function; KERNELS], Error> {
    let types = module.types;
    let failed = |reason: String| Error::Module { types, reason };
    let ptx = module.ptx().map_err(|error| failed(error.to_string()))?;
    let ptx = CString::new(ptx).map_err(|error| failed(error.to_string()))?;
    let mut log = [0u8; 4096];
    let mut options =
        [sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER, sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    let mut values = [log.as_mut_ptr().cast::<c_void>(), ptr::without_provenance_mut(log.len())];
    let mut handle = ptr::null_mut();
    // SAFETY: the text ends with NUL, the options say that the log has so many bytes, and all outlive the call.
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
        // SAFETY: the module has just been loaded, and is never unloaded.
        let function = unsafe { result::module::get_function(handle, name) }.map_err(|error| failed(reason(error)))?;
        // SAFETY: the function is of a module that is loaded.
        unsafe { sys::cuFuncLoad(function) }.result().map_err(|error| failed(reason(error)))?;
        Ok::<_, Error>(Function(function))
    };
    let [store_wide, store_narrow, load_wide, load_narrow] = names(module);
    Ok([function(store_wide)?, function(store_narrow)?, function(load_wide)?, function(load_narrow)?])
}
