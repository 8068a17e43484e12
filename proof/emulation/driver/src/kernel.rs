//! Modules, kernels and launches.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CString, c_char, c_uint, c_void};
use std::slice;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use kvcache_emulation_ptx::{Cost, Emulation, PtxError, Shape, kernels};
use kvcache_kernels::cuda::cudarc::driver::sys::{CUjit_option, CUresult};

use crate::memory::copy;
use crate::state::{Function, Kernels, LoadedModule, Node, Out, context_of, current, driver, lock, text};

#[unsafe(no_mangle)]
extern "C" fn cuModuleLoadDataEx(
    module: Out<usize>,
    image: *const c_char,
    _count: c_uint,
    _options: *mut CUjit_option,
    _values: *mut *mut c_void,
) -> CUresult {
    let mut emulated = Emulation::default();
    let asked = driver(|state| {
        state.not_captured()?;
        emulated = state.context(current()?)?.emulation;
        Ok(())
    });
    if asked != CUresult::CUDA_SUCCESS {
        return asked;
    }
    // SAFETY: `Emulation` says how long its texts live.
    let ptx = unsafe { emulated.ptx(text(image)) };
    let kernels = match decoded(ptx, emulated.canonical_neg) {
        Ok(kernels) => kernels,
        Err(error) => {
            eprintln!("CUDA on the CPU: {error}");
            return CUresult::CUDA_ERROR_INVALID_PTX;
        }
    };
    driver(|state| {
        let (context, new) = (current()?, state.new_handle());
        state.modules.insert(new, LoadedModule { context, kernels });
        module.put(new);
        Ok(())
    })
}

/// The kernels of a module, which each context loads, but one thread of all has read.
fn decoded(ptx: &str, canonical_neg: bool) -> Result<Kernels, PtxError> {
    type Known = HashMap<(String, bool), Kernels>;
    static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let key = (ptx.to_owned(), canonical_neg);
    if let Some(kernels) = known().get(&key) {
        return Ok(Arc::clone(kernels));
    }
    let kernels = kernels(ptx, canonical_neg)?.into_iter().map(|(name, code)| (name, Arc::new(code)));
    let kernels = Arc::new(kernels.collect::<BTreeMap<_, _>>());
    known().insert(key, Arc::clone(&kernels));
    Ok(kernels)
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleGetFunction(function: Out<usize>, module: usize, name: *const c_char) -> CUresult {
    driver(|state| {
        let module = state.modules.get(&module).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        let code = module.kernels.get(text(name)).ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
        let loaded = Function { context: module.context, code: Arc::clone(code) };
        let new = state.new_handle();
        state.functions.insert(new, loaded);
        function.put(new);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncLoad(function: usize) -> CUresult {
    driver(|state| {
        state.not_captured()?;
        state.functions.get(&function).map(|_| ()).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuLaunchKernel(
    function: usize,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared: c_uint,
    stream: usize,
    parameters: *mut *mut c_void,
    _extra: *mut *mut c_void,
) -> CUresult {
    let mut launch = None;
    let prepared = driver(|state| {
        let Function { context, code } = state.functions.get(&function).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        if current()? != *context || context_of(state, stream)? != *context {
            return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
        }
        let shape = (grid_x > 0, grid_y, grid_z, block_y, block_z, shared);
        if shape != (true, 1, 1, 1, 1, 0) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the driver API requires an array with a pointer to each parameter, and each kernel has one, of so
        // many bytes.
        let parameters = unsafe { slice::from_raw_parts((*parameters).cast::<u8>(), code.parameter_bytes) }.into();
        let node = Node::Launch { code: Arc::clone(code), grid: grid_x, block: block_x, parameters };
        let context = *context;
        launch = state.captured(stream, node).map(|node| (context, node));
        Ok(())
    });
    launch.map_or(prepared, |(context, node)| run(context, &node).err().unwrap_or(prepared))
}

/// Runs a node. A launch has the lock at its beginning and its end alone, so that launches of several threads run at
/// once.
pub(crate) fn run(context: usize, node: &Node) -> Result<(), CUresult> {
    let mut state = lock();
    let (code, grid, block, parameters) = match node {
        &Node::Copy { to, from, len } => return copy(&mut state, to, from, len),
        Node::Launch { code, grid, block, parameters } => (code, *grid, *block, parameters),
    };
    let emulation = state.context(context)?.emulation;
    let (memory, allocations) = state.memory_of(context);
    drop(state);
    let shape = Shape { grid, block, parameters, order: emulation.order, counts: emulation.counts };
    // SAFETY: the regions are in `allocations`, which live.
    let done = unsafe { kvcache_emulation_ptx::run(code, &memory, shape) };
    drop(allocations);
    match (done, emulation.launched) {
        (Ok(counts), Some(launched)) => {
            let kernel = CString::new(code.kernel.as_str()).unwrap_or_default();
            launched(kernel.as_ptr(), &Cost::from(&counts));
        }
        (Ok(_), None) => (),
        (Err(fault), _) => {
            eprintln!("CUDA on the CPU: {fault}");
            let error = CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;
            lock().context(context)?.fault = Some(error);
            return Err(error);
        }
    }
    Ok(())
}
