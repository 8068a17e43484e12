//! Device memory and page-locked host memory.

use std::ffi::{c_uchar, c_uint, c_void};
use std::sync::Arc;
use std::{ptr, slice};

use kvcache_emulation_ptx::{Access, DeviceMemory};
use kvcache_kernels::cuda::cudarc::driver::sys::{CUDA_MEMCPY2D, CUmemAccess_flags, CUmemAccessDesc, CUresult};

use crate::state::{Allocation, Node, Out, State, context_of, current, driver};

/// The allocation that has these bytes.
fn find(state: &mut State, address: u64, len: usize) -> Result<&mut Allocation, CUresult> {
    let found = state.memory.range_mut(..=address).next_back();
    let (start, allocation) = found.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    let rest = allocation.memory.bytes().len().checked_sub((address - start) as usize);
    rest.filter(|&rest| rest >= len).map(|_| allocation).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
}

/// The bytes of an allocation.
fn find_mut(state: &mut State, address: u64, len: usize) -> Result<&mut [u8], CUresult> {
    if len == 0 {
        return Ok(&mut []);
    }
    find(state, address, len)?;
    // SAFETY: the bytes are in an allocation of the state, which is borrowed as long. A launch that is running uses
    // them only where its user has not waited for it.
    Ok(unsafe { slice::from_raw_parts_mut(ptr::with_exposed_provenance_mut(address as usize), len) })
}

fn allocate(state: &mut State, context: usize, address: Out<u64>, len: usize, access: Access) -> Result<(), CUresult> {
    if len == 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let memory = Arc::new(DeviceMemory::new(len));
    let at = memory.address();
    state.memory.insert(at, Allocation { access: vec![memory.region(access)], memory, context });
    address.put(at);
    Ok(())
}

fn free(state: &mut State, address: u64) -> Result<(), CUresult> {
    state.not_captured()?;
    state.memory.remove(&address).map(drop).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
}

fn to_device(state: &mut State, address: u64, from: *const c_void, len: usize) -> Result<(), CUresult> {
    state.not_captured()?;
    let to = find_mut(state, address, len)?;
    if len > 0 {
        // SAFETY: the driver API requires `from` to be readable for `len` bytes.
        to.copy_from_slice(unsafe { slice::from_raw_parts(from.cast(), len) });
    }
    Ok(())
}

fn to_host(state: &mut State, to: *mut c_void, address: u64, len: usize) -> Result<(), CUresult> {
    state.not_captured()?;
    let from = find_mut(state, address, len)?;
    // SAFETY: the driver API requires `to` to be writable host memory of `len` bytes; `from` is an allocation of this
    // driver, so they do not overlap.
    unsafe { to.cast::<u8>().copy_from_nonoverlapping(from.as_ptr(), len) };
    Ok(())
}

