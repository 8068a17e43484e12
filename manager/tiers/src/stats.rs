//! The statistics of a tier.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvcache_manager::{Block, Usage};
use serde::Serialize;

/// Counts of a tier since it was made.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct TierStats {
    /// Its name.
    pub name: String,
    /// The blocks that it gave, to callers or to a prefetch, those still queued to be written included.
    pub hits: u64,
    /// Blocks that it did not give, by reason: `absent`, `late`, `busy`, `failed`, `slower` (than computing), `length`,
    /// `format`, `checksum` and `key` (a bad block). A chain is one miss, at the block that ends it.
    pub misses: BTreeMap<&'static str, u64>,
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
    /// The number of blocks that it holds, if it knows.
    pub blocks: Option<u64>,
    /// Their bytes, if it knows.
    pub nbytes: Option<u64>,
    /// Bytes per second of its reads, a moving average; none before some reads.
    pub read_rate: Option<f64>,
}

/// Why a tier did not give a block: it has none; it did not answer in time; it was not asked, as an earlier call hangs
/// or earlier ones failed; it failed; it was not asked, as computing is faster. Or it was told to delete what it gave:
/// a block that was cut or too long, no block of this version, one with altered bytes, one of another key.
const REASONS: [&str; 9] = ["absent", "late", "busy", "failed", "slower", "length", "format", "checksum", "key"];

/// The statistics of a tier, which its threads count in.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stats(Arc<Mutex<TierStats>>);

impl Stats {
    pub(crate) fn new(name: &str) -> Self {
        let misses = REASONS.map(|reason| (reason, 0)).into();
        Self(Arc::new(Mutex::new(TierStats { name: name.to_owned(), misses, ..TierStats::default() })))
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
    /// Counts a miss.
    pub(crate) fn miss(&mut self, reason: &'static str) {
        *self.misses.entry(reason).or_default() += 1;
    }

    /// Counts blocks that the tier gave.
    pub(crate) fn gave(&mut self, blocks: &[Block]) {
        self.hits += blocks.len() as u64;
        self.bytes_read += blocks.iter().map(Block::nbytes).sum::<u64>();
    }
}
