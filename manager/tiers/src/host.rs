//! Blocks in this process' memory.

use std::sync::{Mutex, MutexGuard, PoisonError};

use kvcache_manager::{Block, BlockKey, BlockKind, BlockStore, StoreError, Usage};

use crate::lru_index::LruIndex;

/// Blocks in memory, of that many bytes in all; the least recently used ones are evicted. By itself it keeps private
/// blocks, of which there is no other copy, and refuses more when it is full of them; in [`Tiers`](crate::Tiers) they
/// go on to the next tier.
#[derive(Debug)]
pub struct HostTier {
    /// The blocks, and how many were evicted.
    state: Mutex<(LruIndex<Block>, u64)>,
}

impl HostTier {
    /// A tier that holds at most `nbytes` bytes of blocks; what it needs to find them, some 150 bytes a block, is
    /// beside that.
    pub fn new(nbytes: u64) -> Self {
        Self { state: Mutex::new((LruIndex::new(nbytes), 0)) }
    }

    fn state(&self) -> MutexGuard<'_, (LruIndex<Block>, u64)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a block, the most recently used from now on. What is evicted for it and has no other copy is passed on;
    /// what is not taken there stays, the next to be evicted, and where it has no room beside this block, this one is
    /// refused.
    ///
    /// # Errors
    /// [`StoreError::Capacity`], [`StoreError::Full`].
    pub(crate) fn insert(
        &self,
        new: BlockKey,
        block: Block,
        mut pass_on: impl FnMut(BlockKey, Block) -> bool,
    ) -> Result<(), StoreError> {
        {
            let (held, _) = &mut *self.state();
            let len = block.nbytes();
            held.check(len)?;
            if held.peek(&new).is_some() {
                held.touch(&new);
                return Ok(());
            }
            held.insert(new, block, len);
        }
        let (mut stay, mut kept) = (Vec::new(), 0);
        let mut inserted = Ok(());
        loop {
            let popped = self.state().0.pop_above(kept);
            let Some((key, block, len)) = popped else { break };
            if key == new {
                inserted = Err(StoreError::Full { nbytes: kept, capacity: self.state().0.capacity });
            } else if block.kind() == BlockKind::Private && !pass_on(key, block.clone()) {
                kept += len;
                stay.push((key, block, len));
            } else {
                self.state().1 += 1;
            }
        }
        let (held, _) = &mut *self.state();
        stay.into_iter().rev().for_each(|(key, block, len)| held.put_back(key, block, len));
        inserted
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
        self.insert(*key, block, |_, _| false)
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
