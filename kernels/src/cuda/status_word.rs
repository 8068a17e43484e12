//! A status word in memory that host and device share, so that the host reads it without a copy.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::CudaContext;

use super::error::Error;
use super::pinned_memory::PinnedMemory;
use super::status::Status;

/// A status word for the calls of a context: page-locked host memory that the device writes, so that reading it needs
/// neither a copy nor a synchronization.
///
/// A call's finding is visible at the latest when its stream has been synchronized. The word keeps the first finding
/// until it is cleared.
#[derive(Debug)]
pub struct StatusWord(PinnedMemory);

impl StatusWord {
    /// A status word without a finding.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn new(context: &Arc<CudaContext>) -> Result<Self, Error> {
        PinnedMemory::new(context, size_of::<AtomicU64>()).map(Self)
    }

    /// The word's address on the device, for calls with raw addresses.
    pub fn address(&self) -> u64 {
        self.0.address()
    }

    /// The context that the word belongs to.
    pub fn context(&self) -> &Arc<CudaContext> {
        self.0.context()
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
        // SAFETY: the memory has this size, aligned to pages, and lives as long as `self`; both host and device access it
        // atomically.
        unsafe { self.0.pointer().cast().as_ref() }
    }
}
