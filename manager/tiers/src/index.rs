//! Which blocks a folder holds, as far as this process knows, by the time of their last use.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, SystemTime};

use kvcache_manager::BlockKey;

/// Uses of one process are so far apart at least, so that their order can be read from the files' times.
const STEP: Duration = Duration::from_micros(1);

/// The blocks of a folder.
#[derive(Debug)]
pub(crate) struct Index {
    blocks: HashMap<BlockKey, Entry>,
    by_use: BTreeSet<(SystemTime, BlockKey)>,
    nbytes: u64,
    last: SystemTime,
}

/// A file's time of last use, and its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) used: SystemTime,
    pub(crate) len: u64,
}

impl Default for Index {
    fn default() -> Self {
        let (blocks, by_use) = (HashMap::new(), BTreeSet::new());
        Self { blocks, by_use, nbytes: 0, last: SystemTime::UNIX_EPOCH }
    }
}

impl Index {
    pub(crate) fn insert(&mut self, key: BlockKey, entry: Entry) {
        self.remove(&key);
        self.blocks.insert(key, entry);
        self.by_use.insert((entry.used, key));
        self.nbytes += entry.len;
    }

    pub(crate) fn remove(&mut self, key: &BlockKey) {
        if let Some(Entry { used, len }) = self.blocks.remove(key) {
            self.by_use.remove(&(used, *key));
            self.nbytes -= len;
        }
    }

    /// The times of as many uses now, the latest first; all are later than those that were given before.
    pub(crate) fn now(&mut self, uses: usize) -> impl Iterator<Item = SystemTime> + use<> {
        let first = SystemTime::now().max(self.last + STEP);
        let uses = u32::try_from(uses).unwrap_or(u32::MAX);
        self.last = first + STEP * uses;
        (0..uses).rev().map(move |i| first + STEP * i)
    }

    /// Takes out the least recently used block, if there are more bytes than `capacity`.
    pub(crate) fn pop_above(&mut self, capacity: u64) -> Option<(BlockKey, Entry)> {
        let (used, key) = self.by_use.first().copied().filter(|_| self.nbytes > capacity)?;
        let entry = Entry { used, len: self.blocks.get(&key)?.len };
        self.remove(&key);
        Some((key, entry))
    }

    /// Replaces all that was known before `since` by what a scan has found.
    pub(crate) fn replace(&mut self, found: Vec<(BlockKey, Entry)>, since: SystemTime) {
        let newer: Vec<_> = self.by_use.range((since, BlockKey::from_bytes([0; 32]))..).copied().collect();
        let newer: Vec<_> = newer.into_iter().filter_map(|(_, key)| Some((key, *self.blocks.get(&key)?))).collect();
        *self = Self { last: self.last, ..Self::default() };
        found.into_iter().chain(newer).for_each(|(key, entry)| self.insert(key, entry));
    }

    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }

    pub(crate) fn nbytes(&self) -> u64 {
        self.nbytes
    }
}
