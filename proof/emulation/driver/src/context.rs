//! Initialization, errors, the one device, and contexts.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

use kvcache_emulation_ptx::Emulation;
use kvcache_kernels::cuda::cudarc::driver::sys::{CUdevice_attribute, CUresult};

use crate::state::{CURRENT, Out, current, driver, lock};

const NAME: &[u8] = b"CUDA on the CPU\0";
const ERROR: &std::ffi::CStr = c"an error of the driver on the CPU";

/// The handle of the primary context, the same each time that it is made.
const PRIMARY: usize = 0x800;

#[unsafe(no_mangle)]
extern "C" fn cuInit(_flags: c_uint) -> CUresult {
    CUresult::CUDA_SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuDriverGetVersion(version: Out<c_int>) -> CUresult {
    // The oldest driver that is supported.
    version.put(12_040);
    CUresult::CUDA_SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorName(error: CUresult, name: Out<*const c_char>) -> CUresult {
    let known: &std::ffi::CStr = match error {
        CUresult::CUDA_ERROR_INVALID_VALUE => c"CUDA_ERROR_INVALID_VALUE",
        CUresult::CUDA_ERROR_INVALID_CONTEXT => c"CUDA_ERROR_INVALID_CONTEXT",
        CUresult::CUDA_ERROR_INVALID_HANDLE => c"CUDA_ERROR_INVALID_HANDLE",
        CUresult::CUDA_ERROR_ILLEGAL_ADDRESS => c"CUDA_ERROR_ILLEGAL_ADDRESS",
        CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED => c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED => c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
        _ => ERROR,
    };
    name.put(known.as_ptr());
    CUresult::CUDA_SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorString(_error: CUresult, text: Out<*const c_char>) -> CUresult {
    text.put(ERROR.as_ptr());
    CUresult::CUDA_SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetCount(count: Out<c_int>) -> CUresult {
    count.put(1);
    CUresult::CUDA_SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGet(device: Out<c_int>, ordinal: c_int) -> CUresult {
    if ordinal != 0 {
        return CUresult::CUDA_ERROR_INVALID_DEVICE;
    }
    device.put(0);
    CUresult::CUDA_SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetName(name: *mut c_char, len: c_int, _device: c_int) -> CUresult {
    for (i, &byte) in NAME.iter().enumerate().take(len.unsigned_abs() as usize) {
        // SAFETY: i < len, and the driver API requires `name` to have `len` bytes.
        unsafe { name.add(i).write(byte.cast_signed()) };
    }
    CUresult::CUDA_SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetAttribute(value: Out<c_int>, attribute: CUdevice_attribute, _device: c_int) -> CUresult {
    let emulation = || current().ok().and_then(|context| Some(lock().contexts.get(&context)?.emulation));
    value.put(match attribute {
        CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT => {
            emulation().unwrap_or_default().multiprocessors.cast_signed()
        }
        CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => 7,
        CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR => 5,
        CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED => 1,
        _ => 0,
    });
    CUresult::CUDA_SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRetain(context: Out<usize>, _device: c_int) -> CUresult {
    driver(|state| {
        if state.retained == 0 {
            state.create(PRIMARY);
        }
        state.retained += 1;
        context.put(PRIMARY);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(_device: c_int) -> CUresult {
    driver(|state| {
        state.retained = state.retained.checked_sub(1).ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
        if state.retained == 0 {
            state.destroy(PRIMARY);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxGetState(_device: c_int, flags: Out<c_uint>, active: Out<c_int>) -> CUresult {
    driver(|state| {
        flags.put(0);
        active.put((state.retained > 0).into());
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxCreate_v4(
    context: Out<usize>,
    _parameters: *mut c_void,
    _flags: c_uint,
    _device: c_int,
) -> CUresult {
    driver(|state| {
        let new = state.new_handle();
        state.create(new);
        CURRENT.with_borrow_mut(|stack| stack.push(new));
        context.put(new);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxDestroy_v2(context: usize) -> CUresult {
    CURRENT.with_borrow_mut(|stack| stack.retain(|&other| other != context));
    driver(|state| {
        state.destroy(context);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetCurrent(context: Out<usize>) -> CUresult {
    context.put(current().unwrap_or(0));
    CUresult::CUDA_SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(context: usize) -> CUresult {
    CURRENT.with_borrow_mut(|stack| {
        stack.pop();
        if context != 0 {
            stack.push(context);
        }
    });
    CUresult::CUDA_SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPushCurrent_v2(context: usize) -> CUresult {
    driver(|state| match state.contexts.contains_key(&context) {
        true => {
            CURRENT.with_borrow_mut(|stack| stack.push(context));
            Ok(())
        }
        false => Err(CUresult::CUDA_ERROR_INVALID_CONTEXT),
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPopCurrent_v2(context: Out<usize>) -> CUresult {
    match CURRENT.with_borrow_mut(Vec::pop) {
        Some(popped) => {
            context.put(popped);
            CUresult::CUDA_SUCCESS
        }
        None => CUresult::CUDA_ERROR_INVALID_CONTEXT,
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetId(context: usize, id: Out<c_ulonglong>) -> CUresult {
    driver(|state| {
        id.put(state.context(context)?.id as c_ulonglong);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetDevice(device: Out<c_int>) -> CUresult {
    if let Err(error) = current() {
        return error;
    }
    device.put(0);
    CUresult::CUDA_SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSynchronize() -> CUresult {
    driver(|state| {
        current()?;
        state.not_captured()
    })
}

/// Says how the device of a context is emulated. Its multiprocessors are asked for by the first launch, and its modules
/// are read when they are loaded. No function of a real driver.
#[unsafe(no_mangle)]
extern "C" fn kvcache_emulate(context: usize, emulation: &Emulation) -> CUresult {
    driver(|state| {
        state.context(context)?.emulation = *emulation;
        Ok(())
    })
}
