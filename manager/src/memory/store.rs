//! Where rows are kept outside the cache: blocks by key.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::memory::block::{Block, BlockError, BlockKey};

/// Why a store failed. To a manager each of these is a miss.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum StoreError {
    /// It did not answer in time.
    #[error("no answer within {0:?}")]
    Late(Duration),
    /// It was not asked: it has not answered an earlier request yet, or failed shortly before.
    #[error("not asked: an earlier call has not ended or has failed")]
    Busy,
    /// The block is larger than the store's capacity.
    #[error("a block of {len} bytes is larger than the capacity, {capacity} bytes")]
    Capacity {
        /// The block's bytes.
        len: u64,
        /// The most that it may hold.
        capacity: u64,
    },
    /// Blocks that have no other copy have filled it.
    #[error("no room: {nbytes} bytes of blocks that nobody else has, of a capacity of {capacity} bytes")]
    Full {
        /// Their bytes.
        nbytes: u64,
        /// The most that it may hold.
        capacity: u64,
    },
    /// It has other bytes than the block's.
    #[error(transparent)]
    Bad(#[from] BlockError),
    /// It failed.
    #[error(transparent)]
    Failed(#[from] Box<dyn std::error::Error + Send + Sync>),
}

impl StoreError {
    /// The reason in one word, as statistics name it; of a bad block what is wrong with it.
    pub fn reason(&self) -> &'static str {
        if let Self::Bad(error) = self { error.into() } else { self.into() }
    }
}

impl From<std::io::Error> for StoreError {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(error.into())
    }
}

/// The contents of a store, as far as it knows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// The number of blocks.
    pub blocks: Option<u64>,
    /// Their bytes.
    pub nbytes: Option<u64>,
    /// The blocks that it has removed to stay within its capacity.
    pub evicted: u64,
}

/// The length of the longest block that the callers of a store have, as they have said by
/// [`expect_blocks`](BlockStore::expect_blocks). What is longer under a key is none of their blocks, whoever has put it
/// there, and is not read. Where nobody has said anything it is 1 GiB.
#[derive(Debug, Default)]
pub struct LongestBlock(AtomicU64);

impl LongestBlock {
    const UNTOLD: u64 = 1 << 30;

    /// Notes that there are blocks of that many bytes.
    pub fn expect(&self, nbytes: u64) {
        self.0.fetch_max(nbytes, Ordering::Relaxed);
    }

    /// Its bytes.
    pub fn nbytes(&self) -> u64 {
        match self.0.load(Ordering::Relaxed) {
            0 => Self::UNTOLD,
            nbytes => nbytes,
        }
    }

    /// Checks that a block may have so many bytes.
    ///
    /// # Errors
    /// [`BlockError::Length`].
    pub fn check(&self, nbytes: u64) -> Result<(), BlockError> {
        if nbytes <= self.nbytes() { Ok(()) } else { Err(BlockError::Length) }
    }
}

/// Blocks of rows by key, outside the cache: in host memory, in files, on another machine. A block is immutable: what
/// is put under a key once is what any later `put` of the key has.
///
/// A manager calls it from one thread at a time, and other managers may at the same time. It waits for every answer:
/// a store that may be slow needs a deadline of its own, as `kvcache-tiers` adds to any store. A store that keeps bytes
/// writes [`Block::parts`] and returns what [`Block::verify`] makes of them. Whatever goes wrong is a miss.
pub trait BlockStore: fmt::Debug + Send + Sync {
    /// The block of a key, if it is there.
    fn get(&self, key: &BlockKey) -> Result<Option<Block>, StoreError>;

    /// Keeps a block, as long as there is room. One of [`BlockKind::Private`](crate::BlockKind::Private), of which
    /// there is no other copy, makes no room for others by going itself: a store that is full of such blocks refuses.
    ///
    /// # Errors
    /// [`StoreError`]; the block is not there then, or whole.
    fn put(&self, key: &BlockKey, block: Block) -> Result<(), StoreError>;

    /// Whether a block is there.
    fn contains(&self, key: &BlockKey) -> Result<bool, StoreError>;

    /// Removes a block, if it is there.
    fn delete(&self, key: &BlockKey) -> Result<(), StoreError>;

    /// The blocks of a chain, each of which needs all before it: up to the first that is missing.
    /// A store that evicts removes the last ones first. Returns the blocks, and the error that ended the chain.
    fn get_chain(&self, keys: &[BlockKey]) -> (Vec<Block>, Option<StoreError>) {
        up_to_missing(keys.iter().map(|key| self.get(key)))
    }

    /// Says that blocks will be asked for soon: a store that has them far away may bring them nearer meanwhile. Does
    /// not wait.
    fn prefetch(&self, _keys: &[BlockKey]) {}

    /// Says that the caller has blocks of at most that many bytes, so that a store which keeps bytes reads nothing
    /// longer than the longest of all its callers: see [`LongestBlock`]. Does not wait.
    fn expect_blocks(&self, _nbytes: u64) {}

    /// The store's contents. Does not wait.
    fn usage(&self) -> Usage {
        Usage::default()
    }
}

/// The blocks of a chain, as [`BlockStore::get_chain`] gives them: those that were found, up to the first that was not.
pub fn up_to_missing(
    found: impl IntoIterator<Item = Result<Option<Block>, StoreError>>,
) -> (Vec<Block>, Option<StoreError>) {
    let mut blocks = Vec::new();
    for block in found {
        match block {
            Ok(Some(block)) => blocks.push(block),
            Ok(None) => break,
            Err(error) => return (blocks, Some(error)),
        }
    }
    (blocks, None)
}
