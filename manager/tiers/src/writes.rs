//! Writes to a store, done in the background.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use kvcache_manager::{Block, BlockKey, BlockKind, BlockStore};

use crate::breaker::Breaker;
use crate::lru_index::LruIndex;
use crate::stats::Stats;

/// The bytes that a queued write counts beside its block.
const OVERHEAD: u64 = 256;

/// A queue of puts and deletes, and the thread that does them in order. Of one key only the newest is kept, and a
/// delete that it follows.
#[derive(Debug)]
pub(crate) struct Writes(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    store: Arc<dyn BlockStore>,
    stats: Stats,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// The oldest is that which is being done; it stays until it is.
    queue: LruIndex<Write>,
    /// The writes that are being queued, by key and id, until a newer one of the key is queued.
    waiting: Vec<(BlockKey, u64)>,
    next_id: u64,
    /// The writes that were done.
    done: u64,
    breaker: Breaker,
    /// A store that fails is not waited for any more.
    finishing: bool,
    closed: bool,
}

#[derive(Debug, Clone)]
struct Write {
    id: u64,
    what: Queued,
    /// Whether it is a put in the place of a delete, which is done first.
    replaces: bool,
}

/// A write.
#[derive(Debug, Clone)]
pub(crate) enum Queued {
    Put(Block),
    Delete,
}

impl Queued {
    /// Whether nobody else has what is written.
    fn is_private(&self) -> bool {
        matches!(self, Self::Put(block) if block.kind() == BlockKind::Private)
    }

