//! Session files are read as they were written, and replaced whole; a file that was not written is refused.

use std::fs;
use std::io::{Cursor, Read, Seek};
use std::ops::Range;
use std::path::Path;

use kvcache_kernels::{Rope, RopeStyle};
use kvcache_schema::ElementType;
use safetensors::{Dtype, SafeTensors};
use xxhash_rust::xxh3::xxh3_128;

use crate::session::error::SessionError;
use crate::session::file::BLOCK;
use crate::session::sequences::{self, SavedSequence};
use crate::spec::{CacheSettings, CacheSpec, Geometry};

/// Rows of 24 bytes: 2 layers, each with a key and a value of 4 int8 and a scale.
fn spec() -> CacheSpec {
    let settings = CacheSettings {
        geometry: Geometry { num_layer: 2, num_heads: 1, head_dim: 4, max_t: 128 },
        cache_type: ElementType::Int8,
        quant: Some((4, ElementType::Float16)),
        rope: Some(Rope::with_frequencies(RopeStyle::Neox, vec![1.0, 0.1 + 0.2])),
        fingerprint: "a \"model\" \\ ü".into(),
        ..CacheSettings::default()
    };
    settings.check().unwrap()
}

fn small() -> Vec<SavedSequence> {
    let first = SavedSequence {
        salt: b"\x00salt\xff".to_vec(),
        shifts: 3,
        gone: None,
        ga_i: 0,
        rows: vec![0, 1, 2],
        positions: vec![0, 1, 7],
        tokens: vec![11, u32::MAX],
    };
    let last =
        SavedSequence { gone: Some(4), rows: vec![0, 4], positions: vec![5, i32::MAX - 1], ..SavedSequence::default() };
    vec![first, SavedSequence::default(), last]
}

fn rows(range: Range<usize>, row_len: usize) -> Vec<u8> {
    (range.start * row_len..range.end * row_len).map(|i| (i * 7 + i / 251) as u8).collect()
}

fn save(path: &Path, spec: &CacheSpec, sequences: &[SavedSequence], num_rows: usize) -> Result<(), SessionError> {
    sequences::write(path, spec, sequences, num_rows, |range, bytes| {
        bytes.copy_from_slice(&rows(range, spec.bytes_per_token()));
        Ok(())
    })
}

fn saved(spec: &CacheSpec, sequences: &[SavedSequence], num_rows: usize) -> Vec<u8> {
    let file = tempfile::NamedTempFile::new().unwrap();
    save(file.path(), spec, sequences, num_rows).unwrap();
    fs::read(file.path()).unwrap()
}

/// All that a file has: its sequences and rows.
fn read(file: impl Read + Seek, spec: &CacheSpec) -> Result<(Vec<SavedSequence>, Vec<u8>), SessionError> {
    let (sequences, reader) = sequences::read(file, spec, None)?;
    let mut rows = Vec::new();
    reader.read::<SessionError>(|first, bytes| {
        assert_eq!(first * spec.bytes_per_token(), rows.len());
        rows.extend_from_slice(bytes);
        Ok(())
    })?;
    Ok((sequences, rows))
}

/// Checks that a file is refused with an error of this kind, which says this.
#[track_caller]
fn refuses(bytes: &[u8], kind: &str, what: &str) {
    let error = read(Cursor::new(bytes), &spec()).unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(what), "\"{error}\" does not say \"{what}\"");
}

/// The header of a file, and the data after it.
fn parts(bytes: &[u8]) -> (&str, &[u8]) {
    let (len, rest) = bytes.split_first_chunk().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*len) as usize);
    (str::from_utf8(header).unwrap(), data)
}

/// A file with a header of any bytes, and the digest of it.
fn signed(header: &[u8], data: &[u8]) -> Vec<u8> {
    let data = data.split_last_chunk::<16>().map_or(data, |(data, _)| data);
    let bytes = [&(header.len() as u64).to_le_bytes(), header, data].concat();
    let digest = xxh3_128(&bytes).to_be_bytes();
    [bytes, digest.to_vec()].concat()
}

