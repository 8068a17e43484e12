//! Stores one after the other, the nearest first.

use std::io;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kvcache_manager::{Block, BlockError, BlockKey, BlockKind, BlockStore, StoreError};

use crate::host::HostTier;
use crate::remote_tier::{Answer, LONGEST, RemoteTier, Tier};
use crate::stats::{Stats, TierStats};
use crate::writes::Queued;

/// So many blocks of a chain are asked for at once.
pub(crate) const CHUNK: usize = 16;
/// For so long dropped tiers wait for queued writes.
const FINISH: Duration = Duration::from_secs(5);

/// A host tier and farther ones as one [`BlockStore`] that never waits longer than their deadlines.
///
/// - `put` keeps a block in the host tier and returns. A block of [`BlockKind::Prefix`] is then written to every other
///   tier, later; one of [`BlockKind::Private`] to the next tier once the host tier evicts it.
/// - `get` and `get_chain` ask the nearest tier first. What a farther tier gives is kept in the host tier; a bad
///   block is read again at once, then the next tier is asked, and what that one gives replaces it.
/// - `delete` and then `put` of a key replace what the tiers have under it.
/// - `prefetch` brings blocks to the host tier in the background, and replaces none.
/// - A tier that does not answer within its deadline is a miss, and not asked while the call hangs. A tier that fails
///   three times in a row is left alone for a second, then, while it still fails, for twice as long each time, up to
///   64 seconds. One that panics is not asked again.
///
/// Dropping it waits up to 5 seconds for queued writes, but not for a tier that fails; [`flush`](Self::flush) waits as
/// long as it is told.
#[derive(Debug)]
pub struct Tiers(Arc<Shared>);

/// The state of a tier while a chain is read.
struct Asked {
    /// The time left of its deadline.
    left: Duration,
    /// A block that it has not, or damaged, as long as it has not been given more blocks than these.
    missing: Option<(BlockKey, u64, Option<BlockError>)>,
}

#[derive(Debug)]
struct Shared {
    host: HostTier,
    host_stats: Stats,
    remote: Vec<Arc<RemoteTier>>,
    /// The bits of a float: bytes of rows that computing gives in a second; 0 if nobody has said so.
    compute_rate: AtomicU64,
}

impl Tiers {
    /// Tiers, the nearest of `remote` first. Each of these gets two threads.
    ///
    /// # Errors
    /// What the system says if it starts no thread.
    pub fn new(host: HostTier, remote: impl IntoIterator<Item = Tier>) -> io::Result<Self> {
        let remote = remote.into_iter().map(|tier| RemoteTier::spawn(tier).map(Arc::new)).collect::<io::Result<_>>()?;
        let compute_rate = AtomicU64::new(0f64.to_bits());
        Ok(Self(Arc::new(Shared { host, host_stats: Stats::new("host"), remote, compute_rate })))
    }

    /// Says how many bytes of rows computing gives in a second. From then on a tier whose measured rate is lower is not
    /// asked, but for now and then, to measure it again. At first everything is fetched.
    pub fn set_compute_rate(&self, bytes_per_second: f64) {
        self.0.compute_rate.store(bytes_per_second.to_bits(), Ordering::Relaxed);
    }

    /// Waits until all queued writes are done, for at most `timeout`. Whether they are.
    pub fn flush(&self, timeout: Duration) -> bool {
        let end = Instant::now() + timeout.min(LONGEST);
        self.0.remote.iter().all(|remote| remote.writes.flush(end))
    }

    /// The statistics of each tier, the nearest first; the host tier's name is `host`.
    pub fn stats(&self) -> Vec<TierStats> {
        let host = self.0.host_stats.with(self.0.host.usage());
        [host].into_iter().chain(self.0.remote.iter().map(|remote| remote.stats())).collect()
    }
}

impl Drop for Tiers {
    fn drop(&mut self) {
        self.0.remote.iter().for_each(|remote| remote.writes.finish());
        self.flush(FINISH);
        self.0.remote.iter().for_each(|remote| remote.close());
    }
}

impl Shared {
    fn compute_rate(&self) -> f64 {
        f64::from_bits(self.compute_rate.load(Ordering::Relaxed))
    }

    /// Keeps a block in the host tier. Private ones that this evicts go on to the next tier, and wait for room there
    /// for as long as `patience`; where there is none they stay, and this block is refused.
    fn keep(&self, key: BlockKey, block: Block, mut patience: Duration) -> Result<(), StoreError> {
        self.host.insert(key, block, |key, block| {
            let is_queued = self.pass_on(key, block, patience);
            if !is_queued {
                patience = Duration::ZERO;
            }
            is_queued
        })
    }

