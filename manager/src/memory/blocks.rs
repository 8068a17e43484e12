//! A manager's blocks in its store: their names, what is written and what is read.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::BytesMut;

use crate::error::Error;
use crate::memory::CacheMemory;
use crate::memory::block::{Block, BlockError, BlockKey, BlockKind};
use crate::memory::store::{BlockStore, StoreError};
use crate::session::cache;
use crate::spec::CacheSpec;

/// The rows of a block where a page is a single slot.
const BLOCK_ROWS: usize = 64;
/// The most bytes of blocks that were read which are kept for blocks that are written.
const MOST_KEPT: usize = 64 << 20;
/// The most keys of bad blocks that are remembered.
const MOST_BAD: usize = 1 << 16;

/// The blocks that a manager has written to its store and read from it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreStats {
    /// Blocks that were read and used.
    pub hits: u64,
    /// Reads that ended without a block, by reason: `absent`, `late`, `busy`, `failed`, `length`, `format`, `checksum`,
    /// `key`, `geometry`. The rows are computed again.
    pub misses: BTreeMap<&'static str, u64>,
    /// Bytes of their rows.
    pub bytes_read: u64,
    /// Blocks that were written.
    pub writes: u64,
    /// Blocks that could not be written, by reason: as `misses`, and `capacity`; `unread` where the memory failed.
    pub refused: BTreeMap<&'static str, u64>,
    /// Bytes of their rows.
    pub bytes_written: u64,
}

/// Rows that are to be stored as a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PendingOffload {
    /// The copies of the queue that are made before it is stored.
    pub(crate) behind: usize,
    pub(crate) key: BlockKey,
    pub(crate) kind: BlockKind,
    pub(crate) slots: Vec<usize>,
}

/// How many rows a block has, unless it is a sequence's last.
pub(crate) fn rows_of_a_block(spec: &CacheSpec) -> usize {
    if spec.page_size() > 1 { spec.page_size() } else { BLOCK_ROWS }
}

/// Makes names that no other manager gives, in this process, in another or in a copy of this one.
#[derive(Debug)]
struct Names {
    random: [u8; 16],
    instance: u64,
    next: u64,
}

impl Names {
    fn new(random: [u8; 16]) -> Self {
        static INSTANCES: AtomicU64 = AtomicU64::new(0);
        Self { random, instance: INSTANCES.fetch_add(1, Ordering::Relaxed), next: 0 }
    }
}

