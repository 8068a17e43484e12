//! Session files are read as they were written, and replaced whole.

/// Whether an error is of a kind, and says so.
macro_rules! assert_refused {
    ($error:expr, $pattern:pat $(if $guard:expr)?) => {{
        let error = $error;
        assert!(matches!(&error, $pattern $(if $guard)?), "{error:?}");
        let name = format!("{error:?}").split(|c: char| !c.is_alphanumeric()).next().unwrap().to_owned();
        assert_eq!(error.kind().replace('_', ""), name.to_lowercase());
    }};
}

mod refused;

use std::io::{Cursor, Read, Seek};
use std::ops::Range;

use safetensors::{Dtype, SafeTensors};
use xxhash_rust::xxh3::xxh3_128;

use crate::session::contents::SavedSequence;
use crate::session::error::SessionError;
use crate::session::read::{BLOCK, SessionFile};
use crate::session::spec::{SavedRope, SessionSpec};
use crate::session::write::{Session, write, write_to};

fn spec() -> SessionSpec {
    SessionSpec {
        num_layer: 2,
        num_heads: 1,
        head_dim: 4,
        cache_type: "int8".to_owned(),
        scale_type: Some("float16".to_owned()),
        quant_bit: 8,
        quant_group: 4,
        key_form: "roped".to_owned(),
        rope: Some(SavedRope { style: "neox".to_owned(), n_rot: 4, frequencies: vec![1.0, 0.1 + 0.2] }),
        fingerprint: "a \"model\" \\ ü".to_owned(),
        row_len: 24,
    }
}

fn small() -> Session {
    let sequences = vec![
        SavedSequence {
            salt: b"\x00salt\xff".to_vec(),
            shifts: 3,
            gone: None,
            ga_i: 0,
            rows: vec![0, 1, 2],
            positions: vec![0, 1, 7],
            tokens: vec![11, u32::MAX],
        },
        SavedSequence::default(),
        SavedSequence { gone: Some(4), rows: vec![0, 4], positions: vec![5, i32::MAX - 1], ..SavedSequence::default() },
    ];
    Session { spec: spec(), sequences, num_rows: 5 }
}

fn rows(range: Range<usize>, row_len: usize) -> Vec<u8> {
    (range.start * row_len..range.end * row_len).map(|i| (i * 7 + i / 251) as u8).collect()
}

fn to_bytes(session: &Session) -> Vec<u8> {
    let mut file = Cursor::new(Vec::new());
    write_to::<SessionError>(&mut file, session, |range, bytes| {
        bytes.copy_from_slice(&rows(range, session.spec.row_len));
        Ok(())
    })
    .unwrap();
    file.into_inner()
}

/// All that a file has: its sequences and rows, read at once and block by block.
fn read(mut file: impl Read + Seek, spec: &SessionSpec) -> Result<(Vec<SavedSequence>, Vec<u8>), SessionError> {
    let at_once = read_within(&mut file, spec, u64::MAX);
    let in_blocks = read_within(&mut file, spec, 0);
    assert_eq!(format!("{at_once:?}"), format!("{in_blocks:?}"));
    in_blocks
}

fn read_within(
    file: impl Read + Seek,
    spec: &SessionSpec,
    in_memory: u64,
) -> Result<(Vec<SavedSequence>, Vec<u8>), SessionError> {
    let file = SessionFile::open_within(file, in_memory)?;
    spec.check(file.spec())?;
    let num_sequences = file.num_sequences();
    let (sequences, reader) = file.read_sequences(|_| true)?;
    assert_eq!(sequences.len(), num_sequences);
    let mut rows = Vec::new();
    reader.read::<SessionError>(|first, bytes| {
        assert_eq!(first * spec.row_len, rows.len());
        rows.extend_from_slice(bytes);
        Ok(())
    })?;
    Ok((sequences, rows))
}

fn refused(bytes: &[u8]) -> SessionError {
    read(Cursor::new(bytes), &spec()).unwrap_err()
}

fn digest_place(bytes: &[u8]) -> Range<usize> {
    const KEY: &[u8] = b"\"digest\":\"";
    let start = bytes.windows(KEY.len()).position(|window| window == KEY).unwrap() + KEY.len();
    start..start + 32
}

/// Gives bytes the digest that they should have.
fn sign(bytes: &mut [u8]) {
    let place = digest_place(bytes);
    bytes[place.clone()].fill(b'0');
    let digest = format!("{:032x}", xxh3_128(bytes));
    bytes[place].copy_from_slice(digest.as_bytes());
}

fn parts(bytes: &[u8]) -> (String, &[u8]) {
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    (String::from_utf8(bytes[8..8 + len].to_vec()).unwrap(), &bytes[8 + len..])
}

fn signed(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(data);
    sign(&mut bytes);
    bytes
}

/// A session's error, once a text in its header is replaced; its digest is right.
fn edited(from: &str, to: &str) -> SessionError {
    let bytes = to_bytes(&small());
    let (header, data) = parts(&bytes);
    assert_eq!(header.matches(from).count(), 1, "{from} in {header}");
    refused(&signed(&header.replace(from, to), data))
}

