//! What a tier holds, by key and in the order of use.

use kvcache_manager::{BlockKey, StoreError, Usage};
use lru::LruCache;

/// Values by key, of that many bytes in all at most; the least recently used go first.
#[derive(Debug)]
pub(crate) struct LruIndex<V> {
    pub(crate) capacity: u64,
    values: LruCache<BlockKey, (V, u64)>,
    nbytes: u64,
}

impl<V> LruIndex<V> {
    pub(crate) fn new(capacity: u64) -> Self {
        Self { capacity, values: LruCache::unbounded(), nbytes: 0 }
    }

    /// Checks that a block of that many bytes has room, once all others have gone.
    ///
    /// # Errors
    /// [`StoreError::Capacity`].
    pub(crate) fn check(&self, len: u64) -> Result<(), StoreError> {
        let capacity = self.capacity;
        if len <= capacity { Ok(()) } else { Err(StoreError::Capacity { len, capacity }) }
    }

    /// Adds a value of `len` bytes, the most recently used from now on, in the place of what has the key.
    pub(crate) fn insert(&mut self, key: BlockKey, value: V, len: u64) {
        self.remove(&key);
        self.values.push(key, (value, len));
        self.nbytes += len;
    }

    /// Adds a value of `len` bytes, the least recently used from now on.
    pub(crate) fn put_back(&mut self, key: BlockKey, value: V, len: u64) {
        self.insert(key, value, len);
        self.values.demote(&key);
    }

    pub(crate) fn remove(&mut self, key: &BlockKey) {
        if let Some((_, len)) = self.values.pop(key) {
            self.nbytes -= len;
        }
    }

    /// Takes the least recently used value, with its key and length, if there are more bytes than the capacity, `kept`
    /// that will be put back included.
    pub(crate) fn pop_above(&mut self, kept: u64) -> Option<(BlockKey, V, u64)> {
        let (key, (value, len)) =
            if self.nbytes + kept > self.capacity { self.values.pop_lru()? } else { return None };
        self.nbytes -= len;
        Some((key, value, len))
    }

    /// The value of a key, which is not used by that.
    pub(crate) fn peek(&self, key: &BlockKey) -> Option<&V> {
        self.values.peek(key).map(|(value, _)| value)
    }

    /// Makes the value of a key the most recently used.
    pub(crate) fn touch(&mut self, key: &BlockKey) {
        self.values.promote(key);
    }

    /// Makes the first value of a chain the most recently used, so that the last goes first.
    pub(crate) fn touch_chain(&mut self, keys: &[BlockKey]) {
        keys.iter().rev().for_each(|key| self.touch(key));
    }

    /// Takes all values, the least recently used first.
    pub(crate) fn drain(&mut self) -> Vec<(BlockKey, V, u64)> {
        self.nbytes = 0;
        std::iter::from_fn(|| self.values.pop_lru()).map(|(key, (value, len))| (key, value, len)).collect()
    }

    /// The least recently used.
    pub(crate) fn oldest(&self) -> Option<(&BlockKey, &V)> {
        self.values.peek_lru().map(|(key, (value, _))| (key, value))
    }

    pub(crate) fn nbytes(&self) -> u64 {
        self.nbytes
    }

    /// The usage of a tier that has evicted that many blocks.
    pub(crate) fn usage(&self, evicted: u64) -> Usage {
        Usage { blocks: Some(self.values.len() as u64), nbytes: Some(self.nbytes), evicted }
    }
}
