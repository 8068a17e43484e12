//! What a session file says, read without the manager's reader, and whether it may be loaded.

use std::collections::{BTreeMap, HashMap};

use kvcache_manager::{KeyForm, MAX_POSITION};
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_128;

/// The bytes of a row: 2 layers, each with a key and a value of 4 int8 and a scale.
pub const ROW: usize = 24;
/// What the model is called.
pub const FINGERPRINT: &str = "a \"model\" \\ ü";
/// By which keys are rotated.
pub const FREQUENCIES: [f64; 2] = [1.0, 0.1 + 0.2];

/// What is before the digest in a file.
const KEY: &[u8] = b"\"digest\":\"";

/// Where the digest is in a file.
pub fn digest_at(bytes: &[u8]) -> Option<usize> {
    let start = bytes.windows(KEY.len()).position(|window| window == KEY)? + KEY.len();
    (start + 32 <= bytes.len()).then_some(start)
}

/// The digest that the bytes should have.
pub fn digest(bytes: &[u8]) -> Option<String> {
    let start = digest_at(bytes)?;
    let mut bytes = bytes.to_vec();
    bytes[start..start + 32].fill(b'0');
    Some(format!("{:032x}", xxh3_128(&bytes)))
}

/// A sequence of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    /// Its salt.
    pub salt: Vec<u8>,
    /// How often its keys were rotated.
    pub shifts: u32,
    /// The last position that a window has removed.
    pub gone: Option<i64>,
    /// By row: its index in the rows of the file.
    pub rows: Vec<usize>,
    /// By row.
    pub positions: Vec<i64>,
    /// Of the first rows.
    pub tokens: Vec<u32>,
}

impl Saved {
    /// How many of the first rows have tokens, and positions that are their rows.
    pub fn known(&self) -> usize {
        (0..).zip(&self.positions).take(self.tokens.len()).take_while(|&(row, &position)| row == position).count()
    }
}

/// A file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// In order.
    pub sequences: Vec<Saved>,
    /// The bytes of all rows.
    pub rows: Vec<[u8; ROW]>,
    /// Whether no object of the header has two entries of one name, of which readers may see either.
    pub is_plain: bool,
}

impl Session {
    /// What a file says; `None` if it breaks a rule. That tokens agree is not among them: see [`tokens_agree`].
    pub fn read(bytes: &[u8], key_form: KeyForm) -> Option<Self> {
        let file = SafeTensors::deserialize(bytes).ok()?;
        let (header_len, header) = SafeTensors::read_metadata(bytes).ok()?;
        let metadata = header.metadata().as_ref()?;
        let text = str::from_utf8(bytes.get(8..8 + header_len)?).ok()?;
        (metadata.get("digest")? == digest(bytes)?.as_str()).then_some(())?;
        let form = if key_form == KeyForm::Raw { "raw" } else { "roped" };
        let texts = [
            ("format", "kvcache-session"),
            ("version", "1"),
            ("cache_type", "int8"),
            ("scale_type", "float16"),
            ("key_form", form),
            ("rope_style", "neox"),
            ("fingerprint", FINGERPRINT),
        ];
        texts.iter().all(|(key, value)| metadata.get(*key).is_some_and(|got| got == value)).then_some(())?;
        let numbers: [(_, usize); 6] = [
            ("num_layer", 2),
            ("num_heads", 1),
            ("head_dim", 4),
            ("quant_bit", 8),
            ("quant_group", 4),
            ("rope_n_rot", 4),
        ];
        numbers.iter().all(|(key, n)| metadata.get(*key).and_then(|got| got.parse().ok()) == Some(*n)).then_some(())?;
        let frequencies: Result<Vec<f64>, _> = metadata.get("rope_frequencies")?.split(',').map(str::parse).collect();
        (frequencies.ok()? == FREQUENCIES).then_some(())?;

        let mut left: BTreeMap<String, _> = file.tensors().into_iter().collect();
        let rows = left.remove("rows").filter(|rows| rows.dtype() == Dtype::U8)?;
        matches!(rows.shape(), [_, ROW]).then_some(())?;
        (header.info("rows")?.data_offsets.1 == header.data_len()).then_some(())?;
        let rows = rows.data().as_chunks().0.to_vec();
        let Value::Array(entries) = serde_json::from_str(metadata.get("sequences")?).ok()? else { return None };
        let mut sequences = Vec::new();
        for (i, entry) in entries.iter().enumerate() {
            let mut part = |name: &str, dtype| -> Option<Vec<u8>> {
                let tensor = left.remove(&format!("sequence.{i}.{name}"))?;
                (tensor.dtype() == dtype && tensor.shape().len() == 1).then(|| tensor.data().to_vec())
            };
            let indexes = part("rows", Dtype::U64)?;
            let (tokens, positions) = (part("tokens", Dtype::U32)?, part("positions", Dtype::I32)?);
            let sequence = Saved {
                rows: indexes.as_chunks().0.iter().map(|&row| u64::from_le_bytes(row) as usize).collect(),
                positions: positions.as_chunks().0.iter().map(|&at| i32::from_le_bytes(at).into()).collect(),
                tokens: tokens.as_chunks().0.iter().map(|&token| u32::from_le_bytes(token)).collect(),
                ..read_entry(entry)?
            };
            let Saved { rows: indexes, positions, tokens, .. } = &sequence;
            let is_right = positions.len() == indexes.len()
                && tokens.len() <= indexes.len()
                && indexes.iter().all(|&index| index < rows.len())
                && positions.iter().all(|position| (0..=MAX_POSITION).contains(position))
                && positions.is_sorted();
            is_right.then(|| sequences.push(sequence))?;
        }
        let is_plain = keys(text) == count(&serde_json::from_str(text).ok()?)
            && keys(metadata.get("sequences")?) == count(&Value::Array(entries));
        left.is_empty().then_some(Self { sequences, rows, is_plain })
    }
}

