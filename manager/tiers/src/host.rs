//! Blocks in this process' memory.

use std::sync::{Mutex, MutexGuard, PoisonError};

use kvcache_manager::{Block, BlockKey, BlockStore, StoreError, Usage};

use crate::held::Held;

/// Blocks in memory, of so many bytes in all; the least recently used ones are evicted.
#[derive(Debug)]
pub struct HostTier {
    /// The blocks, and how many were evicted.
    state: Mutex<(Held<Block>, u64)>,
}

impl HostTier {
    /// A tier that holds at most `nbytes` bytes of blocks; what it needs to find them, some 150 bytes a block, is
    /// beside that.
    pub fn new(nbytes: u64) -> Self {
        Self { state: Mutex::new((Held::new(nbytes), 0)) }
    }

    fn state(&self) -> MutexGuard<'_, (Held<Block>, u64)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a block, the most recently used from now on. Gives the blocks that were evicted for it.
    pub(crate) fn insert(&self, key: BlockKey, block: Block) -> Result<Vec<(BlockKey, Block)>, StoreError> {
        let (held, evicted) = &mut *self.state();
        let len = block.nbytes();
        held.check(len)?;
        if held.peek(&key).is_some() {
            held.touch(&key);
            return Ok(Vec::new());
        }
        held.insert(key, block, len);
        let gone: Vec<_> = std::iter::from_fn(|| held.pop_above()).map(|(key, block, _)| (key, block)).collect();
        *evicted += gone.len() as u64;
        Ok(gone)
    }

    /// Whether a block is here.
    pub(crate) fn has(&self, key: &BlockKey) -> bool {
        self.state().0.peek(key).is_some()
    }

    /// Makes the first block of a chain the most recently used, so that the last is evicted first.
    pub(crate) fn touch_chain(&self, keys: &[BlockKey]) {
        self.state().0.touch_chain(keys);
    }
}

impl BlockStore for HostTier {
    fn get(&self, key: &BlockKey) -> Result<Option<Block>, StoreError> {
        Ok(self.get_chain(&[*key]).0.pop())
    }

    fn put(&self, key: &BlockKey, block: Block) -> Result<(), StoreError> {
        self.insert(*key, block).map(drop)
    }

    fn contains(&self, key: &BlockKey) -> Result<bool, StoreError> {
        Ok(self.has(key))
    }

    fn delete(&self, key: &BlockKey) -> Result<(), StoreError> {
        self.state().0.remove(key);
        Ok(())
    }

    fn get_chain(&self, keys: &[BlockKey]) -> (Vec<Block>, Option<StoreError>) {
        let blocks: Vec<_> = {
            let (held, _) = &*self.state();
            keys.iter().map_while(|key| held.peek(key).cloned()).collect()
        };
        self.touch_chain(&keys[..blocks.len()]);
        (blocks, None)
    }

    fn usage(&self) -> Usage {
        let (held, evicted) = &*self.state();
        held.usage(*evicted)
    }
}
