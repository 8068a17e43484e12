//! Session files are read as they were written, and no other file is.

use std::cell::Cell;
use std::io::{self, Cursor, Read, Seek, SeekFrom};
use std::ops::Range;
use std::rc::Rc;

use safetensors::{Dtype, SafeTensors};
use xxhash_rust::xxh3::xxh3_128;

use super::contents::SavedSequence;
use super::error::SessionError;
use super::read::{BLOCK, SessionFile};
use super::spec::{SavedRope, SessionSpec};
use super::write::{Session, write, write_to};

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
            rows: vec![0, 1, 2],
            positions: vec![0, 1, 7],
            tokens: vec![11, u32::MAX],
        },
        SavedSequence::default(),
        SavedSequence { gone: Some(4), rows: vec![0, 4], positions: vec![5, i32::MAX - 1], ..SavedSequence::default() },
    ];
    Session { spec: spec(), sequences, num_rows: 5 }
}

/// The bytes of rows, all different.
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

/// Where the digest's characters are.
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

/// The header as text, and the data.
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

macro_rules! assert_refused {
    ($error:expr, $pattern:pat $(if $guard:expr)?) => {{
        let error = $error;
        assert!(matches!(&error, $pattern $(if $guard)?), "{error:?}");
        let name = format!("{error:?}").split(|c: char| !c.is_alphanumeric()).next().unwrap().to_owned();
        assert_eq!(error.kind().replace('_', ""), name.to_lowercase());
    }};
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

/// The format does not change unnoticed: neither its text nor its bytes.
#[test]
fn the_bytes_are_these() {
    let bytes = to_bytes(&small());
    assert!(bytes == include_bytes!("../../tests/sessions/small.safetensors"));
    let (header, data) = parts(&bytes);
    let expected = concat!(
        r#"{"__metadata__":{"cache_type":"int8","digest":"f12a8556ef36b4a1371d4758b41b1138","fingerprint":"#,
        r#""a \"model\" \\ ü","format":"kvcache-session","head_dim":"4","key_form":"roped","num_heads":"1","#,
        r#""num_layer":"2","quant_bit":"8","quant_group":"4","rope_frequencies":"1.0,0.30000000000000004","#,
        r#""rope_n_rot":"4","rope_style":"neox","scale_type":"float16","sequences":"[{\"salt\":\"0073616c74ff\","#,
        r#"\"shifts\":3},{\"salt\":\"\",\"shifts\":0},{\"salt\":\"\",\"shifts\":0,\"gone\":4}]","version":"1"},"#,
        r#""sequence.0.rows":{"dtype":"U64","shape":[3],"data_offsets":[0,24]},"#,
        r#""sequence.1.rows":{"dtype":"U64","shape":[0],"data_offsets":[24,24]},"#,
        r#""sequence.2.rows":{"dtype":"U64","shape":[2],"data_offsets":[24,40]},"#,
        r#""sequence.0.tokens":{"dtype":"U32","shape":[2],"data_offsets":[40,48]},"#,
        r#""sequence.1.tokens":{"dtype":"U32","shape":[0],"data_offsets":[48,48]},"#,
        r#""sequence.2.tokens":{"dtype":"U32","shape":[0],"data_offsets":[48,48]},"#,
        r#""sequence.0.positions":{"dtype":"I32","shape":[3],"data_offsets":[48,60]},"#,
        r#""sequence.1.positions":{"dtype":"I32","shape":[0],"data_offsets":[60,60]},"#,
        r#""sequence.2.positions":{"dtype":"I32","shape":[2],"data_offsets":[60,68]},"#,
        r#""rows":{"dtype":"U8","shape":[5,24],"data_offsets":[68,188]}}"#,
    );
    assert_eq!(header.trim_end(), expected);
    assert_eq!(header.len() % 8, 0);
    let mut numbers: Vec<u8> = [0u64, 1, 2, 0, 4].iter().flat_map(|row| row.to_le_bytes()).collect();
    numbers.extend([11u32, u32::MAX].iter().flat_map(|token| token.to_le_bytes()));
    numbers.extend([0i32, 1, 7, 5, i32::MAX - 1].iter().flat_map(|position| position.to_le_bytes()));
    assert_eq!(data[..68], numbers);
    assert_eq!(data[68..], rows(0..5, 24));
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
fn every_flipped_byte_is_refused() {
    let bytes = to_bytes(&small());
    let mut copy = bytes.clone();
    for i in 0..bytes.len() {
        for flip in [0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xff] {
            copy[i] = bytes[i] ^ flip;
            assert!(read(Cursor::new(&copy), &spec()).is_err(), "byte {i} ^ {flip}");
        }
        copy[i] = bytes[i];
    }
}

#[test]
fn every_other_length_is_refused() {
    let bytes = to_bytes(&small());
    for len in 0..bytes.len() {
        assert_refused!(
            refused(&bytes[..len]),
            SessionError::Truncated { expected, got } if *got == len as u64 && expected > got
        );
    }
    for more in [1, 8, 1000] {
        let mut longer = bytes.clone();
        longer.resize(bytes.len() + more, 0);
        assert_refused!(
            refused(&longer),
            SessionError::Trailing { expected, got } if got - expected == more as u64
        );
    }
}

#[test]
fn other_files_are_refused() {
    assert_refused!(refused(b"a text without a header"), SessionError::HeaderLength { max: 100_000_000, .. });
    let header_of = |len: u64, header: &str| refused(&[&len.to_le_bytes(), header.as_bytes()].concat());
    assert_refused!(header_of(u64::MAX, "{}"), SessionError::HeaderLength { got: u64::MAX, .. });
    assert_refused!(header_of(100_000_000, "{}"), SessionError::Truncated { expected: 100_000_008, got: 10 });
    for text in ["", "{", "[]", "{\"a\":", "{}x", "\u{0}\u{0}", "{\"__metadata__\":{\"a\":1}}"] {
        assert_refused!(header_of(text.len() as u64, text), SessionError::Header { .. });
    }
    let nested = format!("{{\"a\":{}", "[".repeat(1_000_000));
    assert_refused!(header_of(nested.len() as u64, &nested), SessionError::Header { .. });
    let nested = format!("{{\"__metadata__\":{{\"a\":{}1{}}}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert_refused!(header_of(nested.len() as u64, &nested), SessionError::Header { .. });
    assert_refused!(
        refused(&[&4u64.to_le_bytes()[..], &[b'{', 0xff, 0xfe, b'}']].concat()),
        SessionError::Header { .. }
    );

    assert_refused!(header_of(2, "{}"), SessionError::Format { got: None });
    assert_refused!(header_of(19, "{\"__metadata__\":{}}"), SessionError::Format { got: None });
    assert_refused!(edited("kvcache-session", "pt"), SessionError::Format { got: Some(got) } if got == "pt");
    assert_refused!(
        edited("\"version\":\"1\"", "\"version\":\"2\""),
        SessionError::Version { got: Some(got), .. } if got == "2"
    );
    assert_refused!(edited("\"version\":\"1\"", "\"v\":\"1\""), SessionError::Version { got: None, .. });
}

#[test]
fn digests_are_checked() {
    let bytes = to_bytes(&small());
    let place = digest_place(&bytes);
    let mut upper = bytes.clone();
    upper[place.clone()].make_ascii_uppercase();
    assert_ne!(upper, bytes);
    assert_refused!(refused(&upper), SessionError::Digest { .. });
    let mut short = parts(&bytes).0;
    short.replace_range(place.start - 8..place.start - 7, "");
    let short = [&(short.len() as u64).to_le_bytes(), short.as_bytes(), parts(&bytes).1].concat();
    assert_refused!(refused(&short), SessionError::Metadata { key: "digest", .. });
    let mut damaged = bytes.clone();
    *damaged.last_mut().unwrap() ^= 1;
    assert_refused!(
        refused(&damaged),
        SessionError::Digest { expected, got } if expected.as_bytes() == &bytes[place.clone()] && got.len() == 32
    );
}

/// A file of which a byte changes once it was read to its end.
struct Changing<'a> {
    file: Cursor<&'a [u8]>,
    at: u64,
    ended: Rc<Cell<bool>>,
}

impl Read for Changing<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let start = self.file.position();
        let len = self.file.read(buf)?;
        if self.ended.get() && (start..start + len as u64).contains(&self.at) {
            buf[(self.at - start) as usize] ^= 1;
        }
        self.ended.set(self.ended.get() || self.file.position() == self.file.get_ref().len() as u64);
        Ok(len)
    }
}

