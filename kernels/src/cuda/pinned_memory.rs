//! Page-locked host memory that a device accesses, too.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::{CudaContext, result, sys};

use super::context::Current;
use super::error::Error;

/// Page-locked memory of the host, at an address of the device, too.
#[derive(Debug)]
pub struct PinnedMemory {
    memory: NonNull<u8>,
    len: usize,
    address: u64,
    /// Dropped in [`Drop`], while it is current.
    context: ManuallyDrop<Arc<CudaContext>>,
}

// SAFETY: it owns its memory, which is accessed through pointers whose users keep the rules; a `CudaContext` can be
// used from every thread.
unsafe impl Send for PinnedMemory {}
// SAFETY: as above.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    /// `len` bytes of zeros, at least one.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn new(context: &Arc<CudaContext>, len: usize) -> Result<Self, Error> {
        let doing = "allocating page-locked memory";
        let len = len.max(1);
        let _current = Current::of_context(context)?;
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: a context is current (`_current`); the memory is written below, before it is read.
        let memory = unsafe { result::malloc_host(len, flags) }.map_err(Error::driver(doing))?;
        let Some(pointer) = NonNull::new(memory.cast::<u8>()) else {
            return Err(Error::Driver { doing, reason: "its address is null".to_owned() });
        };
        // SAFETY: the allocation has this size.
        unsafe { pointer.write_bytes(0, len) };
        let mut pinned = Self { memory: pointer, len, address: 0, context: ManuallyDrop::new(context.clone()) };
        // SAFETY: `memory` is page-locked and mapped, by the flags above.
        let mapped = unsafe { sys::cuMemHostGetDevicePointer_v2(&mut pinned.address, memory, 0) };
        mapped.result().map_err(Error::driver("mapping page-locked memory"))?;
        Ok(pinned)
    }

    /// Its address on the device.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its address on the host, which the driver aligns to pages.
    pub fn pointer(&self) -> NonNull<u8> {
        self.memory
    }

    /// Its bytes.
    ///
    /// # Safety
    /// While they are borrowed, nothing that a stream runs accesses them.
    pub unsafe fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the allocation has this size and is initialized; it is borrowed mutably, and no stream accesses it:
        // see `# Safety`.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.len) }
    }

    /// The context that it belongs to.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        let current = Current::of_context(&self.context);
        // What is still executing may access it. If synchronizing fails, as it does while a stream is captured, the
        // memory is leaked.
        if current.is_ok() && result::ctx::synchronize().is_ok() {
            // SAFETY: the memory comes from `malloc_host`, and the device has finished all calls of this context.
            let _freed = unsafe { result::free_host(self.memory.as_ptr().cast()) };
        }
        // cudarc makes a context current to release its last reference, and leaves it so. Here it already is, and
        // `current` restores the one before. SAFETY: `self.context` is not used again.
        unsafe { ManuallyDrop::drop(&mut self.context) };
        drop(current);
    }
}