    /// Queues a block for the tier after the host tier.
    fn pass_on(&self, key: BlockKey, block: Block, patience: Duration) -> bool {
        self.remote.first().is_some_and(|remote| remote.writes.push(key, Queued::Put(block), patience))
    }

    /// The first blocks of a chain, of a chunk at most, from a remote tier, while its deadline lasts.
    fn ask(self: &Arc<Self>, remote: &Arc<RemoteTier>, keys: &[BlockKey], asked: &mut Asked) -> Answer {
        let blocks = remote.queued_chain(keys);
        if !blocks.is_empty() || keys.first().is_some_and(|key| remote.is_deleted(key)) {
            return (blocks, None);
        }
        if asked.left.is_zero() {
            return (Vec::new(), Some(StoreError::Late(remote.deadline)));
        }
        // Before it is asked: what the host tier evicts meanwhile comes to it.
        let puts = remote.stats.lock().puts;
        if let Some((key, before, bad)) = asked.missing
            && keys.first() == Some(&key)
            && before == puts
        {
            return (Vec::new(), bad.map(StoreError::Bad));
        }
        if let Some(answer) = remote.avoided(self.compute_rate()) {
            return answer;
        }
        let began = Instant::now();
        let keys: Vec<_> = keys.iter().take_while(|key| !remote.is_deleted(key)).copied().collect();
        let next = keys.clone();
        let (shared, of_job) = (self.clone(), remote.clone());
        let answer = remote.ask(began + asked.left, move || shared.read(&of_job, &keys));
        asked.left = asked.left.saturating_sub(began.elapsed());
        let (blocks, error) = answer.unwrap_or_else(|error| {
            remote.stats.lock().miss(error.reason());
            (Vec::new(), Some(error))
        });
        let bad = match error {
            Some(StoreError::Bad(bad)) => Some(bad),
            _ => None,
        };
        asked.missing =
            next.get(blocks.len()).filter(|_| error.is_none() || bad.is_some()).map(|key| (*key, puts, bad));
        (blocks, error)
    }

    /// The first blocks of a chain. On the thread of reads.
    fn read(&self, remote: &RemoteTier, keys: &[BlockKey]) -> Answer {
        // An earlier read may have brought them meanwhile.
        let (mut blocks, _) = self.host.get_chain(keys);
        // And a read before this one may have moved them on to the queue of writes.
        blocks.extend(remote.queued_chain(&keys[blocks.len()..]));
        let mut error = None;
        if blocks.len() < keys.len() {
            let (more, failure) = self.fetch(remote, &keys[blocks.len()..]);
            blocks.extend(more);
            error = failure;
        }
        (blocks, error)
    }

    /// Reads from a remote tier and keeps what it gives. On the thread of reads, which waits for no room.
    fn fetch(&self, remote: &RemoteTier, keys: &[BlockKey]) -> Answer {
        let (blocks, error) = remote.fetch(keys);
        for (key, block) in keys.iter().zip(&blocks) {
            // One that the host tier has no room for is given all the same.
            let _ = self.keep(*key, block.clone(), Duration::ZERO);
        }
        (blocks, error)
    }

    /// Brings blocks to the host tier, in the background: from this tier, and what it lacks from later ones.
    fn prefetch(self: &Arc<Self>, tier: usize, keys: &[BlockKey]) {
        let Some(remote) = self.remote.get(tier) else { return };
        for keys in keys.chunks(CHUNK) {
            let (shared, of_job, keys) = (self.clone(), remote.clone(), keys.to_vec());
            let job = move || {
                let absent = shared.prefetch_now(&of_job, keys);
                shared.prefetch(tier + 1, &absent);
            };
            remote.reads.submit_background(Box::new(job));
        }
    }

    /// Returns the keys that were not there.
    fn prefetch_now(&self, remote: &RemoteTier, mut keys: Vec<BlockKey>) -> Vec<BlockKey> {
        keys.retain(|key| match remote.writes.queued(key) {
            Some(Queued::Put(block)) => self.keep(*key, block, Duration::ZERO).is_err(),
            Some(Queued::Delete) => false,
            None => !self.host.has(key),
        });
        if remote.avoided(self.compute_rate()).is_some() {
            return keys;
        }
        let (mut absent, mut rest) = (Vec::new(), &keys[..]);
        while !rest.is_empty() {
            // As a chain up to the first that is absent, then one by one.
            let asked = if absent.is_empty() { rest } else { &rest[..1] };
            let (blocks, error) = self.fetch(remote, asked);
            rest = &rest[blocks.len()..];
            if error.is_some_and(|error| !matches!(error, StoreError::Bad(_))) {
                absent.extend(rest);
                break;
            }
            if blocks.len() < asked.len() {
                absent.push(rest[0]);
                rest = &rest[1..];
            }
        }
        absent
    }
}