    fn len(&self) -> u64 {
        OVERHEAD + if let Self::Put(block) = self { block.nbytes() } else { 0 }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change, for at most so long.
    fn wait<'a>(&self, state: MutexGuard<'a, State>, time: Duration) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0
    }

    fn close(&self, state: &mut State) {
        state.closed = true;
        self.stats.lock().writes_dropped += state.queue.drain().len() as u64;
        self.changed.notify_all();
    }

    /// The next write, once the store may be asked; none when the queue is closed.
    fn next(&self) -> Option<(BlockKey, Write)> {
        let mut state = self.state();
        loop {
            if state.closed {
                return None;
            }
            let pause = state.breaker.pause(Instant::now());
            if state.finishing && pause.is_some() {
                self.close(&mut state);
                return None;
            }
            state = match (state.queue.oldest(), pause) {
                (Some((key, write)), None) => return Some((*key, write.clone())),
                (Some(_), Some(pause)) => self.wait(state, pause),
                (None, _) => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    fn run(&self) {
        while let Some((key, Write { id, what, replaces })) = self.next() {
            let len = if let Queued::Put(block) = &what { block.nbytes() } else { 0 };
            let is_private = what.is_private();
            let delete = || self.store.delete(&key);
            let result = match what {
                Queued::Put(block) if replaces => delete().and_then(|()| self.store.put(&key, block)),
                Queued::Put(block) => self.store.put(&key, block),
                Queued::Delete => delete(),
            };
            let mut stats = self.stats.lock();
            stats.writes_dropped += u64::from(result.is_err() && !is_private);
            if result.is_ok() && len > 0 {
                (stats.puts, stats.bytes_written) = (stats.puts + 1, stats.bytes_written + len);
            }
            drop(stats);
            let mut state = self.state();
            state.breaker.record(result.is_ok(), Instant::now());
            state.done += u64::from(result.is_ok());
            if state.queue.peek(&key).is_some_and(|newest| newest.id == id) {
                match result {
                    // Nobody else has it: it is tried again.
                    Err(_) if is_private => state.queue.touch(&key),
                    _ => state.queue.remove(&key),
                }
            }
            drop(state);
            self.changed.notify_all();
        }
    }
}

impl Writes {
    /// Starts the thread. Writes that are queued have `max_queued` bytes at most.
    pub(crate) fn spawn(name: String, store: Arc<dyn BlockStore>, stats: Stats, max_queued: u64) -> io::Result<Self> {
        let (breaker, queue, waiting) = (Breaker::default(), LruIndex::new(max_queued), Vec::new());
        let state = Mutex::new(State { queue, waiting, next_id: 0, done: 0, breaker, finishing: false, closed: false });
        let shared = Arc::new(Shared { store, stats, state, changed: Condvar::new() });
        let of_thread = shared.clone();
        thread::Builder::new().name(name).spawn(move || of_thread.run())?;
        Ok(Self(shared))
    }

    /// Queues a write, in the place of what is queued for this key. Whether there was room: it waits for that as long
    /// as no two writes are farther apart than `patience`, but not while the store is left alone.
    pub(crate) fn push(&self, key: BlockKey, what: Queued, patience: Duration) -> bool {
        let mut state = self.0.state();
        let (id, len) = (state.next_id, what.len());
        state.next_id += 1;
        state.waiting.push((key, id));
        let (mut done, mut end) = (state.done, Instant::now() + patience);
        let is_queued = loop {
            if !state.waiting.contains(&(key, id)) {
                // A newer one of this key was queued meanwhile.
                return true;
            }
            let queued = state.queue.peek(&key).map(|write| &write.what);
            if queued.is_some_and(|queued| std::mem::discriminant(queued) == std::mem::discriminant(&what)) {
                break true;
            }
            let replaced = queued.map_or(0, Queued::len);
            let replaces = matches!((queued, &what), (Some(Queued::Delete), Queued::Put(_)));
            if !state.closed && state.queue.nbytes() - replaced + len <= state.queue.capacity {
                state.queue.insert(key, Write { id, what, replaces }, len);
                self.0.changed.notify_all();
                break true;
            }
            let now = Instant::now();
            if state.done > done {
                (done, end) = (state.done, now + patience);
            }
            let left = end.saturating_duration_since(now);
            let is_paused = state.breaker.pause(now).is_some();
            if state.closed || left.is_zero() || is_paused || len > state.queue.capacity {
                self.0.stats.lock().writes_dropped += u64::from(!what.is_private());
                break false;
            }
            state = self.0.wait(state, left);
        };
        state.waiting.retain(|&(of, other)| if is_queued { of != key || other > id } else { other != id });
        is_queued
    }

    pub(crate) fn queued(&self, key: &BlockKey) -> Option<Queued> {
        self.0.state().queue.peek(key).map(|write| write.what.clone())
    }

    /// Waits until nothing is queued. Whether that was before `end`.
    pub(crate) fn flush(&self, end: Instant) -> bool {
        let mut state = self.0.state();
        while state.queue.oldest().is_some() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.0.wait(state, left);
        }
        true
    }

    /// From now on, what is queued is dropped when the store has failed some times in a row.
    pub(crate) fn finish(&self) {
        self.0.state().finishing = true;
        self.0.changed.notify_all();
    }

    /// Drops what is queued. The thread ends with the write that it does.
    pub(crate) fn close(&self) {
        self.0.close(&mut self.0.state());
    }
}

#[cfg(test)]
mod tests {
    use kvcache_manager::BlockKind;

    use super::*;
    use crate::host::HostTier;

    /// A queue for one block and one delete, without a thread.
    #[test]
    fn a_put_that_waits_gives_way_to_a_newer_delete_and_to_a_pause() {
        let [a, b] = [1, 2].map(|i| BlockKey::from_bytes([i; 32]));
        let put = |key| Queued::Put(Block::new(BlockKind::Private, &key, vec![0; 16].into(), 16).unwrap());
        let queue = LruIndex::new(put(a).len() + Queued::Delete.len());
        let (waiting, breaker) = (Vec::new(), Breaker::default());
        let state = Mutex::new(State { queue, waiting, next_id: 0, done: 0, breaker, finishing: false, closed: false });
        let (store, stats) = (Arc::new(HostTier::new(0)), Stats::new("store"));
        let writes = Writes(Arc::new(Shared { store, stats, state, changed: Condvar::new() }));
        let (began, patience) = (Instant::now(), Duration::from_secs(60));
        assert!(writes.push(a, put(a), patience));
        thread::scope(|scope| {
            let waits = scope.spawn(|| writes.push(b, put(b), patience));
            while writes.0.state().waiting.is_empty() {
                thread::yield_now();
            }
            assert!(writes.push(b, Queued::Delete, Duration::ZERO));
            // Even where it is done before the put sees it.
            writes.0.state().queue.remove(&b);
            assert!(waits.join().unwrap());
        });
        assert!(writes.queued(&a).is_some() && writes.queued(&b).is_none());
        assert!(writes.push(b, Queued::Delete, Duration::ZERO));
        (0..3).for_each(|_| writes.0.state().breaker.record(false, Instant::now()));
        assert!(!writes.push(b, put(b), patience));
        assert!(began.elapsed() < patience);
    }
}