#[test]
fn what_is_written_is_read() {
    let session = small();
    let bytes = to_bytes(&session);
    assert_eq!(bytes, to_bytes(&session), "the same session gives the same bytes");
    let (sequences, got) = read(Cursor::new(&bytes), &session.spec).unwrap();
    assert_eq!(sequences, session.sequences);
    assert_eq!(got, rows(0..5, 24));

    let empty = Session { sequences: Vec::new(), num_rows: 0, ..session };
    assert_eq!(read(Cursor::new(to_bytes(&empty)), &empty.spec).unwrap(), (Vec::new(), Vec::new()));
    let bare = SessionSpec { scale_type: None, quant_bit: 0, quant_group: 0, rope: None, ..spec() };
    let bare = Session { spec: bare, sequences: vec![SavedSequence::default()], num_rows: 0 };
    assert_eq!(read(Cursor::new(to_bytes(&bare)), &bare.spec).unwrap(), (bare.sequences, Vec::new()));
}

#[test]
fn one_sequence_is_read_alone() {
    let session = small();
    let (sequences, _) =
        SessionFile::open(Cursor::new(to_bytes(&session))).unwrap().read_sequences(|i| i == 2).unwrap();
    assert_eq!(sequences, session.sequences[2..]);
}

/// The format does not change unnoticed.
#[test]
fn the_bytes_are_these() {
    let bytes = to_bytes(&small());
    assert!(bytes == include_bytes!("../../../tests/sessions/small.safetensors"));
}

/// Any reader of safetensors reads a session, and the digest is what the specification says.
#[test]
fn a_session_is_a_safetensors_file() {
    let bytes = to_bytes(&small());
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(tensors.len(), 10);
    let tensor = tensors.tensor("rows").unwrap();
    assert_eq!((tensor.dtype(), tensor.shape(), tensor.data()), (Dtype::U8, &[5, 24][..], &rows(0..5, 24)[..]));

    let mut copy = bytes.clone();
    sign(&mut copy);
    assert_eq!(copy, bytes);
    let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
    let digest = metadata.metadata().as_ref().and_then(|metadata| metadata.get("digest")).unwrap();
    assert_eq!(digest.as_bytes(), &bytes[digest_place(&bytes)]);

    // Written by others: entries in another order, with spaces, escapes and keys of their own.
    let (header, data) = parts(&bytes);
    let (metadata, tensors) = header.trim_end().split_once("\"},").unwrap();
    let metadata = metadata.replace(r#""int8","#, "\"\\u0069nt8\" ,\n\"max_t\": \"64\",");
    let header = format!(" {{{}, {}\"}} }}", tensors.strip_suffix('}').unwrap(), metadata.strip_prefix('{').unwrap());
    read(Cursor::new(signed(&header, data)), &spec()).unwrap();
}

#[test]
fn a_header_that_is_too_long_is_not_written() {
    let mut session = small();
    session.spec.fingerprint = "x".repeat(100_000_000);
    let mut file = Cursor::new(Vec::new());
    let error = write_to::<SessionError>(&mut file, &session, |_, _| unreachable!()).unwrap_err();
    assert_refused!(error, SessionError::HeaderLength { got, max } if got > max);
    assert!(file.into_inner().is_empty());
}

#[test]
fn a_file_is_replaced_whole_or_not_at_all() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("session");
    let files = || directory.path().read_dir().unwrap().count();
    let session = small();
    let save = |fails: bool| {
        write::<SessionError>(&path, &session, |range, bytes| {
            if fails {
                return Err(SessionError::NoRoom { need: 1, free: 0 });
            }
            bytes.copy_from_slice(&rows(range, 24));
            Ok(())
        })
    };
    save(true).unwrap_err();
    assert_eq!(files(), 0);
    std::fs::write(&path, "before").unwrap();
    save(true).unwrap_err();
    assert_eq!((files(), std::fs::read(&path).unwrap()), (1, b"before".to_vec()));
    save(false).unwrap();
    assert_eq!((files(), std::fs::read(&path).unwrap()), (1, to_bytes(&session)));
    let path = directory.path().join("missing").join("session");
    assert_refused!(
        write::<SessionError>(&path, &session, |_, _| Ok(())).unwrap_err(),
        SessionError::Io { action: "create a file", .. }
    );
}

/// Blocks have no seams: rows and numbers around the length of one.
#[test]
fn blocks_have_no_seams() {
    let lengths = [1, BLOCK / 8 - 1, BLOCK / 8, BLOCK / 8 + 1, 2 * BLOCK / 8 + 5];
    for (row_len, num_rows) in [(1, BLOCK + 1), (1000, 1049), (BLOCK / 3, 7), (BLOCK, 2), (BLOCK + 1, 3)] {
        let sequence = |len: usize| SavedSequence {
            rows: (0..len).map(|row| (row % num_rows) as u64).collect(),
            positions: (0..len as i32).collect(),
            tokens: (0..len).map(|row| !(row % num_rows) as u32).collect(),
            ..SavedSequence::default()
        };
        let spec = SessionSpec { row_len, ..spec() };
        let session = Session { spec, sequences: lengths.map(sequence).to_vec(), num_rows };
        let (sequences, got) = read(Cursor::new(to_bytes(&session)), &session.spec).unwrap();
        assert!(sequences == session.sequences);
        assert!(got == rows(0..num_rows, row_len));
    }
}
