//! A store for tests that counts, fails on request, and does everything wrong if it is told to.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use kvcache_conformance::random::Unstructured;
use kvcache_manager::{Block, BlockKey, BlockKind, BlockStore, StoreError};

/// Blocks in memory.
#[derive(Debug, Default)]
pub struct Store {
    pub blocks: Mutex<HashMap<BlockKey, Bytes>>,
    gets: AtomicUsize,
    /// Calls of `put` that succeed before all fail, less one; 0: none fails; `usize::MAX`: the next one panics.
    pub puts_left: AtomicUsize,
    faults: Option<Mutex<Unstructured>>,
}

impl Store {
    /// A store that fails, loses, cuts and alters blocks, gives those of other keys, and says that it has what it has
    /// not.
    pub fn faulty(seed: u64) -> Self {
        Self { faults: Some(Mutex::new(Unstructured::seed(seed))), ..Self::default() }
    }

    pub fn is_faulty(&self) -> bool {
        self.faults.is_some()
    }

    pub fn gets(&self) -> usize {
        self.gets.load(Ordering::Relaxed)
    }

    pub fn num_blocks(&self) -> usize {
        self.blocks.lock().unwrap().len()
    }

    pub fn count(&self, kind: BlockKind) -> usize {
        let blocks = self.blocks.lock().unwrap();
        blocks.iter().filter(|(key, bytes)| Block::verify(key, (*bytes).clone()).unwrap().kind() == kind).count()
    }

    /// What goes wrong in a call, if anything does: which fault, and where.
    fn fault(&self) -> Result<Option<(usize, usize)>, StoreError> {
        let Some(faults) = &self.faults else { return Ok(None) };
        let mut entropy = faults.lock().unwrap();
        match entropy.one_in(4).then(|| (entropy.below(5), entropy.below(1 << 16))) {
            Some((0, _)) => Err(StoreError::Failed("injected".into())),
            fault => Ok(fault),
        }
    }
}

impl BlockStore for Store {
    fn get(&self, key: &BlockKey) -> Result<Option<Block>, StoreError> {
        self.gets.fetch_add(1, Ordering::Relaxed);
        let (fault, blocks) = (self.fault()?, self.blocks.lock().unwrap());
        let Some(block) = blocks.get(key) else { return Ok(None) };
        let block = match fault.filter(|_| !block.is_empty()) {
            None => block.clone(),
            Some((1, at)) => block.slice(..at % block.len()),
            Some((2, at)) => {
                let mut altered = block.to_vec();
                altered[at % block.len()] ^= 1 << (at % 8);
                altered.into()
            }
            Some((3, at)) => blocks.values().nth(at % blocks.len()).unwrap().clone(),
            Some(_) => return Ok(None),
        };
        Ok(Some(Block::verify(key, block)?))
    }

    fn put(&self, key: &BlockKey, block: Block) -> Result<(), StoreError> {
        match self.puts_left.load(Ordering::Relaxed) {
            0 => {}
            usize::MAX => panic!("injected"),
            1 => return Err(StoreError::Failed("injected".into())),
            left => self.puts_left.store(left - 1, Ordering::Relaxed),
        }
        let (kind, bytes) = (block.kind(), Bytes::from(block.parts().concat()));
        let bytes = match self.fault()? {
            None => bytes,
            Some((1, at)) => bytes.slice(..at % bytes.len()),
            Some(_) => return Ok(()),
        };
        let before = self.blocks.lock().unwrap().insert(*key, bytes.clone());
        // Clones of a manager store the same rows.
        let may_differ = kind == BlockKind::Prefix || self.is_faulty();
        assert!(may_differ || before.is_none_or(|before| before == bytes), "a key of one sequence is used once");
        Ok(())
    }

    fn contains(&self, key: &BlockKey) -> Result<bool, StoreError> {
        Ok(self.fault()?.is_some() || self.blocks.lock().unwrap().contains_key(key))
    }

    fn delete(&self, key: &BlockKey) -> Result<(), StoreError> {
        if self.fault()?.is_none() {
            self.blocks.lock().unwrap().remove(key);
        }
        Ok(())
    }
}
