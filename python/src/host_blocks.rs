//! Blocks of `InfLlm` in this process' memory, without a bound.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use kvcache_manager::{BlockKey, BlockStore, StoreError};

#[derive(Debug, Default)]
pub struct HostBlocks(Mutex<HashMap<BlockKey, Bytes>>);

impl HostBlocks {
    fn with<R>(&self, used: impl FnOnce(&mut HashMap<BlockKey, Bytes>) -> R) -> Result<R, StoreError> {
        Ok(used(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl BlockStore for HostBlocks {
    fn get(&self, key: &BlockKey) -> Result<Option<Bytes>, StoreError> {
        self.with(|blocks| blocks.get(key).cloned())
    }

    fn put(&self, key: &BlockKey, block: Bytes) -> Result<(), StoreError> {
        self.with(|blocks| drop(blocks.insert(*key, block)))
    }

    fn contains(&self, key: &BlockKey) -> Result<bool, StoreError> {
        self.with(|blocks| blocks.contains_key(key))
    }

    fn delete(&self, key: &BlockKey) -> Result<(), StoreError> {
        self.with(|blocks| drop(blocks.remove(key)))
    }
}
