//! A tier that may be slow: its threads, its deadline, its counters.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kvcache_manager::{Block, BlockKey, BlockStore, StoreError, up_to_missing};

use crate::breaker::Breaker;
use crate::rate::Rate;
use crate::stats::{Stats, TierStats};
use crate::worker::Worker;
use crate::writes::{Queued, Writes};

const DEADLINE: Duration = Duration::from_secs(2);
/// Nobody waits longer, so that every clock can tell the end.
pub(crate) const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);
const MAX_QUEUED: u64 = 256 << 20;

/// A store that may be slow or fail, as [`Tiers`](crate::Tiers) uses it: from two threads of its own.
#[derive(Debug, Clone)]
pub struct Tier {
    name: String,
    store: Arc<dyn BlockStore>,
    deadline: Duration,
    max_queued: u64,
}

impl Tier {
    /// A tier with a deadline of 2 seconds and a queue of 256 MiB.
    pub fn new(name: impl Into<String>, store: Arc<dyn BlockStore>) -> Self {
        Self { name: name.into(), store, deadline: DEADLINE, max_queued: MAX_QUEUED }
    }

    /// For how long a caller waits for this tier at most, be it for one block or for a chain. What comes later is kept
    /// in the host tier, where the next caller finds it.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline.min(LONGEST);
        self
    }

    /// The most bytes of blocks that wait to be written, each with 256 bytes more. Further ones are dropped and
    /// counted. A put of private ones, of which there is no other copy, waits for room, as long as a write is done
    /// within each deadline, and not while the tier is left alone; else it is refused. Once they are queued they are
    /// written, however often that fails.
    pub fn max_queued(mut self, nbytes: u64) -> Self {
        self.max_queued = nbytes;
        self
    }
}

/// The first blocks of a chain, and why there are no more.
pub(crate) type Answer = (Vec<Block>, Option<StoreError>);

/// A tier with its threads.
#[derive(Debug)]
pub(crate) struct RemoteTier {
    store: Arc<dyn BlockStore>,
    pub(crate) deadline: Duration,
    pub(crate) reads: Worker,
    pub(crate) writes: Writes,
    pub(crate) stats: Stats,
    /// The breaker and the rate of its reads.
    health: Mutex<(Breaker, Rate)>,
}

impl RemoteTier {
    pub(crate) fn spawn(tier: Tier) -> io::Result<Self> {
        let Tier { name, store, deadline, max_queued } = tier;
        let stats = Stats::new(&name);
        let reads = Worker::spawn(format!("{name} reads"))?;
        let writes = Writes::spawn(format!("{name} writes"), store.clone(), stats.clone(), max_queued)?;
        Ok(Self { store, deadline, reads, writes, stats, health: Mutex::default() })
    }

    fn health(&self) -> MutexGuard<'_, (Breaker, Rate)> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn expect_blocks(&self, nbytes: u64) {
        self.store.expect_blocks(nbytes);
    }

    /// The first blocks of a chain that are queued to be written.
    pub(crate) fn queued_chain(&self, keys: &[BlockKey]) -> Vec<Block> {
        let put = |key| if let Some(Queued::Put(block)) = self.writes.queued(key) { Some(block) } else { None };
        let blocks: Vec<_> = keys.iter().map_while(put).collect();
        self.stats.lock().hits += blocks.len() as u64;
        blocks
    }

    /// Whether a block is queued to be deleted.
    pub(crate) fn is_deleted(&self, key: &BlockKey) -> bool {
        matches!(self.writes.queued(key), Some(Queued::Delete))
    }

    fn is_paused(&self) -> bool {
        self.health().0.pause(Instant::now()).is_some()
    }

    /// The answer to who may not ask the store at present: reads have failed, or computing is faster, which gives so
    /// many bytes of rows in a second. Counts the miss.
    pub(crate) fn avoided(&self, compute_rate: f64) -> Option<Answer> {
        if self.is_paused() {
            self.stats.lock().miss("busy");
            return Some((Vec::new(), Some(StoreError::Busy)));
        }
        if self.health().1.is_slower(compute_rate) {
            self.stats.lock().miss("slower");
            return Some(Answer::default());
        }
        None
    }

    /// The first blocks of a chain from the store; a bad one is read again. On the thread of reads.
    pub(crate) fn fetch(&self, keys: &[BlockKey]) -> Answer {
        let began = Instant::now();
        let (mut blocks, mut bad) = (Vec::new(), None);
        let error = loop {
            let rest = &keys[blocks.len()..];
            let (more, error) = match rest {
                [key] => up_to_missing([self.store.get(key)]),
                _ => self.store.get_chain(rest),
            };
            blocks.extend(more.into_iter().take(rest.len()));
            let is_bad = matches!(error, Some(StoreError::Bad(_)));
            if !is_bad || blocks.len() == keys.len() || bad.replace(blocks.len()) == Some(blocks.len()) {
                break error;
            }
        };
        let elapsed = began.elapsed();
        // A bad block is no failure of the store: it answers.
        let is_bad = matches!(error, Some(StoreError::Bad(_)));
        let (breaker, rate) = &mut *self.health();
        breaker.record((error.is_none() || is_bad) && elapsed <= self.deadline, Instant::now());
        let mut stats = self.stats.lock();
        stats.gave(&blocks);
        if !blocks.is_empty() {
            rate.record(blocks.iter().map(Block::nbytes).sum(), elapsed);
            stats.read_rate = rate.get();
        }
        match &error {
            Some(error) => stats.miss(error.reason()),
            None if blocks.len() < keys.len() => stats.miss("absent"),
            None => {}
        }
        (blocks, error)
    }

    /// Whether the store has a block. Waits for at most the deadline.
    pub(crate) fn contains(self: &Arc<Self>, key: BlockKey) -> Result<bool, StoreError> {
        if self.is_paused() {
            return Err(StoreError::Busy);
        }
        let tier = self.clone();
        self.ask(Instant::now() + self.deadline, move || {
            let answer = tier.store.contains(&key);
            tier.health().0.record(answer.is_ok(), Instant::now());
            answer
        })?
    }

    /// Runs a job on the thread of reads, and waits for it until `end`.
    pub(crate) fn ask<T: Send + 'static>(
        &self,
        end: Instant,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let (sender, receiver) = sync_channel(1);
        // Nobody waits any more if it cannot be sent.
        let job = move || drop(sender.send(job()));
        if !self.reads.submit(Box::new(job), end, self.deadline) {
            return Err(StoreError::Busy);
        }
        let answer = receiver.recv_timeout(end.saturating_duration_since(Instant::now()));
        answer.map_err(|error| match error {
            RecvTimeoutError::Disconnected if Instant::now() < end => StoreError::Busy,
            _ => StoreError::Late(self.deadline),
        })
    }

    pub(crate) fn stats(&self) -> TierStats {
        self.stats.with(self.store.usage())
    }

    pub(crate) fn close(&self) {
        self.reads.close();
        self.writes.close();
    }
}

impl Drop for RemoteTier {
    fn drop(&mut self) {
        self.close();
    }
}