#[test]
fn what_is_written_is_read() {
    let (spec, sequences) = (spec(), small());
    let bytes = saved(&spec, &sequences, 5);
    assert!(bytes == include_bytes!("../../tests/sessions/small.safetensors"), "the format has changed");
    assert_eq!(read(Cursor::new(&bytes), &spec).unwrap(), (sequences.clone(), rows(0..5, 24)));
    let (third, _) = sequences::read(Cursor::new(&bytes), &spec, Some(2)).unwrap();
    assert_eq!(third, sequences[2..]);
    assert_eq!(read(Cursor::new(saved(&spec, &[], 0)), &spec).unwrap(), (Vec::new(), Vec::new()));
    let plain = CacheSettings { geometry: spec.geometry, ..CacheSettings::default() }.check().unwrap();
    let empty = vec![SavedSequence::default()];
    assert_eq!(read(Cursor::new(saved(&plain, &empty, 0)), &plain).unwrap(), (empty, Vec::new()));
}

/// Any reader of safetensors reads a session. Other writers order the header's entries in another way.
#[test]
fn a_session_is_a_safetensors_file_whose_last_tensor_is_its_digest() {
    let bytes = saved(&spec(), &small(), 5);
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let tensor = tensors.tensor("rows").unwrap();
    assert_eq!((tensor.dtype(), tensor.shape(), tensor.data()), (Dtype::U8, &[5, 24][..], &rows(0..5, 24)[..]));
    let (before, last) = bytes.split_last_chunk::<16>().unwrap();
    assert_eq!(tensors.tensor("digest").unwrap().data(), last);
    assert_eq!(xxh3_128(before).to_be_bytes(), *last);

    let (header, data) = parts(&bytes);
    let (metadata, tensors) = header.trim_end().split_once("\"},").unwrap();
    let metadata = metadata.replace(r#""int8","#, "\"\\u0069nt8\" ,\n\"max_t\": \"64\",");
    let header = format!(" {{{}, {}\"}} }}", tensors.strip_suffix('}').unwrap(), metadata.strip_prefix('{').unwrap());
    read(Cursor::new(signed(header.as_bytes(), data)), &spec()).unwrap();
}

/// Blocks have no seams: rows and numbers around the length of one.
#[test]
fn blocks_have_no_seams() {
    let lengths = [1, BLOCK / 8 - 1, BLOCK / 8, BLOCK / 8 + 1, 2 * BLOCK / 8 + 5];
    for (row_len, num_rows) in [(2, BLOCK / 2 + 1), (1000, 1049), (BLOCK / 3 + 1, 7), (BLOCK, 2), (BLOCK + 2, 3)] {
        let sequence = |len: usize| SavedSequence {
            rows: (0..len).map(|row| (row % num_rows) as u64).collect(),
            positions: (0..len as i32).collect(),
            tokens: (0..len).map(|row| !(row % num_rows) as u32).collect(),
            ..SavedSequence::default()
        };
        let geometry = Geometry { num_layer: 1, num_heads: 1, head_dim: row_len / 2, max_t: 128 };
        let spec =
            CacheSettings { geometry, cache_type: ElementType::Int8, ..CacheSettings::default() }.check().unwrap();
        let sequences = lengths.map(sequence).to_vec();
        let (read, got) = read(Cursor::new(saved(&spec, &sequences, num_rows)), &spec).unwrap();
        assert!(read == sequences && got == rows(0..num_rows, row_len), "{num_rows} rows of {row_len} bytes");
    }
}

#[test]
fn a_file_is_replaced_whole_or_not_at_all() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("session");
    let files = || directory.path().read_dir().unwrap().count();
    let fail = || sequences::write(&path, &spec(), &small(), 5, |_, _| Err(SessionError::NoRoom { need: 1, free: 0 }));
    assert_eq!((fail().unwrap_err().kind(), files()), ("no_room", 0));
    fs::write(&path, "before").unwrap();
    assert_eq!((fail().unwrap_err().kind(), files()), ("no_room", 1));
    assert_eq!(fs::read(&path).unwrap(), b"before");
    save(&path, &spec(), &small(), 5).unwrap();
    assert_eq!((files(), fs::read(&path).unwrap()), (1, saved(&spec(), &small(), 5)));

    let missing = directory.path().join("missing").join("session");
    assert_eq!(save(&missing, &spec(), &small(), 5).unwrap_err().kind(), "io");
    let long =
        CacheSettings { geometry: spec().geometry, fingerprint: "x".repeat(100_000_000), ..CacheSettings::default() }
            .check()
            .unwrap();
    assert_eq!(save(&path, &long, &[], 0).unwrap_err().kind(), "header_length");
    assert_eq!(files(), 1);
}

