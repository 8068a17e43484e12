//! A store in memory that counts, and fails on request.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use kvcache_manager::{Block, BlockKey, BlockKind, BlockStore, StoreError};

#[derive(Debug, Default)]
pub struct BlockMap {
    pub blocks: Mutex<HashMap<BlockKey, Bytes>>,
    gets: AtomicUsize,
    /// Calls of `put` that succeed before all fail, less one; 0: none fails; `usize::MAX`: the next one panics.
    pub puts_left: AtomicUsize,
}

impl BlockMap {
    pub fn gets(&self) -> usize {
        self.gets.load(Ordering::Relaxed)
    }

    pub fn len(&self) -> usize {
        self.blocks.lock().unwrap().len()
    }

    pub fn count(&self, kind: BlockKind) -> usize {
        let blocks = self.blocks.lock().unwrap();
        blocks.iter().filter(|(key, bytes)| Block::verify(key, (*bytes).clone()).unwrap().kind() == kind).count()
    }
}

impl BlockStore for BlockMap {
    fn get(&self, key: &BlockKey) -> Result<Option<Block>, StoreError> {
        self.gets.fetch_add(1, Ordering::Relaxed);
        let bytes = self.blocks.lock().unwrap().get(key).cloned();
        Ok(bytes.map(|bytes| Block::verify(key, bytes)).transpose()?)
    }

    fn put(&self, key: &BlockKey, block: Block) -> Result<(), StoreError> {
        match self.puts_left.load(Ordering::Relaxed) {
            0 => {}
            usize::MAX => panic!("injected"),
            1 => return Err(StoreError::Failed("injected".into())),
            left => self.puts_left.store(left - 1, Ordering::Relaxed),
        }
        let kind = block.kind();
        let before = self.blocks.lock().unwrap().insert(*key, block.parts().concat().into());
        assert!(before.is_none() || kind == BlockKind::Prefix, "a key of one sequence is used once");
        Ok(())
    }

    fn contains(&self, key: &BlockKey) -> Result<bool, StoreError> {
        Ok(self.blocks.lock().unwrap().contains_key(key))
    }

    fn delete(&self, key: &BlockKey) -> Result<(), StoreError> {
        self.blocks.lock().unwrap().remove(key);
        Ok(())
    }
}
