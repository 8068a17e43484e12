//! No other file is read than one that was written.

use std::cell::Cell;
use std::io::{self, Cursor, Read, Seek, SeekFrom};
use std::rc::Rc;

use super::{digest_place, edited, parts, read_within, refused, signed, small, spec, to_bytes};
use crate::session::error::SessionError;
use crate::session::read::SessionFile;
use crate::session::spec::{SavedRope, SessionSpec};
use crate::session::write::Session;

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

/// What no manager's specification differs in alone; the rest is refused by managers, in `tests`.
#[test]
fn rows_of_another_length_and_ropes_of_another_kind_are_refused() {
    let check = |change: &dyn Fn(&mut SessionSpec)| {
        let mut session = small();
        change(&mut session.spec);
        spec().check(&session.spec).unwrap_err()
    };
    assert_refused!(check(&|spec| spec.rope = None), SessionError::Rope { name, .. } if name == "the style");
    let truncate = |rope: &mut SavedRope| rope.frequencies.truncate(1);
    let error = check(&|spec| spec.rope.iter_mut().for_each(truncate));
    assert_refused!(error, SessionError::Rope { name, .. } if name == "n_rot");
    assert_refused!(check(&|spec| spec.row_len = 25), SessionError::Tensor { .. });
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
