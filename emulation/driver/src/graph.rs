//! Graphs, of launches and copies.

use std::ffi::c_ulonglong;

use kvcache_kernels::cuda::cudarc::driver::sys::CUresult;

use crate::kernel::run;
use crate::out::Out;
use crate::state::driver;
use crate::stream::context_of;

#[unsafe(no_mangle)]
extern "C" fn cuGraphInstantiateWithFlags(executable: Out<usize>, graph: usize, _flags: c_ulonglong) -> CUresult {
    driver(|state| {
        let nodes = state.graphs.get(&graph).cloned().ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        let new = state.new_handle();
        state.graphs.insert(new, nodes);
        executable.put(new);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphUpload(_executable: usize, _stream: usize) -> CUresult {
    CUresult::CUDA_SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphLaunch(executable: usize, stream: usize) -> CUresult {
    driver(|state| {
        context_of(state, stream)?;
        let nodes = state.graphs.get(&executable).cloned().ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        nodes.iter().try_for_each(|node| run(state, node))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphExecDestroy(executable: usize) -> CUresult {
    cuGraphDestroy(executable)
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphDestroy(graph: usize) -> CUresult {
    driver(|state| state.graphs.remove(&graph).map(drop).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE))
}
