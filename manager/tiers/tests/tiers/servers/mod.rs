//! Object stores and Redis: on servers that are started here, stop, die and come back.

mod objects;
mod redis;

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use kvcache_manager::{Block, BlockKind, BlockStore};

use crate::{key, keys};

fn block(i: u8) -> Block {
    Block::new(BlockKind::Prefix, &key(i), vec![i; 40_000].into(), 100).unwrap()
}

/// What every store does.
fn keeps_blocks(store: &impl BlockStore) {
    assert_eq!(store.get(&key(0)).unwrap(), None);
    assert!(!store.contains(&key(0)).unwrap());
    (0..40).for_each(|i| store.put(&key(i), block(i)).unwrap());
    // The first is kept.
    store.put(&key(7), block(8)).unwrap();
    assert_eq!(store.get(&key(7)).unwrap(), Some(block(7)));
    let chain = |range| {
        let (blocks, error) = store.get_chain(&keys(range));
        assert!(error.is_none(), "{error:?}");
        blocks
    };
    assert_eq!(chain(0..100), (0..40).map(block).collect::<Vec<_>>());
    assert_eq!(chain(8..40).len(), 32);
    assert!(chain(40..100).is_empty());
    assert!(store.contains(&key(20)).unwrap());
    [20, 20].iter().for_each(|&i| store.delete(&key(i)).unwrap());
    assert!(!store.contains(&key(20)).unwrap());
    assert_eq!(chain(0..40).len(), 20);
    (0..40).for_each(|i| store.delete(&key(i)).unwrap());
    assert!(chain(0..40).is_empty());
}

/// A process that ends with the test.
struct Server(Child);

impl Server {
    /// Starts the program that a variable names, as `make test-tiers` sets it.
    fn start(variable: &str, arguments: &[&str]) -> Self {
        let program = std::env::var_os(variable).unwrap_or_else(|| panic!("{variable} names no program"));
        let mut command = Command::new(program);
        Self(command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    fn signal(&self, signal: &str) {
        let id = self.0.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// A port that nobody listens on.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
