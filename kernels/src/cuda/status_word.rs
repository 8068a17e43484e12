//! A status word in memory that host and device share, so that the host reads it without a copy.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::{CudaContext, result, sys};

use super::context::Current;
use super::error::Error;
use super::status::Status;

/// A status word for the calls of a context: page-locked host memory that the device writes, so that reading it needs
/// neither a copy nor a synchronization.
///
/// A call's finding is visible at the latest when its stream has been synchronized. The word keeps the first finding
/// until it is cleared.
#[derive(Debug)]
pub struct StatusWord {
    word: NonNull<AtomicU64>,
    address: u64,
    /// Dropped in [`Drop`], while it is current.
    context: ManuallyDrop<Arc<CudaContext>>,
}

// SAFETY: the word is only accessed atomically; a `CudaContext` can be used from every thread.
unsafe impl Send for StatusWord {}
// SAFETY: as above.
unsafe impl Sync for StatusWord {}

impl StatusWord {
    /// A status word without a finding.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn new(context: &Arc<CudaContext>) -> Result<Self, Error> {
        let _current = Current::of_context(context)?;
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: a context is current (`_current`); the memory is written below, before it is read.
        let memory = unsafe { result::malloc_host(size_of::<AtomicU64>(), flags) };
        let memory = memory.map_err(Error::driver("allocating a status word"))?;
        let Some(word) = NonNull::new(memory.cast::<AtomicU64>()) else {
            return Err(Error::Driver { doing: "allocating a status word", reason: "its address is null".to_owned() });
        };
        // SAFETY: the allocation has this size, and the driver aligns page-locked memory to pages.
        unsafe { word.write(AtomicU64::new(0)) };
        let mut status = Self { word, address: 0, context: ManuallyDrop::new(context.clone()) };
        // SAFETY: `memory` is page-locked and mapped, by the flags above.
        let mapped = unsafe { sys::cuMemHostGetDevicePointer_v2(&mut status.address, memory, 0) };
        mapped.result().map_err(Error::driver("mapping a status word"))?;
        Ok(status)
    }

    /// The word's address on the device, for calls with raw addresses.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The context that the word belongs to.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// The first finding, of the calls that the device has executed so far. Does not wait.
    pub fn get(&self) -> Option<Status> {
        Status::from_word(self.word().load(Ordering::Acquire))
    }

    /// Gives the first finding, and clears it. Calls that are still executing may report again.
    pub fn take(&self) -> Option<Status> {
        // The device's atomics do not synchronize with the host's. It writes only a word that is 0, so what is
        // overwritten here is the finding that is returned.
        let found = self.get();
        if found.is_some() {
            self.word().store(0, Ordering::Release);
        }
        found
    }

    fn word(&self) -> &AtomicU64 {
        // SAFETY: the memory is freed in `drop` only, and both host and device access it atomically.
        unsafe { self.word.as_ref() }
    }
}

impl Drop for StatusWord {
    fn drop(&mut self) {
        let current = Current::of_context(&self.context);
        // Calls that are still executing may write the word. If synchronizing fails, as it does while a stream is
        // captured, the word is leaked.
        if current.is_ok() && result::ctx::synchronize().is_ok() {
            // SAFETY: the memory comes from `malloc_host`, and the device has finished all calls of this context.
            let _freed = unsafe { result::free_host(self.word.as_ptr().cast::<c_void>()) };
        }
        // cudarc makes a context current to release its last reference, and leaves it so. Here it already is, and
        // `current` restores the one before. SAFETY: `self.context` is not used again.
        unsafe { ManuallyDrop::drop(&mut self.context) };
        drop(current);
    }
}
