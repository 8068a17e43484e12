//! What a tier counts.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvcache_manager::{Block, BlockError, StoreError, Usage};

/// What a tier has done since it was made.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct TierStats {
    /// Its name.
    pub name: String,
    /// The blocks that it gave, to callers or to a prefetch, those still queued to be written included.
    pub hits: u64,
    /// Why it did not give one. A chain is one miss, at the block that ends it.
    pub misses: Misses,
    /// Bytes of the blocks that it gave and that verified.
    pub bytes_read: u64,
    /// Bytes of the blocks that it took.
    pub bytes_written: u64,
    /// The blocks that it took.
    pub puts: u64,
    /// Puts and deletes that failed, or that had no room in the queue.
    pub writes_dropped: u64,
    /// The blocks that it has evicted, if it does that itself.
    pub evicted: u64,
    /// How many blocks it holds, if it knows.
    pub blocks: Option<u64>,
    /// Their bytes, if it knows.
    pub nbytes: Option<u64>,
    /// Bytes per second of its reads, a moving average; none before some reads.
    pub read_rate: Option<f64>,
}

/// Misses by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Misses {
    /// It has no such block.
    pub absent: u64,
    /// It did not answer in time.
    pub late: u64,
    /// It was not asked: an earlier call hangs, or earlier ones failed.
    pub busy: u64,
    /// It failed.
    pub failed: u64,
    /// It was not asked: computing is faster.
    pub slower: u64,
    /// It gave a block that was cut or too long, and was told to delete it.
    pub length: u64,
    /// It gave what is no block of this version, and was told to delete it.
    pub format: u64,
    /// It gave a block with altered bytes, and was told to delete it.
    pub checksum: u64,
    /// It gave another key's block, and was told to delete it.
    pub key: u64,
}

/// The statistics of a tier, which its threads count in.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stats(Arc<Mutex<TierStats>>);

impl Stats {
    pub(crate) fn new(name: &str) -> Self {
        Self(Arc::new(Mutex::new(TierStats { name: name.to_owned(), ..TierStats::default() })))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, TierStats> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All of them, with what the tier holds.
    pub(crate) fn with(&self, Usage { blocks, nbytes, evicted }: Usage) -> TierStats {
        TierStats { blocks, nbytes, evicted, ..self.lock().clone() }
    }
}

impl TierStats {
    /// Counts blocks that the tier gave.
    pub(crate) fn gave(&mut self, blocks: &[Block]) {
        self.hits += blocks.len() as u64;
        self.bytes_read += blocks.iter().map(Block::nbytes).sum::<u64>();
    }
}

impl Misses {
    /// Each reason by its name.
    pub fn by_reason(&self) -> [(&'static str, u64); 9] {
        let Self { absent, late, busy, failed, slower, length, format, checksum, key } = *self;
        [
            ("absent", absent),
            ("late", late),
            ("busy", busy),
            ("failed", failed),
            ("slower", slower),
            ("length", length),
            ("format", format),
            ("checksum", checksum),
            ("key", key),
        ]
    }

    /// The sum of all reasons.
    pub fn total(&self) -> u64 {
        self.by_reason().iter().map(|reason| reason.1).sum()
    }

    pub(crate) fn error(&mut self, error: &StoreError) {
        match error {
            StoreError::Late(_) => self.late += 1,
            StoreError::Busy => self.busy += 1,
            StoreError::Bad(BlockError::Length) => self.length += 1,
            StoreError::Bad(BlockError::Checksum) => self.checksum += 1,
            StoreError::Bad(BlockError::Key) => self.key += 1,
            StoreError::Bad(_) => self.format += 1,
            _ => self.failed += 1,
        }
    }
}
