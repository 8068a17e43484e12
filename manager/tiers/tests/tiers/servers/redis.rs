//! `RedisTier` on a Redis server.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::thread;
use std::time::Duration;

use kvcache_manager::{BlockError, BlockStore, StoreError};
use kvcache_tiers::RedisTier;

use super::{Server, block, keeps_blocks};
use crate::{NEVER, key, keys, wait_for};

/// A server on a socket in a folder, with 4 MB for blocks.
fn start(folder: &Path) -> Server {
    let socket = folder.join("socket");
    let socket = socket.to_str().unwrap();
    let memory = ["--maxmemory", "4mb", "--maxmemory-policy", "noeviction", "--save", "", "--appendonly", "no"];
    let server = Server::start(
        "KVCACHE_REDIS_SERVER",
        &[&["--port", "0", "--unixsocket", socket, "--dir", folder.to_str().unwrap()], &memory[..]].concat(),
    );
    let tier = open(folder);
    wait_for(|| tier.contains(&key(0)).is_ok());
    server
}

fn url(folder: &Path) -> String {
    format!("unix://{}", folder.join("socket").display())
}

fn open(folder: &Path) -> RedisTier {
    RedisTier::open(&url(folder)).unwrap().timeout(NEVER)
}

#[test]
fn redis_keeps_blocks_until_it_is_full() {
    let folder = tempfile::tempdir().unwrap();
    let _server = start(folder.path());
    let tier = open(folder.path());
    keeps_blocks(&tier);
    let refused = (0..200).find(|&i| tier.put(&key(i), block(i)).is_err()).unwrap();
    assert!(refused > 10, "{refused}");
    assert_eq!(tier.get(&key(0)).unwrap(), Some(block(0)));
    assert_eq!(tier.get(&key(refused)).unwrap(), None);
    (0..10).for_each(|i| tier.delete(&key(i)).unwrap());
    let tier = tier.expiry(Duration::from_millis(50));
    tier.put(&key(0), block(0)).unwrap();
    wait_for(|| !tier.contains(&key(0)).unwrap());
}

/// Killed and started anew, or stopped for a while: what is given afterwards is what was asked for.
#[test]
fn it_connects_anew() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path());
    let tier = open(folder.path());
    tier.put(&key(1), block(1)).unwrap();
    drop(server);
    assert!(matches!(tier.get(&key(1)), Err(StoreError::Failed(_))));
    let server = start(folder.path());
    assert_eq!(tier.get(&key(1)).unwrap(), None);
    tier.put(&key(2), block(2)).unwrap();
    drop(server);
    let server = start(folder.path());
    // An old connection, of which it does not know yet that it is closed.
    tier.put(&key(3), block(3)).unwrap();
    let hasty = open(folder.path()).timeout(Duration::from_millis(100));
    hasty.put(&key(2), block(2)).unwrap();
    server.signal("-STOP");
    assert!(matches!(hasty.get(&key(2)), Err(StoreError::Late(_))));
    server.signal("-CONT");
    wait_for(|| hasty.get(&key(3)).is_ok());
    let hasty = hasty.timeout(NEVER);
    for i in [3, 2] {
        assert_eq!(hasty.get(&key(i)).unwrap(), Some(block(i)));
    }
}

/// What another program has left under a key is no block, and of a longer one only the beginning is read.
#[test]
fn other_values_are_a_miss() {
    let folder = tempfile::tempdir().unwrap();
    let _server = start(folder.path());
    let tier = open(folder.path());
    tier.expect_blocks(block(0).nbytes());
    (0..5).for_each(|i| tier.put(&key(i), block(i)).unwrap());
    let mut program = redis::Client::open(url(folder.path())).unwrap().get_connection().unwrap();
    let name = |i| format!("kvcache:{}", key(i));
    redis::cmd("SET").arg(name(5)).arg(vec![0u8; 100_000]).exec(&mut program).unwrap();
    redis::cmd("RPUSH").arg(name(6)).arg("1").exec(&mut program).unwrap();
    assert!(matches!(tier.get(&key(5)), Err(StoreError::Bad(BlockError::Length))));
    assert!(matches!(tier.get(&key(6)), Err(StoreError::Failed(_))));
    let (blocks, error) = tier.get_chain(&keys(0..10));
    assert_eq!(blocks, (0..5).map(block).collect::<Vec<_>>());
    assert!(matches!(error, Some(StoreError::Bad(BlockError::Length))));
}

/// A server that announces 8 TiB, as one text or as so many: no memory is taken for what does not come.
#[test]
fn no_length_is_believed() {
    for huge in ["$8796093022208\r\nkvblock1", "*8796093022208\r\n$1\r\na\r\n", "$-7\r\n", "%9\r\n", "\r\n"] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, mut read) = (stream.unwrap(), [0; 4096]);
                while let Ok(len @ 1..) = stream.read(&mut read) {
                    let asked = String::from_utf8_lossy(&read[..len]).to_string();
                    let answer = if asked.contains("GETRANGE") {
                        huge.to_owned()
                    } else {
                        "+OK\r\n".repeat(asked.matches('*').count())
                    };
                    if stream.write_all(answer.as_bytes()).is_err() {
                        break;
                    }
                }
            }
        });
        let tier = RedisTier::open(&url).unwrap().timeout(Duration::from_millis(200));
        assert!(matches!(tier.get(&key(0)), Err(_) | Ok(None)), "{huge}");
        assert_eq!(tier.get_chain(&keys(0..20)).0, []);
    }
}

#[test]
fn an_address_of_another_kind_is_refused() {
    for url in ["redis", "http://host", "rediss://host"] {
        assert!(matches!(RedisTier::open(url), Err(StoreError::Failed(_))), "{url}");
    }
    let tier = RedisTier::open("redis://:secret@127.0.0.1:1").unwrap();
    assert_eq!(format!("{tier:?}"), "RedisTier(127.0.0.1:1)");
}