#[test]
fn files_without_the_header_of_a_session_are_refused() {
    refuses(b"a text without a header", "header_length", "expected at most 100000000");
    let long = |len: u64, header: &str| [&len.to_le_bytes(), header.as_bytes()].concat();
    refuses(&long(u64::MAX, "{}"), "header_length", "the header has 18446744073709551615 bytes");
    refuses(&long(100_000_000, "{}"), "truncated", "the file has 10 bytes, expected 100000008");
    let nested = format!("{{\"__metadata__\":{{\"a\":{}1{}}}}}", "[".repeat(100_000), "]".repeat(100_000));
    for text in ["", "{", "[]", "{\"a\":", "{}x", "\0\0", "{\"__metadata__\":{\"a\":1}}", &nested, &nested[..90_000]] {
        refuses(&signed(text.as_bytes(), &[]), "header", "malformed");
    }
    refuses(&signed(&[b'{', 0xff, 0xfe, b'}'], &[]), "header", "malformed");
    for text in ["{}", "{\"__metadata__\":{}}"] {
        refuses(&signed(text.as_bytes(), &[]), "format", "format is missing, expected \"kvcache-session\"");
    }
}

/// A file of an older version says so before anything else is wrong.
#[test]
fn a_file_of_another_version_is_refused() {
    for version in ["1", "2"] {
        let header = format!(r#"{{"__metadata__":{{"digest":"0","format":"kvcache-session","version":"{version}"}}}}"#);
        let message = format!("version is \"{version}\", expected \"3\"");
        refuses(&signed(header.as_bytes(), &[]), "version", &message);
    }
}

#[test]
fn headers_that_no_session_has_are_refused() {
    let bytes = saved(&spec(), &small(), 5);
    let (header, data) = parts(&bytes);
    let refuses_edit = |from: &str, to: &str, kind: &str, what: &str| {
        assert_eq!(header.matches(from).count(), 1, "{from} in {header}");
        refuses(&signed(header.replace(from, to).as_bytes(), data), kind, what);
    };
    for (from, to, kind, what) in [
        ("kvcache-session", "pt", "format", "\"pt\""),
        (r#""version":"3""#, r#""v":"2""#, "version", "missing"),
        // Tensors: their names, types and shapes, and where they are.
        (r#""rows":"#, r#""r":"#, "missing_tensor", "rows"),
        (r#""digest":"#, r#""d":"#, "missing_tensor", "digest"),
        (r#""sequence.1.tokens""#, r#""sequence.7.rows""#, "missing_tensor", "sequence.1.tokens"),
        (
            r#","digest":{"#,
            r#","x":{"dtype":"U8","shape":[0],"data_offsets":[188,188]},"digest":{"#,
            "unknown_tensor",
            "tensor x",
        ),
        ("[68,188]", "[69,188]", "header", "offset"),
        ("[5,24]", "[5,23]", "header", "shape"),
        ("[5,24]", "[9223372036854775808,24]", "header", "overflow"),
        (r#""dtype":"U8","shape":[5,24]"#, r#""shape":[5,24]"#, "header", "dtype"),
        (r#""dtype":"U8","shape":[5,24]"#, r#""dtype":"I8","shape":[5,24]"#, "tensor", "rows is I8"),
        ("[5,24]", "[120]", "tensor", "rows"),
        ("[5,24]", "[24,5]", "tensor", "expected U8 of shape [24, 24]"),
        ("[16]", "[4,4]", "tensor", "digest"),
        (r#""dtype":"U8","shape":[16]"#, r#""dtype":"I8","shape":[16]"#, "tensor", "digest"),
        // Metadata.
        (r#""cache_type":"#, r#""x":"#, "metadata", "cache_type is missing"),
        (r#""key_form":"#, r#""x":"#, "metadata", "key_form is missing"),
        (r#""fingerprint":"#, r#""x":"#, "metadata", "fingerprint is missing"),
        (r#""sequences":"#, r#""x":"#, "metadata", "sequences is missing"),
        (r#""rope_frequencies":"#, r#""x":"#, "metadata", "rope_frequencies is missing"),
        (r#""rope_style":"neox""#, r#""x":"neox""#, "rope", "the style of RoPE is none"),
        (r#""rope_n_rot":"4""#, r#""rope_n_rot":"-1""#, "rope", "n_rot of RoPE is -1, expected 4"),
        ("1.0,0.30000000000000004", "1.0,0.3", "rope", "frequency 1 of RoPE is 0.3"),
        ("1.0,0.30000000000000004", "1.0", "rope", "the list of frequencies"),
        ("1.0,0.30000000000000004", "1.0,0.30000000000000004,", "rope", "the list of frequencies"),
        (r#"[0,115,97,108,116,255]"#, "[0,115,97,108,116,256]", "metadata", "sequences"),
        (r#"\"shifts\":3"#, r#"\"shifts\":-1"#, "metadata", "sequences"),
        (r#"\"shifts\":3"#, r#"\"shifts\":4294967296"#, "metadata", "sequences"),
        (r#"\"shifts\":3"#, r#"\"other\":3"#, "metadata", "sequences"),
        (r#"\"gone\":4"#, r#"\"gone\":-1"#, "metadata", "sequences"),
        (r#"\"gone\":4"#, r#"\"gone\":2147483647"#, "metadata", "sequences"),
        (r#""[{"#, r#""{"#, "metadata", "sequences"),
    ] {
        refuses_edit(from, to, kind, what);
    }
    for (key, number) in [("num_layer", 2), ("num_heads", 1), ("head_dim", 4), ("quant_bit", 8), ("quant_group", 4)] {
        let from = format!("\"{key}\":\"{number}\"");
        for to in ["\"x\":\"1\"", &format!("\"{key}\":\"-1\""), &format!("\"{key}\":\"{}0\"", u64::MAX)] {
            refuses_edit(&from, to, "metadata", key);
        }
    }
    let longer = header.replace("[48,60]", "[48,56]").replace("[60,60]", "[56,56]").replace("[60,68]", "[56,68]");
    let longer = longer.replace(r#""I32","shape":[3]"#, r#""I32","shape":[x]"#);
    let longer = longer.replace(r#""I32","shape":[2]"#, r#""I32","shape":[3]"#).replace("[x]", "[2]");
    refuses(&signed(longer.as_bytes(), data), "tensor", "sequence.0.positions is I32 of shape [2]");
}

#[test]
fn sequences_that_no_manager_has_are_refused() {
    let refuses = |change: &dyn Fn(&mut [SavedSequence]), kind: &str, what: &str| {
        let mut sequences = small();
        change(&mut sequences);
        refuses(&saved(&spec(), &sequences, 5), kind, what);
    };
    refuses(&|all| all[2].rows[1] = 5, "row_index", "row 1 of sequence 2 is row 5 of the file, which has 5");
    refuses(&|all| all[0].rows[0] = u64::MAX, "row_index", "row 0 of sequence 0");
    for position in [-1, i32::MIN, i32::MAX] {
        refuses(&|all| all[2].positions = vec![5, position], "position_range", &format!("position {position}"));
    }
    refuses(&|all| all[0].positions = vec![3, 3, 2], "position_order", "position 2, expected 3 or a later one");
    refuses(&|all| all[2].tokens = vec![1, 2, 3], "known_tokens", "sequence 2 has 3 tokens, but 2 rows");
    refuses(&|all| all[2].tokens = vec![12], "row_tokens", "row 0 of the file is of the tokens [11, 12]");
    // Those of a sequence that is not asked for, too.
    let mut sequences = small();
    sequences[0].rows[0] = 5;
    let file = Cursor::new(saved(&spec(), &sequences, 5));
    assert_eq!(sequences::read(file, &spec(), Some(2)).err().unwrap().kind(), "row_index");
}
