//! `ObjectTier` on memory, files, and an S3 server.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use kvcache_manager::{BlockStore, StoreError};
use kvcache_tiers::{HostTier, ObjectTier, Tier, Tiers};

use super::{Server, block, free_port, keeps_blocks};
use crate::{NEVER, key, keys, wait_for};

const NONE: [(&str, &str); 0] = [];

/// An S3 server with a bucket `blocks`.
struct S3 {
    port: u16,
    _server: Server,
}

impl S3 {
    fn start() -> Self {
        let port = free_port();
        let server = Server::start("KVCACHE_MOTO_SERVER", &["-H", "127.0.0.1", "-p", &port.to_string()]);
        let this = Self { port, _server: server };
        wait_for(|| this.request("PUT", "/blocks", b"").is_some_and(|status| status == 200));
        this
    }

    /// Gives the status.
    fn request(&self, method: &str, path: &str, body: &[u8]) -> Option<u16> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        let length = body.len();
        // The server asks for a signature and does not check it.
        let signature = "AWS4-HMAC-SHA256 Credential=id/20260101/us-east-1/s3/aws4_request";
        let head = format!("Host: 127.0.0.1\r\nConnection: close\r\nAuthorization: {signature}");
        write!(stream, "{method} {path} HTTP/1.1\r\n{head}\r\nContent-Length: {length}\r\n\r\n").ok()?;
        stream.write_all(body).ok()?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).ok()?;
        std::str::from_utf8(answer.get(9..12)?).ok()?.parse().ok()
    }

    fn tier(&self) -> ObjectTier {
        at(self.port).timeout(NEVER)
    }
}

fn at(port: u16) -> ObjectTier {
    let options = [
        ("aws_endpoint", format!("http://127.0.0.1:{port}")),
        ("allow_http", "true".into()),
        ("aws_access_key_id", "id".into()),
        ("aws_secret_access_key", "secret".into()),
        ("region", "us-east-1".into()),
    ];
    ObjectTier::open("s3://blocks/some/prefix", options).unwrap()
}

#[test]
fn memory_and_files_keep_blocks() {
    keeps_blocks(&ObjectTier::open("memory:///", NONE).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let tier = || ObjectTier::open(&format!("file://{}", folder.path().display()), NONE).unwrap().timeout(NEVER);
    keeps_blocks(&tier());
    tier().put(&key(1), block(1)).unwrap();
    assert_eq!(tier().get(&key(1)).unwrap(), Some(block(1)));
}

#[test]
fn s3_keeps_blocks_and_altered_ones_are_a_miss() {
    let s3 = S3::start();
    keeps_blocks(&s3.tier());
    let open = || {
        let remote = [Tier::new("s3", Arc::new(s3.tier())).deadline(NEVER)];
        Tiers::new(HostTier::new(1 << 30), remote).unwrap()
    };
    let writer = open();
    (0..40).for_each(|i| writer.put(&key(i), block(i)).unwrap());
    assert!(writer.flush(NEVER));
    let mut altered = block(30).parts().concat();
    altered[5000] ^= 1;
    let path = |i| format!("/blocks/some/prefix/{}/{}", &key(i).to_string()[..2], key(i));
    assert_eq!(s3.request("PUT", &path(30), &altered), Some(200));
    let reader = open();
    let (blocks, error) = reader.get_chain(&keys(0..40));
    assert!(matches!(error, Some(StoreError::Bad(_))));
    assert_eq!(blocks, (0..30).map(block).collect::<Vec<_>>());
    let stats = &reader.stats()[1];
    assert_eq!((stats.hits, stats.misses["checksum"], stats.misses.values().sum::<u64>()), (30, 1, 1));
    // What is there goes when there is another block for its place.
    assert_eq!(s3.request("HEAD", &path(30), b""), Some(200));
    reader.delete(&key(30)).unwrap();
    reader.put(&key(30), block(30)).unwrap();
    assert!(reader.flush(NEVER));
    assert_eq!(open().get(&key(30)).unwrap(), Some(block(30)));
}

#[test]
fn a_server_that_is_dead_or_silent_is_a_miss_in_time() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = at(listener.local_addr().unwrap().port()).timeout(Duration::from_millis(100));
    assert!(matches!(silent.get(&key(0)), Err(StoreError::Late(_))));
    assert!(matches!(silent.put(&key(0), block(0)), Err(StoreError::Late(_))));
    assert!(matches!(silent.get_chain(&keys(0..40)).1, Some(StoreError::Late(_))));
    let dead = at(free_port()).timeout(Duration::from_millis(100));
    assert!(dead.get(&key(0)).is_err());
    // As a tier, with the ordinary timeouts.
    let tiers = Tiers::new(HostTier::new(1 << 30), [Tier::new("s3", Arc::new(at(free_port())))]).unwrap();
    tiers.put(&key(0), block(0)).unwrap();
    assert_eq!(tiers.get(&key(0)).unwrap(), Some(block(0)));
    assert!(tiers.get(&key(1)).is_err());
}

#[test]
fn it_can_be_called_inside_a_runtime() {
    let tier = ObjectTier::open("memory:///", NONE).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async { keeps_blocks(&tier) });
}

#[test]
fn unknown_addresses_and_options_are_refused() {
    for url in ["s3", "ftp://host/path", "http://host/path", "s3://"] {
        assert!(matches!(ObjectTier::open(url, NONE), Err(StoreError::Failed(_))), "{url}");
    }
    let option = ("aws_endpiont", "http://127.0.0.1");
    let error = ObjectTier::open("s3://blocks", [option]).unwrap_err();
    assert_eq!(error.to_string(), "\"aws_endpiont\" is no option of s3");
    // A secret does not show.
    assert!(!format!("{:?}", at(1)).contains("secret"));
}