impl Seek for Changing<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

#[test]
fn a_file_that_changes_while_it_is_read_is_refused() {
    let bytes = to_bytes(&small());
    let data = bytes.len() - parts(&bytes).1.len();
    for at in data..bytes.len() {
        let ended = Rc::new(Cell::new(false));
        let file = Changing { file: Cursor::new(&bytes[..]), at: at as u64, ended: ended.clone() };
        assert!(read_within(file, &spec(), 0).is_err(), "byte {at}");
        assert!(ended.get());
    }
}

#[test]
fn tensors_are_checked() {
    assert_refused!(
        edited("\"sequence.1.tokens\"", "\"sequence.1.rows\""),
        SessionError::DuplicateTensor { name } if name == "sequence.1.rows"
    );
    assert_refused!(
        edited("\"sequence.1.tokens\"", "\"sequence.7.rows\""),
        SessionError::MissingTensor { name } if name == "sequence.1.tokens"
    );
    assert_refused!(edited("\"rows\":", "\"r\":"), SessionError::MissingTensor { name } if name == "rows");
    assert_refused!(
        edited(r#","rows":{"#, r#","x":{"dtype":"U8","shape":[0],"data_offsets":[68,68]},"rows":{"#),
        SessionError::UnknownTensor { name } if name == "x"
    );
    let places = [
        // A gap, an overlap, a fall, too many bytes for the shape.
        ("[68,188]", "[69,188]"),
        ("[60,68]", "[52,68]"),
        ("[60,68]", "[68,60]"),
        ("[5,24]", "[5,23]"),
        ("[5,24]", "[4,24]"),
        // Numbers that overflow, or that are none.
        ("[5,24]", "[9223372036854775808,24]"),
        ("[5,24]", "[18446744073709551616,24]"),
        ("[5,24]", "[4611686018427387904,4,0]"),
        ("[68,188]", "[68,18446744073709551615]"),
        ("[68,188]", "[-1,188]"),
        ("[68,188]", "[68]"),
        ("\"U8\"", "\"U9\""),
    ];
    for (from, to) in places {
        assert_refused!(edited(from, to), SessionError::Header { .. });
    }
    assert_refused!(edited(r#"{"dtype":"U8","shape":[5,24],"#, r#"{"shape":[5,24],"#), SessionError::Header { .. });
    assert_refused!(edited("\"shape\":[5,24]", "\"shape\":[120]"), SessionError::Tensor { name, .. } if name == "rows");
    assert_refused!(edited("\"U8\"", "\"I8\""), SessionError::Tensor { name, .. } if name == "rows");
    assert_refused!(edited("[5,24]", "[24,5]"), SessionError::Tensor { name, .. } if name == "rows");
    let bytes = to_bytes(&small());
    let (header, data) = parts(&bytes);
    let swapped = header.replace("[48,60]", "[48,56]").replace("[60,60]", "[56,56]").replace("[60,68]", "[56,68]");
    let swapped = swapped.replace(r#""I32","shape":[3]"#, r#""I32","shape":[x]"#);
    let swapped = swapped.replace(r#""I32","shape":[2]"#, r#""I32","shape":[3]"#).replace("[x]", "[2]");
    assert_refused!(
        refused(&signed(&swapped, data)),
        SessionError::Tensor { name, .. } if name == "sequence.0.positions"
    );
    // All bytes are some tensor's, but the rows are not the last.
    let first = r#""rows":{"dtype":"U8","shape":[0,24],"data_offsets":[0,0]},"sequence.0.rows""#;
    let moved = header.replace("\"rows\":{", "\"x\":{").replace("\"sequence.0.rows\"", first);
    assert_refused!(refused(&signed(&moved, data)), SessionError::Tensor { name, .. } if name == "rows");
}

#[test]
fn metadata_is_checked() {
    for (from, key) in [
        ("\"num_layer\":\"2\"", "num_layer"),
        ("\"num_heads\":\"1\"", "num_heads"),
        ("\"head_dim\":\"4\"", "head_dim"),
        ("\"quant_bit\":\"8\"", "quant_bit"),
        ("\"quant_group\":\"4\"", "quant_group"),
        ("\"rope_n_rot\":\"4\"", "rope_n_rot"),
    ] {
        for to in ["\"x\":\"1\"".to_owned(), format!("\"{key}\":\"-1\""), format!("\"{key}\":\"{}0\"", u64::MAX)] {
            assert_refused!(edited(from, &to), SessionError::Metadata { key: got, .. } if *got == key);
        }
    }
    for key in ["cache_type", "key_form", "fingerprint", "sequences", "rope_frequencies"] {
        let error = edited(&format!("\"{key}\":"), "\"x\":");
        assert_refused!(error, SessionError::Metadata { key: got, got: None, .. } if *got == key);
    }
    for to in ["1.0,x", "1.0,", ",", " "] {
        let error = edited("1.0,0.30000000000000004", to);
        assert_refused!(error, SessionError::Metadata { key: "rope_frequencies", .. });
    }
    for (from, to) in [
        ("0073616c74ff", "0073616c74f"),
        ("0073616c74ff", "+073616c74ff"),
        ("0073616c74ff", "0g73616c74ff"),
        ("\\\"shifts\\\":3", "\\\"shifts\\\":-1"),
        ("\\\"shifts\\\":3", "\\\"shifts\\\":4294967296"),
        ("\\\"shifts\\\":3", "\\\"other\\\":3"),
        ("\\\"gone\\\":4", "\\\"gone\\\":-1"),
        ("\\\"gone\\\":4", "\\\"gone\\\":2147483647"),
        ("\"[{", "\"{"),
    ] {
        assert_refused!(edited(from, to), SessionError::Metadata { key: "sequences", .. });
    }
    assert_refused!(edited("\"num_heads\"", "\"num_layer\""), SessionError::Header { .. });
    assert_refused!(edited(",\"rows\":{", ",\"__metadata__\":{},\"rows\":{"), SessionError::Header { .. });
}

#[test]
fn rows_of_another_cache_are_refused() {
    let check = |change: &dyn Fn(&mut SessionSpec)| {
        let mut session = small();
        change(&mut session.spec);
        spec().check(&session.spec).unwrap_err()
    };
    assert_refused!(
        check(&|spec| spec.num_layer = 3),
        SessionError::Dimensions { name: "num_layer", expected: 2, got: 3 }
    );
    assert_refused!(check(&|spec| spec.num_heads = 3), SessionError::Dimensions { name: "num_heads", .. });
    assert_refused!(check(&|spec| spec.head_dim = 3), SessionError::Dimensions { name: "head_dim", .. });
    assert_refused!(check(&|spec| spec.cache_type = "int4".to_owned()), SessionError::Types { tensor: "cache", .. });
    assert_refused!(check(&|spec| spec.scale_type = None), SessionError::Types { tensor: "scale", .. });
    assert_refused!(
        check(&|spec| spec.scale_type = Some("float32".to_owned())),
        SessionError::Types { tensor: "scale", expected, got } if expected == "float16" && got == "float32"
    );
    assert_refused!(
        check(&|spec| (spec.quant_bit, spec.quant_group, spec.scale_type) = (0, 0, None)),
        SessionError::Quantization { attribute: "quant_bit", expected: 8, got: 0 }
    );
    assert_refused!(
        check(&|spec| spec.quant_group = 2),
        SessionError::Quantization { attribute: "quant_group", expected: 4, got: 2 }
    );
    assert_refused!(check(&|spec| spec.key_form = "raw".to_owned()), SessionError::KeyForm { .. });
    assert_refused!(check(&|spec| spec.rope = None), SessionError::Rope { name, .. } if name == "the style");
    let rope = |change: &dyn Fn(&mut SavedRope)| check(&|spec| spec.rope.iter_mut().for_each(change));
    assert_refused!(rope(&|rope| rope.style = "gptj".to_owned()), SessionError::Rope { .. });
    assert_refused!(rope(&|rope| rope.n_rot = 2), SessionError::Rope { name, .. } if name == "n_rot");
    assert_refused!(rope(&|rope| rope.frequencies.truncate(1)), SessionError::Rope { name, .. } if name == "n_rot");
    assert_refused!(
        rope(&|rope| rope.frequencies[1] = 0.3),
        SessionError::Rope { name, got, .. } if name == "frequency 1" && got == "0.3"
    );
    assert_refused!(check(&|spec| spec.fingerprint = String::new()), SessionError::Fingerprint { .. });
    assert_refused!(check(&|spec| spec.row_len = 25), SessionError::Tensor { .. });
    spec().check(&spec()).unwrap();
}

#[test]
fn sequences_are_checked() {
    let check = |change: &dyn Fn(&mut Session)| {
        let mut session = small();
        change(&mut session);
        refused(&to_bytes(&session))
    };
    assert_refused!(
        check(&|session| session.sequences[2].rows[1] = 5),
        SessionError::RowIndex { sequence: 2, row: 1, got: 5, rows: 5 }
    );
    assert_refused!(check(&|session| session.sequences[0].rows[0] = u64::MAX), SessionError::RowIndex { .. });
    for position in [-1, i32::MIN, i32::MAX] {
        assert_refused!(
            check(&|session| session.sequences[2].positions = vec![5, position]),
            SessionError::PositionRange { sequence: 2, row: 1, got, .. } if *got == i64::from(position)
        );
    }
    assert_refused!(
        check(&|session| session.sequences[0].positions = vec![3, 3, 2]),
        SessionError::PositionOrder { sequence: 0, row: 2, got: 2, min: 3 }
    );
    assert_refused!(
        check(&|session| session.sequences[2].tokens = vec![1, 2, 3]),
        SessionError::KnownTokens { sequence: 2, tokens: 3, rows: 2 }
    );
    assert_refused!(
        check(&|session| session.sequences[2].tokens = vec![12]),
        SessionError::RowTokens { row: 0, tokens: [11, 12] }
    );
    // Of a sequence that is not asked for, too.
    let mut session = small();
    session.sequences[0].rows[0] = 5;
    let file = SessionFile::open(Cursor::new(to_bytes(&session))).unwrap();
    assert_refused!(file.read_sequences(|i| i == 2).err().unwrap(), SessionError::RowIndex { .. });
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