/// What the metadata says of a sequence: a salt in hexadecimal digits, a number and perhaps a position, nothing else.
fn read_entry(entry: &Value) -> Option<Saved> {
    let entry = entry.as_object()?;
    entry.keys().all(|key| ["salt", "shifts", "gone"].contains(&key.as_str())).then_some(())?;
    let digits: Vec<char> = entry.get("salt")?.as_str()?.chars().collect();
    let byte = |pair: &[char]| match pair {
        [high, low] => Some((high.to_digit(16)? << 4 | low.to_digit(16)?) as u8),
        _ => None,
    };
    let gone = match entry.get("gone") {
        None | Some(Value::Null) => None,
        Some(gone) => Some(gone.as_i64().filter(|gone| (0..=MAX_POSITION).contains(gone))?),
    };
    Some(Saved {
        salt: digits.chunks(2).map(byte).collect::<Option<_>>()?,
        shifts: entry.get("shifts")?.as_u64()?.try_into().ok()?,
        gone,
        rows: Vec::new(),
        positions: Vec::new(),
        tokens: Vec::new(),
    })
}

/// Whether rows that sequences share have one token.
pub fn tokens_agree(sequences: &[Saved]) -> bool {
    let mut tokens = HashMap::new();
    let rows = sequences.iter().flat_map(|sequence| sequence.rows.iter().zip(&sequence.tokens));
    { rows }.all(|(row, token)| *tokens.entry(row).or_insert(token) == token)
}

/// How many keys the objects of a text of JSON have: strings before a colon.
fn keys(text: &str) -> usize {
    let (mut keys, mut bytes) = (0, text.bytes());
    let mut after_string = false;
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => {
                while let Some(byte) = bytes.next().filter(|&byte| byte != b'"') {
                    if byte == b'\\' {
                        bytes.next();
                    }
                }
                after_string = true;
            }
            b':' => keys += usize::from(std::mem::take(&mut after_string)),
            b' ' | b'\t' | b'\n' | b'\r' => {}
            _ => after_string = false,
        }
    }
    keys
}

/// How many keys objects have that were read, of equal ones one.
fn count(value: &Value) -> usize {
    match value {
        Value::Object(entries) => entries.len() + entries.values().map(count).sum::<usize>(),
        Value::Array(values) => values.iter().map(count).sum(),
        _ => 0,
    }
}
