//! A memory without bytes.

use kvcache_manager::{CacheMemory, MemoryError, Rope, Rotation, RowCopy};

/// Keeps the copies that it is asked for; has no other use.
#[derive(Debug, Default)]
pub struct Copies(pub Vec<RowCopy>);

impl CacheMemory for Copies {
    fn copy_rows(&mut self, copies: &[RowCopy]) -> Result<(), MemoryError> {
        self.0.extend_from_slice(copies);
        Ok(())
    }

    fn rotate_keys(&mut self, _: &[Rotation], _: &Rope) -> Result<(), MemoryError> {
        Err("there are no keys".into())
    }

    fn read_rows(&self, _: &[usize], _: &mut [u8]) -> Result<(), MemoryError> {
        Err("there are no rows".into())
    }

    fn write_rows(&mut self, _: &[usize], _: &[u8]) -> Result<(), MemoryError> {
        Err("there are no rows".into())
    }

    fn write_layer_rows(&mut self, _: usize, _: &[usize], _: &[u8]) -> Result<(), MemoryError> {
        Err("there are no rows".into())
    }
}