impl BlockStore for Tiers {
    fn get(&self, key: &BlockKey) -> Result<Option<Block>, StoreError> {
        let (mut blocks, error) = self.get_chain(slice::from_ref(key));
        match (blocks.pop(), error) {
            (None, Some(error)) => Err(error),
            (block, _) => Ok(block),
        }
    }

    fn put(&self, key: &BlockKey, block: Block) -> Result<(), StoreError> {
        let patience = self.0.remote.first().map_or(Duration::ZERO, |remote| remote.deadline);
        let kept = self.0.keep(*key, block.clone(), patience);
        if kept.is_ok() {
            let mut stats = self.0.host_stats.lock();
            stats.puts += 1;
            stats.bytes_written += block.nbytes();
        }
        let queued = match block.kind() {
            BlockKind::Prefix => {
                let put = || Queued::Put(block.clone());
                self.0.remote.iter().filter(|remote| remote.writes.push(*key, put(), Duration::ZERO)).count() > 0
            }
            BlockKind::Private => kept.is_err() && self.0.pass_on(*key, block, patience),
        };
        if queued { Ok(()) } else { kept }
    }

    fn contains(&self, key: &BlockKey) -> Result<bool, StoreError> {
        if self.0.host.has(key) {
            return Ok(true);
        }
        let mut failure = None;
        for remote in &self.0.remote {
            let found = match remote.writes.queued(key) {
                Some(Queued::Put(_)) => Ok(true),
                Some(Queued::Delete) => Ok(false),
                None => remote.contains(*key),
            };
            match found {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        failure.map_or(Ok(false), Err)
    }

    fn delete(&self, key: &BlockKey) -> Result<(), StoreError> {
        self.0.host.delete(key)?;
        let queued =
            self.0.remote.iter().filter(|remote| remote.writes.push(*key, Queued::Delete, Duration::ZERO)).count();
        if queued == self.0.remote.len() { Ok(()) } else { Err(StoreError::Busy) }
    }

    /// What is not in the host tier is asked of each other tier in turn, as far as the deadline of each, for the whole
    /// chain, lasts.
    fn get_chain(&self, keys: &[BlockKey]) -> (Vec<Block>, Option<StoreError>) {
        let mut asked: Vec<_> =
            self.0.remote.iter().map(|remote| Asked { left: remote.deadline, missing: None }).collect();
        let mut blocks: Vec<Block> = Vec::new();
        let mut error = None;
        // Whether the host tier's miss of the blocks that come now is counted.
        let mut is_counted = false;
        while blocks.len() < keys.len() {
            let rest = &keys[blocks.len()..];
            let (near, _) = self.0.host.get_chain(rest);
            is_counted &= near.is_empty();
            let mut stats = self.0.host_stats.lock();
            stats.gave(&near);
            if near.len() < rest.len() && !is_counted {
                stats.miss("absent");
                is_counted = true;
            }
            drop(stats);
            if !near.is_empty() {
                blocks.extend(near);
                continue;
            }
            let rest = &rest[..rest.len().min(CHUNK)];
            let until = rest.iter().position(|key| self.0.host.has(key)).unwrap_or(rest.len());
            // A block may have come to the host tier since.
            let rest = &rest[..until.max(1)];
            error = None;
            let before = blocks.len();
            let mut bad_in: Vec<&RemoteTier> = Vec::new();
            for (remote, asked) in self.0.remote.iter().zip(&mut asked) {
                let (more, failure) = self.0.ask(remote, rest, asked);
                if let Some(good) = more.first() {
                    for nearer in bad_in {
                        let nearer: &RemoteTier = nearer;
                        nearer.writes.push(rest[0], Queued::Delete, Duration::ZERO);
                        nearer.writes.push(rest[0], Queued::Put(good.clone()), Duration::ZERO);
                    }
                    blocks.extend(more);
                    break;
                }
                if matches!(failure, Some(StoreError::Bad(_))) {
                    bad_in.push(remote);
                }
                error = error.or(failure);
            }
            if blocks.len() == before {
                break;
            }
        }
        self.0.host.touch_chain(&keys[..blocks.len()]);
        let error = error.filter(|_| blocks.len() < keys.len());
        (blocks, error)
    }

    fn expect_blocks(&self, nbytes: u64) {
        self.0.remote.iter().for_each(|remote| remote.expect_blocks(nbytes));
    }

    fn prefetch(&self, keys: &[BlockKey]) {
        let absent: Vec<_> = keys.iter().filter(|key| !self.0.host.has(key)).copied().collect();
        self.0.prefetch(0, &absent);
    }
}
