//! A tier that may be slow: its threads, its deadline, its counters.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kvcache_manager::{Block, BlockKey, BlockStore, StoreError};

use crate::breaker::Breaker;
use crate::rate::Rate;
use crate::stats::{Misses, TierStats};
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

    /// The most bytes of blocks that wait to be written, each with 256 bytes more. Further ones are dropped and counted.
    pub fn max_queued(mut self, nbytes: u64) -> Self {
        self.max_queued = nbytes;
        self
    }
}

/// A tier with its threads.
#[derive(Debug)]
pub(crate) struct Far {
    name: String,
    store: Arc<dyn BlockStore>,
    pub(crate) deadline: Duration,
    pub(crate) reads: Worker,
    pub(crate) writes: Writes,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    breaker: Breaker,
    rate: Rate,
    hits: u64,
    misses: Misses,
    bytes_read: u64,
}

impl Far {
    pub(crate) fn spawn(tier: Tier) -> io::Result<Self> {
        let Tier { name, store, deadline, max_queued } = tier;
        let reads = Worker::spawn(format!("{name} reads"))?;
        let writes = Writes::spawn(format!("{name} writes"), store.clone(), max_queued)?;
        Ok(Self { name, store, deadline, reads, writes, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a miss.
    pub(crate) fn miss(&self, count: impl FnOnce(&mut Misses)) {
        count(&mut self.state().misses);
    }

    /// The first blocks of a chain that are queued to be written.
    pub(crate) fn queued_chain(&self, keys: &[BlockKey]) -> Vec<Block> {
        let put = |key| if let Some(Queued::Put(block)) = self.writes.queued(key) { Some(block) } else { None };
        let blocks: Vec<_> = keys.iter().map_while(put).collect();
        self.state().hits += blocks.len() as u64;
        blocks
    }

    /// Whether the store is not to be read at present, since reads have failed. Counts the miss.
    pub(crate) fn is_paused(&self) -> bool {
        let mut state = self.state();
        let paused = state.breaker.pause(Instant::now()).is_some();
        state.misses.busy += u64::from(paused);
        paused
    }

    /// Whether the store is not to be read, since computing gives so many bytes of rows in a second. Counts the miss.
    pub(crate) fn is_slower(&self, compute_rate: f64) -> bool {
        let mut state = self.state();
        let slower = state.rate.is_slower(compute_rate);
        state.misses.slower += u64::from(slower);
        slower
    }

    /// The first blocks of a chain from the store; a bad one is deleted there. On the thread of reads.
    pub(crate) fn fetch(&self, keys: &[BlockKey]) -> (Vec<Block>, Option<StoreError>) {
        let began = Instant::now();
        let (mut blocks, error) = match keys {
            [key] => match self.store.get(key) {
                Ok(block) => (block.into_iter().collect(), None),
                Err(error) => (Vec::new(), Some(error)),
            },
            _ => self.store.get_chain(keys),
        };
        let elapsed = began.elapsed();
        blocks.truncate(keys.len());
        let nbytes = blocks.iter().map(Block::nbytes).sum();
        // A bad block is no failure of the store: it answers.
        let is_bad = matches!(error, Some(StoreError::Bad(_)));
        if let (true, Some(&key)) = (is_bad, keys.get(blocks.len())) {
            self.writes.push(key, None);
        }
        let mut state = self.state();
        state.breaker.record((error.is_none() || is_bad) && elapsed <= self.deadline, Instant::now());
        state.hits += blocks.len() as u64;
        state.bytes_read += nbytes;
        if nbytes > 0 {
            state.rate.record(nbytes, elapsed);
        }
        match &error {
            Some(error) => state.misses.error(error),
            None => state.misses.absent += u64::from(blocks.len() < keys.len()),
        }
        (blocks, error.filter(|_| !is_bad))
    }

    /// Whether the store has a block. Waits for at most the deadline.
    pub(crate) fn contains(self: &Arc<Self>, key: BlockKey) -> Result<bool, StoreError> {
        if self.state().breaker.pause(Instant::now()).is_some() {
            return Err(StoreError::Busy);
        }
        let (sender, receiver) = sync_channel(1);
        let far = self.clone();
        let job = move || {
            let answer = far.store.contains(&key);
            far.state().breaker.record(answer.is_ok(), Instant::now());
            // Nobody waits any more if this fails.
            let _ = sender.send(answer);
        };
        if !self.reads.submit(Box::new(job), Instant::now() + self.deadline, self.deadline) {
            return Err(StoreError::Busy);
        }
        receiver.recv_timeout(self.deadline).map_err(|error| match error {
            RecvTimeoutError::Timeout => StoreError::Late(self.deadline),
            RecvTimeoutError::Disconnected => StoreError::Busy,
        })?
    }

    pub(crate) fn stats(&self) -> TierStats {
        let (usage, writes) = (self.store.usage(), self.writes.counts());
        let state = self.state();
        TierStats {
            name: self.name.clone(),
            hits: state.hits,
            misses: state.misses,
            bytes_read: state.bytes_read,
            bytes_written: writes.bytes,
            puts: writes.puts,
            writes_dropped: writes.dropped,
            evicted: usage.evicted,
            blocks: usage.blocks,
            nbytes: usage.nbytes,
            read_rate: state.rate.get(),
        }
    }

    pub(crate) fn close(&self) {
        self.reads.close();
        self.writes.close();
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        self.close();
    }
}
