//! Tiers that are slow, fail and lie; bounds; files that several processes share; servers, with the features of both.

mod bounds;
mod faults;
mod files;
mod order;
#[cfg(all(feature = "object_store", feature = "redis"))]
mod servers;

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use kvcache_manager::{Block, BlockKey, BlockKind};
use kvcache_testing::manager::store::{Fault, Store};

/// What no call waits for, however loaded the machine is.
const NEVER: Duration = Duration::from_secs(60);

fn key(i: u8) -> BlockKey {
    BlockKey::from_bytes([i; 32])
}

fn keys(range: Range<u8>) -> Vec<BlockKey> {
    range.map(key).collect()
}

/// The block of a key, of a length of its own.
fn block_of(kind: BlockKind, i: u8) -> Block {
    let rows: Vec<u8> = (0..16 * (1 + i % 5)).map(|at| at ^ i).collect();
    Block::new(kind, &key(i), rows.into(), 16).unwrap()
}

fn prefix(i: u8) -> Block {
    block_of(BlockKind::Prefix, i)
}

/// A store with the prefix blocks of these keys, and with faults.
fn holding(blocks: Range<u8>, faults: &[Fault]) -> Arc<Store> {
    Store::holding(blocks.map(|i| (key(i), prefix(i))), faults)
}

fn wait_for(mut what: impl FnMut() -> bool) {
    let began = Instant::now();
    while !what() {
        assert!(began.elapsed() < NEVER);
        thread::sleep(Duration::from_micros(200));
    }
}

/// Fails if a function does not end.
fn ends<T: Send + 'static>(function: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = channel();
    let thread = thread::spawn(move || sender.send(function()));
    match receiver.recv_timeout(NEVER) {
        Ok(value) => value,
        Err(error) => match thread.is_finished().then(|| thread.join()) {
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            _ => panic!("it waits: {error}"),
        },
    }
}
