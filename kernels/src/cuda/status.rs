//! The status word: the error that a kernel has found on the device, in memory that the host reads without a copy.
//!
//! Reading lengths and page tables on the host would cost a synchronization, so the kernels check them. They skip what
//! is wrong and record the first finding in a word that keeps it until the caller zeroes it. This is the one difference
//! from the CPU, where an error is known before the first byte is written.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::CudaContext;
use thiserror::Error;

use super::error::Error as LaunchError;
use super::pinned_memory::PinnedMemory;

/// Bits of the token; larger ones are reported as the largest.
const TOKEN_BITS: u32 = 32;

/// Bits of the batch; larger ones are reported as the largest.
const BATCH_BITS: u32 = 28;

/// The first finding of all calls since the word was zeroed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{finding} at batch {batch}, token {token}")]
pub struct Status {
    /// What is wrong.
    pub finding: Finding,
    /// The sequence; the batch size where the sum over all sequences is wrong.
    pub batch: u32,
    /// The token, counted in its sequence; 0 where a length is wrong.
    pub token: u32,
}

/// What the kernels check. With wrong lengths a launch moves nothing; a token with a wrong slot is skipped alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
#[repr(u8)]
pub enum Finding {
    /// `seqstarts` does not start at 0, or falls.
    #[error("seqstarts does not start at 0 or falls")]
    Seqstarts = 1,
    /// `start_pos` is negative.
    #[error("start_pos is negative")]
    StartPos = 2,
    /// There are more tokens than `query`, `current_key` or `key` has rows.
    #[error("more tokens than rows of query, current_key or key")]
    TooManyTokens = 3,
    /// There are fewer tokens than rows, and the call asked for exact rows. They are moved all the same.
    #[error("fewer tokens than rows of query, current_key or key")]
    TooFewTokens = 4,
    /// A token's page is past the end of its row of `cachestarts`.
    #[error("more pages than a row of cachestarts has")]
    TooManyPages = 5,
    /// A token's slot is outside the cache.
    #[error("cachestarts leads to a slot outside the cache")]
    Slot = 6,
    /// `kvstarts` does not start at 0, or falls.
    #[error("kvstarts does not start at 0 or falls")]
    Kvstarts = 7,
}

impl Status {
    /// Decodes a status word; `None` if nothing was found.
    pub fn from_word(word: u64) -> Option<Self> {
        let finding = match word >> (TOKEN_BITS + BATCH_BITS) {
            1 => Finding::Seqstarts,
            2 => Finding::StartPos,
            3 => Finding::TooManyTokens,
            4 => Finding::TooFewTokens,
            5 => Finding::TooManyPages,
            6 => Finding::Slot,
            7 => Finding::Kvstarts,
            _ => return None,
        };
        let batch = (word >> TOKEN_BITS) as u32 & ((1 << BATCH_BITS) - 1);
        Some(Self { finding, batch, token: word as u32 })
    }
}

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
    /// [`Error::Driver`](LaunchError::Driver).
    pub fn new(context: &Arc<CudaContext>) -> Result<Self, LaunchError> {
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
        // SAFETY: the memory has this size, aligned to pages, and lives as long as `self`; both host and device access
        // it atomically.
        unsafe { self.0.pointer().cast().as_ref() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_finding_batch_and_token() {
        assert_eq!(Status::from_word(0), None);
        let status = Status::from_word(6 << 60 | 0x123_4567 << 32 | 0x89ab_cdef).unwrap();
        assert_eq!(status, Status { finding: Finding::Slot, batch: 0x123_4567, token: 0x89ab_cdef });
        assert_eq!(
            Status { finding: Finding::Slot, batch: 3, token: 70 }.to_string(),
            "cachestarts leads to a slot outside the cache at batch 3, token 70"
        );
    }
}
