//! `ObjectTier` on memory, files, and an S3 server.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use kvcache_manager::{Block, BlockError, BlockStore, StoreError};
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
    with(port, &[])
}

fn with(port: u16, more: &[(&str, &str)]) -> ObjectTier {
    let options = [
        ("aws_endpoint", format!("http://127.0.0.1:{port}")),
        ("allow_http", "true".into()),
        ("aws_access_key_id", "id".into()),
        ("aws_secret_access_key", "secret".into()),
        ("region", "us-east-1".into()),
    ];
    let more = more.iter().map(|&(name, value)| (name, value.to_owned()));
    ObjectTier::open("s3://blocks/some/prefix", options.into_iter().chain(more)).unwrap()
}

/// A server that answers each request by its first line, its headers and its body; gives the port.
fn server(answer: impl Fn(&str, &str, Vec<u8>, &mut TcpStream) + Send + Sync + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, answer) = (listener.local_addr().unwrap().port(), Arc::new(answer));
    thread::spawn(move || {
        for stream in listener.incoming() {
            let answer = answer.clone();
            thread::spawn(move || {
                let mut stream = stream.unwrap();
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let (mut head, mut line) = (String::new(), String::new());
                while reader.read_line(&mut line).is_ok_and(|len| len > 2) {
                    head.push_str(&std::mem::take(&mut line).to_ascii_lowercase());
                }
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
                let mut body = vec![0; length.unwrap_or(0)];
                reader.read_exact(&mut body).unwrap();
                if let Some(line) = head.lines().next() {
                    answer(line, &head, body, &mut stream);
                }
            });
        }
    });
    port
}

/// An answer whose connection then ends.
fn say(stream: &mut TcpStream, status: &str, length: u64, body: &[u8]) {
    let head = "Last-Modified: Mon, 01 Jan 2024 00:00:00 GMT\r\nETag: \"1\"\r\nConnection: close";
    // Nobody may be there any more.
    let _ = write!(stream, "HTTP/1.1 {status}\r\n{head}\r\nContent-Length: {length}\r\n\r\n");
    let _ = stream.write_all(body);
}

/// What is no block, however long it is or says it is, is a miss, and takes no more memory than a block.
#[test]
fn no_answer_is_believed() {
    const HUGE: u64 = 8 << 40;
    let whole = block(0).parts().concat();
    let length = whole.len() as u64;
    let mut long = whole.clone();
    long[48..56].copy_from_slice(&(HUGE / 100).to_le_bytes());
    let cases: [(&str, u64, Vec<u8>, Option<BlockError>); 7] = [
        ("200 OK", HUGE, whole.clone(), Some(BlockError::Length)),
        ("200 OK", length + 1, [&whole[..], &[0]].concat(), Some(BlockError::Length)),
        ("200 OK", length - 1, whole[..whole.len() - 1].to_vec(), Some(BlockError::Length)),
        ("200 OK", length, long, Some(BlockError::Length)),
        // Of a page of 2 MiB.
        ("200 OK", 2 << 20, vec![7; 2 << 20], Some(BlockError::Length)),
        ("200 OK", length, whole[..9000].to_vec(), None),
        ("403 Forbidden", HUGE, vec![b'x'; 100_000], Some(BlockError::Length)),
    ];
    for (status, length, body, expected) in cases {
        let body_of_server = body.clone();
        let tier = at(server(move |_, _, _, stream| say(stream, status, length, &body_of_server)));
        let tier = tier.timeout(Duration::from_secs(20));
        tier.expect_blocks(Block::len_with(40_000));
        let context = format!("{status}, {length} bytes said, {} sent", body.len());
        for error in [tier.get(&key(0)).unwrap_err(), tier.get_chain(&keys(0..2)).1.unwrap()] {
            match (&error, expected) {
                (StoreError::Bad(bad), Some(expected)) => assert_eq!(*bad, expected, "{context}"),
                (StoreError::Failed(_) | StoreError::Late(_), None) => {}
                _ => panic!("{context}: {error}"),
            }
        }
    }
    // A body without a length that does not end.
    let tier = at(server(|_, _, _, stream| {
        let head = "Last-Modified: Mon, 01 Jan 2024 00:00:00 GMT\r\nETag: \"1\"\r\nTransfer-Encoding: chunked";
        let _ = write!(stream, "HTTP/1.1 500 Internal Server Error\r\n{head}\r\n\r\n");
        while write!(stream, "10000\r\n").and_then(|()| stream.write_all(&[b'x'; 0x10000])).is_ok()
            && stream.write_all(b"\r\n").is_ok()
        {}
    }));
    assert!(tier.timeout(Duration::from_secs(5)).get(&key(0)).is_err());
}

/// One that says 501, as servers that imitate S3 do, or of which an option says so; the first put stays.
#[test]
fn stores_without_conditional_puts_keep_blocks() {
    for says in [true, false] {
        let objects = Arc::new(Mutex::new(std::collections::HashMap::<String, Vec<u8>>::new()));
        let conditional = Arc::new(Mutex::new(0));
        let (of_server, counted) = (objects.clone(), conditional.clone());
        let port = server(move |line, head, body, stream| {
            let (method, path) = line.split_once(' ').unwrap();
            let path = path.split(' ').next().unwrap().to_owned();
            let mut objects = of_server.lock().unwrap();
            if head.contains("if-none-match") {
                *counted.lock().unwrap() += 1;
                return say(stream, "501 Not Implemented", 0, b"");
            }
            match (method, objects.get(&path)) {
                ("put", _) => {
                    objects.insert(path, body);
                    say(stream, "200 OK", 0, b"");
                }
                ("post", _) => {
                    let body = String::from_utf8(body).unwrap();
                    let key = body.split_once("<Key>").unwrap().1.split_once("</Key>").unwrap().0;
                    objects.remove(&format!("/blocks/{key}"));
                    let deleted = format!("<DeleteResult><Deleted><Key>{key}</Key></Deleted></DeleteResult>");
                    say(stream, "200 OK", deleted.len() as u64, deleted.as_bytes());
                }
                (_, None) => say(stream, "404 Not Found", 0, b""),
                ("head", Some(object)) => say(stream, "200 OK", object.len() as u64, b""),
                (_, Some(object)) => say(stream, "200 OK", object.len() as u64, object),
            }
        });
        let disabled = [("aws_conditional_put", "disabled")];
        keeps_blocks(&with(port, if says { &[] } else { &disabled }).timeout(NEVER));
        // It is asked once whether it knows them.
        assert_eq!(*conditional.lock().unwrap(), usize::from(says));
        assert!(objects.lock().unwrap().is_empty());
    }
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

#[test]
fn an_address_of_https_is_asked_by_tls() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("https://{}", listener.local_addr().unwrap());
    let first_byte = thread::spawn(move || {
        let mut byte = [0];
        listener.accept().unwrap().0.read_exact(&mut byte).unwrap();
        byte[0]
    });
    let options =
        [("aws_endpoint", endpoint.as_str()), ("aws_access_key_id", "id"), ("aws_secret_access_key", "secret")];
    let tier = ObjectTier::open("s3://blocks", options).unwrap().timeout(Duration::from_secs(1));
    assert!(tier.contains(&key(0)).is_err(), "the server answers nothing");
    assert_eq!(first_byte.join().unwrap(), 22, "a handshake");
}
