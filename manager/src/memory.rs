//! Memory whose rows a manager moves.

use kvcache_kernels::{CacheRows, RowCopy};

use crate::error::{Error, MemoryError};
use crate::spec::CacheSpec;

/// The memory of a cache and its scales. [`CacheSpec::rows`] says where the bytes of its slots are.
pub trait CacheMemory {
    /// Copies rows of slots, one copy after the other: keys and values of all layers, and their scales.
    ///
    /// # Errors
    /// Whatever the memory has to say. Rows that copies write may have changed then, others may not.
    fn copy_rows(&mut self, copies: &[RowCopy]) -> Result<(), MemoryError>;
}

/// A cache in memory of this process, borrowed as bytes.
#[derive(Debug)]
pub struct HostMemory<'a> {
    rows: CacheRows,
    cache: &'a mut [u8],
    scale: &'a mut [u8],
}

impl<'a> HostMemory<'a> {
    /// The bytes of `cache` and of `scale`, which is empty without quantization. It costs nothing to make one for each
    /// step.
    ///
    /// # Errors
    /// [`Error::MemoryLength`].
    pub fn new(spec: &CacheSpec, cache: &'a mut [u8], scale: &'a mut [u8]) -> Result<Self, Error> {
        let rows = *spec.rows();
        for (memory, expected, got) in
            [("cache", rows.cache_len(), cache.len()), ("scale", rows.scale_len(), scale.len())]
        {
            if got != expected {
                return Err(Error::MemoryLength { memory, expected, got });
            }
        }
        Ok(Self { rows, cache, scale })
    }
}

impl CacheMemory for HostMemory<'_> {
    fn copy_rows(&mut self, copies: &[RowCopy]) -> Result<(), MemoryError> {
        Ok(self.rows.copy(self.cache, self.scale, copies)?)
    }
}
