//! Streams: work is run when it is submitted, or recorded during capture; graphs, and events, which are
//! always complete.

use std::ffi::{c_uint, c_ulonglong};

use kvcache_kernels::cuda::cudarc::driver::sys::{CUresult, CUstreamCaptureMode, CUstreamCaptureStatus};

use crate::kernel::run;
use crate::state::{CAPTURE_MODE, Capture, Out, State, Stream, context_of, current, driver};

fn own(state: &mut State, stream: usize) -> Result<&mut Stream, CUresult> {
    state.streams.get_mut(&stream).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamCreate(stream: Out<usize>, _flags: c_uint) -> CUresult {
    driver(|state| {
        state.not_captured()?;
        let new = state.new_handle();
        state.streams.insert(new, Stream { context: current()?, capture: None });
        stream.put(new);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(stream: usize) -> CUresult {
    driver(|state| state.streams.remove(&stream).map(drop).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(stream: usize) -> CUresult {
    driver(|state| {
        context_of(state, stream)?;
        state.not_captured()
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(stream: usize, _event: usize, _flags: c_uint) -> CUresult {
    driver(|state| {
        context_of(state, stream)?;
        // An event that was recorded before the capture cannot be waited for in it.
        state.not_captured()
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetCtx(stream: usize, context: Out<usize>) -> CUresult {
    driver(|state| {
        context.put(context_of(state, stream)?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamIsCapturing(stream: usize, status: Out<CUstreamCaptureStatus>) -> CUresult {
    driver(|state| {
        context_of(state, stream)?;
        let capture = state.streams.get(&stream).and_then(|stream| stream.capture.as_ref());
        status.put(match capture {
            None => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE,
            Some(Capture { invalidated: false, .. }) => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE,
            Some(_) => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED,
        });
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamBeginCapture_v2(stream: usize, _mode: CUstreamCaptureMode) -> CUresult {
    driver(|state| {
        own(state, stream)?.capture = Some(Capture::default());
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut CUstreamCaptureMode) -> CUresult {
    // SAFETY: the driver API requires a pointer to a mode, which is replaced.
    unsafe { mode.write(CAPTURE_MODE.replace(mode.read())) };
    CUresult::CUDA_SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamEndCapture(stream: usize, graph: Out<usize>) -> CUresult {
    driver(|state| {
        let capture = own(state, stream)?.capture.take().ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
        if capture.invalidated {
            graph.put(0);
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        let new = state.new_handle();
        state.graphs.insert(new, capture.nodes);
        graph.put(new);
        Ok(())
    })
}

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

/// Always a microsecond: this driver does not measure time.
#[unsafe(no_mangle)]
extern "C" fn cuEventElapsedTime_v2(milliseconds: Out<f32>, _start: usize, _end: usize) -> CUresult {
    milliseconds.put(1e-3);
    CUresult::CUDA_SUCCESS
}

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
extern "C" fn cuGraphLaunch(executable: usize, stream: usize) -> CUresult {
    let mut launched = None;
    let prepared = driver(|state| {
        let nodes = state.graphs.get(&executable).cloned().ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        launched = Some((context_of(state, stream)?, nodes));
        Ok(())
    });
    launched
        .map_or(prepared, |(context, nodes)| nodes.iter().find_map(|node| run(context, node).err()).unwrap_or(prepared))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphExecDestroy(executable: usize) -> CUresult {
    cuGraphDestroy(executable)
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphDestroy(graph: usize) -> CUresult {
    driver(|state| state.graphs.remove(&graph).map(drop).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE))
}
