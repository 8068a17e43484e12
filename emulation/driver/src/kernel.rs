//! Modules, kernels and launches.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_uint, c_void};

use kvcache_attention::cuda::AttentionParameters;
use kvcache_emulation_kernels::{
    ATTENTION, Access, Build, FAITHFUL, KernelParameters, Operand, Order, ROWS as ROW_BUILDS,
};
use kvcache_kernels::cuda::cudarc::driver::sys::{CUjit_option, CUresult};
use kvcache_kernels::cuda::{
    BLOCK, CacheKernel, IndexParameters, Launch, MODULES, Module, MoveParameters, ROWS, RotateParameters,
};

use crate::memory::{copy, find};
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
        let image = text(image);
        let known = modules().find(|module| module.ptx().is_ok_and(|ptx| ptx == image));
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
            module.kernels.iter().copied().find(|kernel| *kernel == name).ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
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
        // SAFETY: the driver API requires an array with a pointer to each parameter, and each kernel has one.
        let parameters = unsafe { *parameters };
        let node = if attends(module) {
            Node::Attention(of_kernel(module, kernel, grid_x, parameters))
        } else if makes_indices(kernel) {
            Node::Indices(of_kernel(module, kernel, grid_x, parameters))
        } else if !std::ptr::eq(module, &ROWS) {
            Node::Launch(of_kernel(module, kernel, grid_x, parameters))
        } else if moves(kernel) {
            Node::Move(of_kernel(module, kernel, grid_x, parameters))
        } else {
            Node::Rotate(of_kernel(module, kernel, grid_x, parameters))
        };
        match state.streams.get_mut(&stream).and_then(|stream| stream.capture.as_mut()) {
            Some(capture) => {
                capture.nodes.push(node);
                Ok(())
            }
            None => run(state, &node),
        }
    })
}

/// A launch of a kernel whose parameter, of this type, is there.
fn of_kernel<P: Copy>(
    module: &'static Module,
    kernel: &'static str,
    grid: u32,
    parameters: *const c_void,
) -> Box<Launch<P>> {
    // SAFETY: the driver API requires a pointer to the kernel's parameter, and the caller names its type.
    let parameters = unsafe { parameters.cast::<P>().read() };
    Box::new(Launch { module, kernel, grid, parameters })
}

fn makes_indices(kernel: &str) -> bool {
    kernel.starts_with("kvcache_make_indices_")
}

fn moves(kernel: &str) -> bool {
    kernel.starts_with("kvcache_move_")
}

/// Runs a node. A launch may access the allocations that its parameters point to, and no others.
pub(crate) fn run(state: &mut State, node: &Node) -> Result<(), CUresult> {
    match node {
        Node::Launch(launch) => run_cache(state, launch),
        Node::Attention(launch) => run_attention(state, launch),
        Node::Indices(node) => {
            let IndexParameters { seqstarts, start_pos, cachestarts, .. } = node.parameters;
            let written = [seqstarts, start_pos, cachestarts].map(|at| (at, Access::Write));
            launch(state, FAITHFUL, node, written.into_iter())
        }
        Node::Move(node) => {
            let MoveParameters { from, to, .. } = node.parameters;
            // Copies read and write one allocation.
            launch(state, ROW_BUILDS, node, [(from.base, Access::Read), (to.base, Access::Write)].into_iter())
        }
        Node::Rotate(node) => {
            let RotateParameters { cache, scale, .. } = node.parameters;
            launch(state, ROW_BUILDS, node, [cache.base, scale.base].map(|at| (at, Access::Write)).into_iter())
        }
        &Node::Copy { to, from, len } => copy(state, to, from, len),
    }
}

fn modules() -> impl Iterator<Item = &'static Module> {
    MODULES.iter().chain(&kvcache_attention::cuda::MODULES).chain([&ROWS])
}

fn attends(module: &'static Module) -> bool {
    kvcache_attention::cuda::MODULES.iter().any(|other| std::ptr::eq(other, module))
}

fn run_cache(state: &mut State, node: &Launch) -> Result<(), CUresult> {
    let p = node.parameters;
    let stores = [CacheKernel::StoreWide, CacheKernel::StoreNarrow];
    let is_store = stores.iter().any(|&store| node.module.kernel(store) == node.kernel);
    let (cache, values) = match is_store {
        true => (Access::Write, p.current.map(|at| (at, Access::Read))),
        false => (Access::Read, p.outputs.map(|at| (at, Access::Write))),
    };
    let indices = [p.seqstarts, p.start_pos, p.cachestarts].map(|at| (at, Access::Read));
    // Static scales are only read.
    let scale = if p.scale_strides.token == 0 { Access::Read } else { cache };
    let others = [(p.cache, cache), (p.scale, scale), (p.status, Access::Atomic)];
    launch(state, FAITHFUL, node, values.into_iter().chain(indices).chain(others))
}

fn run_attention(state: &mut State, node: &Launch<AttentionParameters>) -> Result<(), CUresult> {
    let p = node.parameters;
    let sums = node.module.kernels.last() == Some(&node.kernel);
    let scratch = if sums { Access::Read } else { Access::Write };
    let reads = [p.rows, p.scales, [p.query, p.mask], [p.seqstarts, p.tokens.seqstarts]].concat();
    let reads = reads.into_iter().chain([p.tokens.start_pos, p.tokens.cachestarts]).map(|at| (at, Access::Read));
    let written = [p.output, p.mass].map(|at| (at, Access::Write));
    let others = written.into_iter().chain([(p.scratch, scratch), (p.tokens.status, Access::Atomic)]);
    launch(state, ATTENTION, node, reads.chain(others))
}

/// Runs a launch that accesses the allocations of these addresses so.
fn launch<P: KernelParameters>(
    state: &mut State,
    builds: &'static [Build],
    node: &Launch<P>,
    accesses: impl Iterator<Item = (u64, Access)>,
) -> Result<(), CUresult> {
    let mut operands = BTreeMap::new();
    for (address, access) in accesses {
        if let Some((memory, _)) = find(state, address) {
            operands.insert(memory.0.address(), Operand { memory: &memory.0, access });
        }
    }
    let operands: Vec<_> = operands.into_values().collect();
    let Some(build) = builds.iter().find(|build| build.types == node.module.types) else {
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