pub(crate) fn copy(state: &mut State, to: u64, from: u64, len: usize) -> Result<(), CUresult> {
    // What a real driver then leaves is not defined.
    if to.abs_diff(from) < len as u64 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let bytes = find_mut(state, from, len)?.to_vec();
    find_mut(state, to, len)?.copy_from_slice(&bytes);
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocAsync(address: Out<u64>, len: usize, stream: usize) -> CUresult {
    driver(|state| {
        // In a stream's order, which may be captured: the memory is then the graph's.
        let context = context_of(state, stream)?;
        allocate(state, context, address, len, Access::Any)
    })
}

/// Says what launches may do with a part of an allocation; after the first such call they may access named parts alone.
/// A real driver does so for memory that is mapped.
#[unsafe(no_mangle)]
extern "C" fn cuMemSetAccess(address: u64, len: usize, description: *const CUmemAccessDesc, _count: usize) -> CUresult {
    // SAFETY: the driver API requires a pointer to a description that is valid for this read.
    let access = match unsafe { (*description).flags } {
        CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ => Access::Read,
        CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE => Access::Write,
        _ => return CUresult::CUDA_ERROR_INVALID_VALUE,
    };
    driver(|state| {
        let regions = &mut find(state, address, len)?.access;
        regions.retain(|&(start, _, access)| access != Access::Any && start != address);
        regions.push((address, len, access));
        Ok(())
    })
}

/// A pool is no more than its handle: what is freed is not kept.
#[unsafe(no_mangle)]
extern "C" fn cuMemPoolCreate(pool: Out<usize>, _properties: *const c_void) -> CUresult {
    driver(|state| {
        current()?;
        state.not_captured()?;
        let new = state.new_handle();
        state.pools.insert(new);
        pool.put(new);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPoolDestroy(pool: usize) -> CUresult {
    driver(|state| state.pools.remove(&pool).then_some(()).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPoolSetAttribute(pool: usize, _attribute: c_uint, _value: *mut c_void) -> CUresult {
    driver(|state| state.pools.contains(&pool).then_some(()).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocFromPoolAsync(address: Out<u64>, len: usize, pool: usize, stream: usize) -> CUresult {
    driver(|state| {
        state.pools.get(&pool).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let context = context_of(state, stream)?;
        allocate(state, context, address, len, Access::Any)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAlloc_v2(address: Out<u64>, len: usize) -> CUresult {
    driver(|state| {
        state.not_captured()?;
        allocate(state, current()?, address, len, Access::Any)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeAsync(address: u64, stream: usize) -> CUresult {
    driver(|state| match state.streams.get(&stream).is_some_and(|stream| stream.capture.is_some()) {
        // Each launch of the graph would allocate and free it.
        true => Ok(()),
        false => free(state, address),
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(address: u64) -> CUresult {
    driver(|state| free(state, address))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostAlloc(address: Out<u64>, len: usize, _flags: c_uint) -> CUresult {
    driver(|state| {
        state.not_captured()?;
        // Of page-locked memory launches access status words alone.
        allocate(state, current()?, address, len, Access::Atomic)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostGetDevicePointer_v2(address: Out<u64>, memory: u64, _flags: c_uint) -> CUresult {
    address.put(memory);
    CUresult::CUDA_SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeHost(address: u64) -> CUresult {
    driver(|state| free(state, address))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, len: usize, stream: usize) -> CUresult {
    driver(|state| {
        context_of(state, stream)?;
        to_device(state, to, from, len)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, len: usize) -> CUresult {
    driver(|state| to_device(state, to, from, len))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, len: usize, stream: usize) -> CUresult {
    driver(|state| {
        context_of(state, stream)?;
        to_host(state, to, from, len)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, len: usize) -> CUresult {
    driver(|state| to_host(state, to, from, len))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, len: usize, stream: usize) -> CUresult {
    driver(|state| {
        context_of(state, stream)?;
        match state.captured(stream, Node::Copy { to, from, len }) {
            Some(_) => copy(state, to, from, len),
            None => Ok(()),
        }
    })
}

/// Lines of bytes, of the device's memory or page-locked.
#[unsafe(no_mangle)]
extern "C" fn cuMemcpy2DAsync_v2(copy: *const CUDA_MEMCPY2D, stream: usize) -> CUresult {
    // SAFETY: the driver API requires a pointer to a description that is valid for this read.
    let copy = unsafe { copy.read() };
    if copy.WidthInBytes > copy.srcPitch.min(copy.dstPitch) {
        return CUresult::CUDA_ERROR_INVALID_VALUE;
    }
    (0..copy.Height).fold(CUresult::CUDA_SUCCESS, |result, line| match result {
        CUresult::CUDA_SUCCESS => {
            let at = |start: u64, pitch: usize| start + (line * pitch) as u64;
            let (to, from) = (at(copy.dstDevice, copy.dstPitch), at(copy.srcDevice, copy.srcPitch));
            cuMemcpyDtoDAsync_v2(to, from, copy.WidthInBytes, stream)
        }
        error => error,
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8Async(to: u64, value: c_uchar, len: usize, stream: usize) -> CUresult {
    driver(|state| {
        context_of(state, stream)?;
        state.not_captured()?;
        find_mut(state, to, len)?.fill(value);
        Ok(())
    })
}
