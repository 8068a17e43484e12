//! Events: always complete, since streams run their work immediately.

use std::ffi::c_uint;

use kvcache_kernels::cuda::cudarc::driver::sys::CUresult;

use crate::out::Out;
use crate::state::driver;
use crate::stream::context_of;

#[unsafe(no_mangle)]
extern "C" fn cuEventCreate(event: Out<usize>, _flags: c_uint) -> CUresult {
    driver(|state| {
        event.put(state.new_handle());
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(_event: usize) -> CUresult {
    CUresult::CUDA_SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(_event: usize, stream: usize) -> CUresult {
    driver(|state| context_of(state, stream).map(drop))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventSynchronize(_event: usize) -> CUresult {
    driver(|state| state.not_captured())
}

#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(_event: usize) -> CUresult {
    CUresult::CUDA_SUCCESS
}

/// Always a microsecond: this driver does not measure time.
#[unsafe(no_mangle)]
extern "C" fn cuEventElapsedTime_v2(milliseconds: Out<f32>, _start: usize, _end: usize) -> CUresult {
    milliseconds.put(1e-3);
    CUresult::CUDA_SUCCESS
}
