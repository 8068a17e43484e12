//! Blocks in this process' memory.

use std::sync::{Mutex, MutexGuard, PoisonError};

use kvcache_manager::{Block, BlockKey, BlockStore, StoreError, Usage};
use lru::LruCache;

/// Blocks in memory, of so many bytes in all; the least recently used ones are evicted.
#[derive(Debug)]
pub struct HostTier {
    capacity: u64,
    held: Mutex<Held>,
}

#[derive(Debug)]
struct Held {
    blocks: LruCache<BlockKey, Block>,
    nbytes: u64,
    evicted: u64,
}

impl HostTier {
    /// A tier that holds at most `nbytes` bytes of blocks; what it needs to find them, some 150 bytes a block, is beside
    /// that.
    pub fn new(nbytes: u64) -> Self {
        let held = Held { blocks: LruCache::unbounded(), nbytes: 0, evicted: 0 };
        Self { capacity: nbytes, held: Mutex::new(held) }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a block, the most recently used from now on. Gives the blocks that were evicted for it.
    pub(crate) fn insert(&self, key: BlockKey, block: Block) -> Result<Vec<(BlockKey, Block)>, StoreError> {
        let len = block.nbytes();
        if len > self.capacity {
            return Err(StoreError::Capacity { len, capacity: self.capacity });
        }
        let mut held = self.held();
        let mut evicted = Vec::new();
        if held.blocks.get(&key).is_some() {
            return Ok(evicted);
        }
        while held.nbytes + len > self.capacity {
            let Some((key, block)) = held.blocks.pop_lru() else { break };
            held.nbytes -= block.nbytes();
            held.evicted += 1;
            evicted.push((key, block));
        }
        held.blocks.push(key, block);
        held.nbytes += len;
        Ok(evicted)
    }

    /// Whether a block is here.
    pub(crate) fn has(&self, key: &BlockKey) -> bool {
        self.held().blocks.contains(key)
    }

    /// Makes the first block of a chain the most recently used, so that the last is evicted first.
    pub(crate) fn touch_chain(&self, keys: &[BlockKey]) {
        let mut held = self.held();
        keys.iter().rev().for_each(|key| {
            held.blocks.promote(key);
        });
    }
}

impl BlockStore for HostTier {
    fn get(&self, key: &BlockKey) -> Result<Option<Block>, StoreError> {
        Ok(self.held().blocks.get(key).cloned())
    }

    fn put(&self, key: &BlockKey, block: Block) -> Result<(), StoreError> {
        self.insert(*key, block).map(drop)
    }

    fn contains(&self, key: &BlockKey) -> Result<bool, StoreError> {
        Ok(self.has(key))
    }

    fn delete(&self, key: &BlockKey) -> Result<(), StoreError> {
        let mut held = self.held();
        if let Some(block) = held.blocks.pop(key) {
            held.nbytes -= block.nbytes();
        }
        Ok(())
    }

    fn get_chain(&self, keys: &[BlockKey]) -> (Vec<Block>, Option<StoreError>) {
        let blocks: Vec<_> = {
            let held = self.held();
            keys.iter().map_while(|key| held.blocks.peek(key).cloned()).collect()
        };
        self.touch_chain(&keys[..blocks.len()]);
        (blocks, None)
    }

    fn usage(&self) -> Usage {
        let held = self.held();
        Usage { blocks: Some(held.blocks.len() as u64), nbytes: Some(held.nbytes), evicted: held.evicted }
    }
}
