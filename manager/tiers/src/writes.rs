//! Writes to a store, done behind.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use kvcache_manager::{Block, BlockKey, BlockStore};
use lru::LruCache;

use crate::breaker::Breaker;

/// What a queued write counts beside its block, in bytes.
const OVERHEAD: u64 = 256;

/// A queue of puts and deletes, and the thread that does them in order. Of one key only the newest is kept.
#[derive(Debug)]
pub(crate) struct Writes(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    store: Arc<dyn BlockStore>,
    max_queued: u64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// The oldest is that which is being done; it stays until it is.
    queue: LruCache<BlockKey, Write>,
    nbytes: u64,
    next_id: u64,
    breaker: Breaker,
    /// A store that fails is not waited for any more.
    finishing: bool,
    closed: bool,
    counts: Counts,
}

/// None: a delete.
#[derive(Debug, Clone)]
struct Write {
    id: u64,
    block: Option<Block>,
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) puts: u64,
    pub(crate) bytes: u64,
    pub(crate) dropped: u64,
}

/// What is queued for a key.
pub(crate) enum Queued {
    Put(Block),
    Delete,
}

impl Write {
    fn len(&self) -> u64 {
        OVERHEAD + self.block.as_ref().map_or(0, Block::nbytes)
    }
}

impl State {
    fn remove(&mut self, key: &BlockKey) {
        if let Some(write) = self.queue.pop(key) {
            self.nbytes -= write.len();
        }
    }

    fn close(&mut self) {
        self.closed = true;
        self.counts.dropped += self.queue.len() as u64;
        self.queue.clear();
        self.nbytes = 0;
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
                state.close();
                self.changed.notify_all();
                return None;
            }
            state = match (state.queue.peek_lru(), pause) {
                (Some((key, write)), None) => return Some((*key, write.clone())),
                (Some(_), Some(pause)) => {
                    self.changed.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0
                }
                (None, _) => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    fn run(&self) {
        while let Some((key, write)) = self.next() {
            let len = write.block.as_ref().map(Block::nbytes);
            let result = match write.block {
                Some(block) => self.store.put(&key, block),
                None => self.store.delete(&key),
            };
            let mut state = self.state();
            state.breaker.record(result.is_ok(), Instant::now());
            match (result, len) {
                (Ok(()), Some(len)) => {
                    state.counts.puts += 1;
                    state.counts.bytes += len;
                }
                (Ok(()), None) => {}
                (Err(_), _) => state.counts.dropped += 1,
            }
            if state.queue.peek(&key).is_some_and(|newest| newest.id == write.id) {
                state.remove(&key);
            }
            drop(state);
            self.changed.notify_all();
        }
    }
}

impl Writes {
    pub(crate) fn spawn(name: String, store: Arc<dyn BlockStore>, max_queued: u64) -> io::Result<Self> {
        let state = State {
            queue: LruCache::unbounded(),
            nbytes: 0,
            next_id: 0,
            breaker: Breaker::default(),
            finishing: false,
            closed: false,
            counts: Counts::default(),
        };
        let shared = Arc::new(Shared { store, max_queued, state: Mutex::new(state), changed: Condvar::new() });
        let of_thread = shared.clone();
        thread::Builder::new().name(name).spawn(move || of_thread.run())?;
        Ok(Self(shared))
    }

    /// Queues a put, or, without a block, a delete, in the place of what is queued for this key. Whether there was room.
    pub(crate) fn push(&self, key: BlockKey, block: Option<Block>) -> bool {
        let mut state = self.0.state();
        let write = Write { id: state.next_id, block };
        let queued = state.queue.peek(&key);
        if queued.is_some_and(|queued| queued.block.is_some() == write.block.is_some()) {
            return true;
        }
        let replaced = queued.map_or(0, Write::len);
        let room = !state.closed && state.nbytes - replaced + write.len() <= self.0.max_queued;
        if !room {
            state.counts.dropped += 1;
            return false;
        }
        state.remove(&key);
        state.next_id += 1;
        state.nbytes += write.len();
        state.queue.push(key, write);
        self.0.changed.notify_all();
        true
    }

    pub(crate) fn queued(&self, key: &BlockKey) -> Option<Queued> {
        let state = self.0.state();
        state.queue.peek(key).map(|write| write.block.clone().map_or(Queued::Delete, Queued::Put))
    }

    /// Waits until nothing is queued. Whether that was before `end`.
    pub(crate) fn flush(&self, end: Instant) -> bool {
        let mut state = self.0.state();
        while !state.queue.is_empty() {
            let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) else {
                return false;
            };
            state = self.0.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
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
        self.0.state().close();
        self.0.changed.notify_all();
    }

    pub(crate) fn counts(&self) -> Counts {
        self.0.state().counts
    }
}