impl Clone for Names {
    fn clone(&self) -> Self {
        Self::new(self.random)
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Blocks {
    pub(crate) store: Arc<dyn BlockStore>,
    names: Names,
    row_len: usize,
    /// Rows of sequences that are swapped out, which the store has refused: nobody else has them.
    refused: HashMap<BlockKey, Block>,
    /// Keys under which the store has given something else, perhaps a proxy's error page. It stays there until a block
    /// replaces it.
    bad: HashSet<BlockKey>,
    /// The answers to [`find`](Self::find) since a step was committed, none for a block that is missing.
    found: HashMap<BlockKey, Option<Block>>,
    /// Memory of blocks that were read, for those that are written.
    kept: Vec<BytesMut>,
    pub(crate) stats: StoreStats,
}

/// Digest of the specification: the root keys of all salts follow from it.
pub(crate) fn seed(spec: &CacheSpec) -> BlockKey {
    // The number of the rule that names the later pages, and of what the bytes of rows mean.
    let text =
        serde_json::json!(["kvcache-block 5", cache::metadata(spec), spec.page_size(), spec.computed_by.as_str()]);
    BlockKey::digest([text.to_string().as_bytes()])
}

/// The keys of the full pages of tokens that follow a key, each with its number of rows.
pub(crate) fn chain(mut key: BlockKey, tokens: &[u32], page_size: usize) -> impl Iterator<Item = (BlockKey, usize)> {
    tokens.chunks_exact(page_size).map(move |tokens| {
        key = key.followed_by(tokens);
        (key, page_size)
    })
}

impl Blocks {
    /// Blocks of at most `rows` rows.
    pub(crate) fn new(spec: &CacheSpec, rows: usize, store: Arc<dyn BlockStore>) -> Result<Self, Error> {
        let mut random = [0; 16];
        getrandom::fill(&mut random)?;
        let (names, row_len) = (Names::new(random), spec.bytes_per_token());
        store.expect_blocks(Block::len_with((rows as u64).saturating_mul(row_len as u64)));
        let (refused, bad, found, kept) = (HashMap::new(), HashSet::new(), HashMap::new(), Vec::new());
        Ok(Self { store, names, row_len, refused, bad, found, kept, stats: StoreStats::default() })
    }

    pub(crate) fn private_key(&mut self) -> BlockKey {
        let Names { random, instance, next } = &mut self.names;
        *next += 1;
        // A process that is a fork of this one continues with the same numbers.
        let numbers = [*instance, *next, u64::from(std::process::id())].map(u64::to_le_bytes);
        BlockKey::digest([&b"private"[..], random, numbers.as_flattened()])
    }

    /// Writes rows as a block, before they are overwritten. What the store refuses of a sequence that is swapped out
    /// stays here; else what fails is missed when it is read.
    pub(crate) fn write(&mut self, offload: &PendingOffload, memory: &(impl CacheMemory + ?Sized)) {
        let PendingOffload { key, kind, slots, .. } = offload;
        let len = slots.len() * self.row_len;
        // Zeros fill only new memory; kept memory that is longer is cut.
        let mut rows = self.kept.pop().unwrap_or_else(|| BytesMut::zeroed(len));
        rows.resize(len, 0);
        let refused = match memory.read_rows(slots, &mut rows) {
            Ok(()) => {
                let block = Block::new(*kind, key, rows.freeze(), self.row_len).map_err(StoreError::from);
                let put = block.and_then(|block| {
                    if self.bad.contains(key) {
                        self.store.delete(key)?;
                        self.bad.remove(key);
                    }
                    let put = self.store.put(key, block.clone());
                    if put.is_err() && *kind == BlockKind::Private {
                        self.refused.insert(*key, block);
                    }
                    put
                });
                put.err().map(|error| error.reason())
            }
            Err(_) => Some("unread"),
        };
        match refused {
            Some(reason) => *self.stats.refused.entry(reason).or_default() += 1,
            None => {
                (self.stats.writes, self.stats.bytes_written) =
                    (self.stats.writes + 1, self.stats.bytes_written + len as u64)
            }
        }
    }

    /// Offers refused blocks to the store again.
    ///
    /// # Errors
    /// [`Error::TiersFull`] if it still does not take all of it.
    pub(crate) fn put_refused(&mut self) -> Result<(), Error> {
        let mut reason = None;
        self.refused.retain(|key, block| {
            if reason.is_none() {
                reason = self.store.put(key, block.clone()).err().map(|error| error.reason());
            }
            reason.is_some()
        });
        let nbytes = self.refused.values().map(Block::nbytes).sum();
        reason.map_or(Ok(()), |reason| Err(Error::TiersFull { nbytes, reason }))
    }

    /// The blocks of a chain from here and from the store: up to the first that cannot be had, with the error.
    fn get_chain(&self, keys: &[BlockKey]) -> (Vec<Block>, Option<StoreError>) {
        let mut blocks = Vec::new();
        while let Some(rest) = keys.get(blocks.len()..).filter(|rest| !rest.is_empty()) {
            if let Some(block) = self.refused.get(&rest[0]) {
                blocks.push(block.clone());
                continue;
            }
            let in_store = rest.iter().position(|key| self.refused.contains_key(key)).unwrap_or(rest.len());
            let (mut found, error) = self.store.get_chain(&rest[..in_store]);
            found.truncate(in_store);
            let is_whole = found.len() == in_store;
            blocks.extend(found);
            if !is_whole {
                return (blocks, error);
            }
        }
        (blocks, None)
    }

    /// The blocks of a chain, each with its key and number of rows: up to the first that cannot be had, and why it
    /// cannot.
    pub(crate) fn read(&mut self, chain: &[(BlockKey, usize)]) -> (Vec<Block>, Option<&'static str>) {
        let keys: Vec<BlockKey> = chain.iter().map(|link| link.0).collect();
        let (mut blocks, mut error) = self.get_chain(&keys);
        let wrong = |(block, (key, rows)): (&Block, &(BlockKey, usize))| block.check(key, *rows, self.row_len).err();
        if let Some((i, bad)) = blocks.iter().zip(chain).map(wrong).enumerate().find_map(|(i, bad)| Some((i, bad?))) {
            blocks.truncate(i);
            error = Some(bad.into());
        }
        if !self.bad.is_empty() {
            keys[..blocks.len()].iter().for_each(|key| _ = self.bad.remove(key)); // it was the way there that was bad
        }
        if let (Some(StoreError::Bad(bad)), Some(key)) = (&error, keys.get(blocks.len()))
            && !matches!(bad, BlockError::Geometry)
            && self.bad.len() < MOST_BAD
        {
            self.bad.insert(*key);
        }
        let missed = error.as_ref().map(StoreError::reason).or((blocks.len() < chain.len()).then_some("absent"));
        self.stats.hits += blocks.len() as u64;
        self.stats.bytes_read += blocks.iter().map(|block| block.rows().len() as u64).sum::<u64>();
        if let Some(reason) = missed {
            *self.stats.misses.entry(reason).or_default() += 1;
        }
        (blocks, missed)
    }

    /// How many blocks of a prompt's chain can be had. They are kept for the next step, with the ones found before,
    /// as long as they are no more than `most`.
    pub(crate) fn find(&mut self, chain: &[(BlockKey, usize)], most: usize) -> usize {
        let mut blocks = self.kept_answers(chain);
        blocks.extend(self.read(&chain[blocks.len()..]).0);
        if self.found.len() + chain.len() > most {
            self.found.clear();
        }
        let found = blocks.len();
        let answers = blocks.into_iter().map(Some).chain([None]);
        self.found.extend(chain.iter().map(|link| link.0).zip(answers));
        found
    }

    /// The blocks of a prompt's chain for a step. What [`find`](Self::find) has asked for is not asked for again.
    pub(crate) fn take_found(&mut self, chain: &[(BlockKey, usize)]) -> Vec<Block> {
        let mut blocks = self.kept_answers(chain);
        if chain.get(blocks.len()).is_some_and(|(key, _)| !self.found.contains_key(key)) {
            blocks.extend(self.read(&chain[blocks.len()..]).0);
        }
        blocks
    }

    fn kept_answers(&self, chain: &[(BlockKey, usize)]) -> Vec<Block> {
        chain.iter().map_while(|(key, _)| self.found.get(key)?.clone()).collect()
    }

    /// Ends a step: later ones ask anew.
    pub(crate) fn forget_found(&mut self) {
        self.found.clear();
    }

    /// Deletes blocks that no sequence names any more.
    pub(crate) fn delete(&mut self, keys: impl IntoIterator<Item = BlockKey>) {
        for key in keys {
            self.refused.remove(&key);
            self.bad.remove(&key);
            // One that stays is of no harm but the room it takes.
            let _ = self.store.delete(&key);
        }
    }

    /// Keeps the memory of blocks for later ones, unless the store shares it.
    pub(crate) fn keep(&mut self, blocks: impl IntoIterator<Item = Block>) {
        for block in blocks {
            if let Ok(bytes) = block.into_rows().try_into_mut()
                && self.kept.len() * bytes.capacity() < MOST_KEPT
            {
                self.kept.push(bytes);
            }
        }
    }
}

pub(crate) fn load(block: &Block, slots: &[usize], memory: &mut (impl CacheMemory + ?Sized)) -> Result<(), Error> {
    memory.write_rows(slots, block.rows()).map_err(|source| Error::Memory { source })
}
