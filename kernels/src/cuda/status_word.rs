//! A status word that the host reads without asking the device.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::{CudaContext, result, sys};

use super::context::Current;
use super::error::Error;
use super::status::Status;

/// A status word for the calls of a context: page-locked memory of the host that the device writes, so that looking at it
/// costs neither a copy nor a wait.
///
/// What a call found is seen at the latest when its stream has been synchronized. The word keeps the first finding until
/// it is cleared.
#[derive(Debug)]
pub struct StatusWord {
    word: NonNull<AtomicU64>,
    address: u64,
    /// Dropped by [`Drop`].
    context: ManuallyDrop<Arc<CudaContext>>,
}

// SAFETY: the word is only accessed atomically; its context can be used from every thread.
unsafe impl Send for StatusWord {}
// SAFETY: as above.
unsafe impl Sync for StatusWord {}

impl StatusWord {
    /// A word that says that nothing was wrong.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn new(context: &Arc<CudaContext>) -> Result<Self, Error> {
        let _current = Current::of_context(context)?;
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: a context is current; the memory is written below, before it is read.
        let memory = unsafe { result::malloc_host(size_of::<AtomicU64>(), flags) };
        let memory = memory.map_err(Error::driver("allocating a status word"))?;
        let Some(word) = NonNull::new(memory.cast::<AtomicU64>()) else {
            return Err(Error::Driver { doing: "allocating a status word", reason: "it is nowhere".to_owned() });
        };
        // SAFETY: the memory has been made with this size, and memory of the driver is aligned for every type.
        unsafe { word.write(AtomicU64::new(0)) };
        let mut status = Self { word, address: 0, context: ManuallyDrop::new(context.clone()) };
        // SAFETY: the memory is page-locked and mapped.
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

    /// What calls have found first, as far as the device has come. Does not wait for it.
    pub fn get(&self) -> Option<Status> {
        Status::from_word(self.word().load(Ordering::Acquire))
    }

    /// The same, and forgets it. Of calls that are not through a later finding may still come.
    pub fn take(&self) -> Option<Status> {
        // The device may write meanwhile, which the host's atomics do not see; a word that is replaced is one that was said.
        let found = self.get();
        if found.is_some() {
            self.word().store(0, Ordering::Release);
        }
        found
    }

    fn word(&self) -> &AtomicU64 {
        // SAFETY: the memory lives as long as this, and everybody accesses it atomically.
        unsafe { self.word.as_ref() }
    }
}

impl Drop for StatusWord {
    fn drop(&mut self) {
        let current = Current::of_context(&self.context);
        // Calls that are not through may still write the word. If the device cannot be waited for, because a stream is
        // captured, say, the word stays where it is.
        if current.is_ok() && result::ctx::synchronize().is_ok() {
            // SAFETY: the memory comes from `malloc_host`, and nothing of this context uses it any more.
            let _freed = unsafe { result::free_host(self.word.as_ptr().cast::<c_void>()) };
        }
        // The last user of a context makes it current and leaves it so, as cudarc has it: here it is, and is put back.
        // SAFETY: the context is not used again.
        unsafe { ManuallyDrop::drop(&mut self.context) };
        drop(current);
    }
}
