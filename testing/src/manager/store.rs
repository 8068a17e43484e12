//! A store for tests that does everything wrong, on request.

use std::collections::HashMap;
use std::sync::Mutex;

use bytes::Bytes;
use kvcache_conformance::random::Unstructured;
use kvcache_manager::{Block, BlockKey, BlockStore, StoreError};

/// Blocks in memory. A faulty store fails, loses, cuts and alters blocks, gives those of other keys, and says that it
/// has what it has not.
#[derive(Debug)]
pub struct Store {
    pub is_faulty: bool,
    state: Mutex<(HashMap<BlockKey, Bytes>, Unstructured)>,
}

impl Store {
    pub fn new(is_faulty: bool, seed: u64) -> Self {
        Self { is_faulty, state: Mutex::new((HashMap::new(), Unstructured::seed(seed))) }
    }

    /// What the state gives, unless the store fails this time.
    fn with<T>(
        &self,
        act: impl FnOnce(&mut HashMap<BlockKey, Bytes>, Option<(usize, usize)>) -> T,
    ) -> Result<T, StoreError> {
        let (blocks, entropy) = &mut *self.state.lock().unwrap();
        let fault = (self.is_faulty && entropy.one_in(4)).then(|| (entropy.below(5), entropy.below(1 << 16)));
        match fault {
            Some((0, _)) => Err(StoreError::Failed("injected".into())),
            _ => Ok(act(blocks, fault)),
        }
    }
}

impl BlockStore for Store {
    fn get(&self, key: &BlockKey) -> Result<Option<Block>, StoreError> {
        let bytes = self.with(|blocks, fault| {
            let block = blocks.get(key)?;
            match fault {
                None => Some(block.clone()),
                Some((1, at)) => Some(block.slice(..at % block.len())),
                Some((2, at)) => {
                    let mut altered = block.to_vec();
                    altered[at % block.len()] ^= 1 << (at % 8);
                    Some(altered.into())
                }
                Some((3, at)) => blocks.values().nth(at % blocks.len()).cloned(),
                Some(_) => None,
            }
        })?;
        Ok(bytes.map(|bytes| Block::verify(key, bytes)).transpose()?)
    }

    fn put(&self, key: &BlockKey, block: Block) -> Result<(), StoreError> {
        let block = Bytes::from(block.parts().concat());
        self.with(|blocks, fault| match fault {
            None => drop(blocks.insert(*key, block)),
            Some((1, at)) => drop(blocks.insert(*key, block.slice(..at % block.len()))),
            Some(_) => {}
        })
    }

    fn contains(&self, key: &BlockKey) -> Result<bool, StoreError> {
        self.with(|blocks, fault| fault.is_some() || blocks.contains_key(key))
    }

    fn delete(&self, key: &BlockKey) -> Result<(), StoreError> {
        self.with(|blocks, fault| {
            if fault.is_none() {
                blocks.remove(key);
            }
        })
    }
}
