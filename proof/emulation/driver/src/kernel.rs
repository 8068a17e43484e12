//! Modules, kernels and launches.

use std::ffi::{c_char, c_uint, c_void};
use std::slice;
use std::sync::Arc;

use kvcache_emulation_ptx::{Access, Freedom, Memory, Order, Shape, kernels};
use kvcache_kernels::cuda::cudarc::driver::sys::{CUjit_option, CUresult};

use crate::memory::copy;
use crate::state::{Function, LoadedModule, Node, Out, State, context_of, current, driver, text};

#[unsafe(no_mangle)]
extern "C" fn cuModuleLoadDataEx(
    module: Out<usize>,
    image: *const c_char,
    _count: c_uint,
    _options: *mut CUjit_option,
    _values: *mut *mut c_void,
) -> CUresult {
    driver(|state| {
        let context = current()?;
        state.not_captured()?;
        let kernels = kernels(text(image), Freedom::default()).map_err(|error| {
            eprintln!("CUDA on the CPU: {error}");
            CUresult::CUDA_ERROR_INVALID_PTX
        })?;
        let kernels = kernels.into_iter().map(|(name, code)| (name, Arc::new(code))).collect();
        let new = state.new_handle();
        state.modules.insert(new, LoadedModule { context, kernels });
        module.put(new);
        Ok(())
    })
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
    driver(|state| {
        let Function { context, code } = state.functions.get(&function).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        if current()? != *context || context_of(state, stream)? != *context {
            return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
        }
        let shape = (grid_x > 0, grid_y, grid_z, block_y, block_z, shared);
        if shape != (true, 1, 1, 1, 1, 0) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the driver API requires an array with a pointer to each parameter, and each kernel has one, of so many
        // bytes.
        let parameters = unsafe { slice::from_raw_parts((*parameters).cast::<u8>(), code.parameter_bytes) }.into();
        let node = Node::Launch { code: Arc::clone(code), grid: grid_x, block: block_x, parameters };
        match state.streams.get_mut(&stream).and_then(|stream| stream.capture.as_mut()) {
            Some(capture) => {
                capture.nodes.push(node);
                Ok(())
            }
            None => run(state, &node),
        }
    })
}

/// Runs a node. A launch may access all allocations.
pub(crate) fn run(state: &mut State, node: &Node) -> Result<(), CUresult> {
    let (code, shape) = match node {
        &Node::Copy { to, from, len } => return copy(state, to, from, len),
        Node::Launch { code, grid, block, parameters } => {
            (code, Shape { grid: *grid, block: *block, parameters, order: Order::Forward, counts: false })
        }
    };
    let memory = Memory::new(state.memory.values().map(|memory| memory.0.region(Access::Any)));
    // SAFETY: the regions are allocations that live, and are used under the driver's lock.
    unsafe { kvcache_emulation_ptx::run(code, &memory, shape) }.map(drop).map_err(|fault| {
        eprintln!("CUDA on the CPU: {fault}");
        state.fault = Some(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
        CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
    })
}
