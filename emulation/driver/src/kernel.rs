//! Modules, kernels and launches.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_uint, c_void};

use kvcache_emulation_kernels::{Access, FAITHFUL, Operand, Order};
use kvcache_kernels::cuda::cudarc::driver::sys::{CUjit_option, CUresult};
use kvcache_kernels::cuda::{BLOCK, Launch, MODULES, Parameters};

use crate::context::current;
use crate::memory::find;
use crate::out::{Out, text};
use crate::state::{Function, LoadedModule, Node, State, driver};
use crate::stream::context_of;

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
        let image = text(image);
        let known = MODULES.iter().find(|module| module.ptx().is_ok_and(|ptx| ptx == image));
        let new = state.new_handle();
        let loaded = LoadedModule { context, module: known.ok_or(CUresult::CUDA_ERROR_INVALID_PTX)? };
        state.modules.insert(new, loaded);
        module.put(new);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleGetFunction(function: Out<usize>, module: usize, name: *const c_char) -> CUresult {
    driver(|state| {
        let &LoadedModule { context, module } =
            state.modules.get(&module).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        let name = text(name);
        let kernel =
            module.kernels().into_iter().find(|kernel| *kernel == name).ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
        let new = state.new_handle();
        state.functions.insert(new, Function { context, module, kernel });
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
        let &Function { context, module, kernel } =
            state.functions.get(&function).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        if current()? != context || context_of(state, stream)? != context {
            return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
        }
        let shape = (grid_x > 0, grid_y, grid_z, block_x, block_y, block_z, shared);
        if shape != (true, 1, 1, BLOCK, 1, 1, 0) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the driver API requires an array with a pointer to each parameter, and the kernels have one, of this
        // type.
        let parameters = unsafe { (*parameters).cast::<Parameters>().read() };
        let launch = Launch { module, kernel, grid: grid_x, parameters };
        match state.streams.get_mut(&stream).and_then(|stream| stream.capture.as_mut()) {
            Some(capture) => {
                capture.nodes.push(Node::Launch(Box::new(launch)));
                Ok(())
            }
            None => run(state, &launch),
        }
    })
}

/// Runs a launch. It may access the allocations that its parameters point to, and no others.
pub(crate) fn run(state: &mut State, node: &Launch) -> Result<(), CUresult> {
    let p = node.parameters;
    let is_store = [node.module.store_wide, node.module.store_narrow].contains(&node.kernel);
    let (cache, values) = match is_store {
        true => (Access::Write, p.current.map(|at| (at, Access::Read))),
        false => (Access::Read, p.outputs.map(|at| (at, Access::Write))),
    };
    let indices = [p.seqstarts, p.start_pos, p.cachestarts].map(|at| (at, Access::Read));
    let others = [(p.cache, cache), (p.scale, cache), (p.status, Access::Atomic)];
    let mut operands = BTreeMap::new();
    for (address, access) in values.into_iter().chain(indices).chain(others) {
        if let Some((memory, _)) = find(state, address) {
            operands.insert(memory.0.address(), Operand { memory: &memory.0, access });
        }
    }
    let operands: Vec<_> = operands.into_values().collect();
    let Some(build) = FAITHFUL.iter().find(|build| build.types == node.module.types) else {
        return Err(CUresult::CUDA_ERROR_NOT_FOUND);
    };
    match kvcache_emulation_kernels::launch(build, node, &operands, Order::Forward) {
        Ok(()) => Ok(()),
        Err(fault) => {
            eprintln!("CUDA on the CPU: {fault}");
            state.fault = Some(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
            Err(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS)
        }
    }
}
