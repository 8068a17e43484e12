//! What a session has, and how its header says it: of what cache it is, sequences, and their places in the file.

use std::collections::{BTreeMap, HashMap};

use safetensors::Dtype;
use safetensors::tensor::TensorInfo;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::error::SessionError;
use super::header::{DIGEST, FORMAT, Header, VERSION, clip};
use super::spec::{ROWS, SavedRope, SessionSpec};
use crate::positions::MAX_POSITION;

/// A sequence. The header has what is not in tensors.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedSequence {
    #[serde(serialize_with = "to_hex", deserialize_with = "from_hex")]
    pub(crate) salt: Vec<u8>,
    pub(crate) shifts: u32,
    /// The last position that a window has removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) gone: Option<i64>,
    /// The first position that self-extend has not grouped.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) ga_i: i64,
    /// By row: its index in the rows of the file.
    #[serde(skip)]
    pub(crate) rows: Vec<u64>,
    #[serde(skip)]
    pub(crate) positions: Vec<i32>,
    /// The tokens of the first rows.
    #[serde(skip)]
    pub(crate) tokens: Vec<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Rows,
    Tokens,
    Positions,
}

#[derive(Debug, PartialEq)]
pub(super) struct Contents {
    pub(super) spec: SessionSpec,
    /// Without what is in tensors.
    pub(super) sequences: Vec<SavedSequence>,
    /// By sequence: its rows, and those of known tokens.
    pub(super) lens: Vec<(usize, usize)>,
    /// The tensors of sequences, in the order of the data.
    pub(super) parts: Vec<(Part, usize)>,
    pub(super) num_rows: usize,
}

/// What the header says of sequences.
const SEQUENCES: &str = "a list of salts in hexadecimal digits, shift counts and positions";

/// Whether a field is left out.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
fn is_zero(number: &i64) -> bool {
    *number == 0
}

impl Part {
    const ALL: [Self; 3] = [Self::Rows, Self::Tokens, Self::Positions];

    const fn dtype(self) -> Dtype {
        match self {
            Self::Rows => Dtype::U64,
            Self::Tokens => Dtype::U32,
            Self::Positions => Dtype::I32,
        }
    }

    pub(super) fn name(self, sequence: usize) -> String {
        let part = match self {
            Self::Rows => "rows",
            Self::Tokens => "tokens",
            Self::Positions => "positions",
        };
        format!("sequence.{sequence}.{part}")
    }
}

/// What a header says of a file and its cache, with a digest of zeros.
pub(crate) fn metadata(spec: &SessionSpec) -> BTreeMap<String, String> {
    let mut metadata = BTreeMap::new();
    let mut put = |key: &str, value: String| metadata.insert(key.to_owned(), value);
    put("format", FORMAT.to_owned());
    put("version", VERSION.to_owned());
    put("digest", "0".repeat(DIGEST));
    put("num_layer", spec.num_layer.to_string());
    put("num_heads", spec.num_heads.to_string());
    put("head_dim", spec.head_dim.to_string());
    put("cache_type", spec.cache_type.clone());
    put("quant_bit", spec.quant_bit.to_string());
    put("quant_group", spec.quant_group.to_string());
    if let Some(scale_type) = &spec.scale_type {
        put("scale_type", scale_type.clone());
    }
    put("key_form", spec.key_form.clone());
    if let Some(SavedRope { style, n_rot, frequencies }) = &spec.rope {
        // Decimal numbers as short as they can be to be read back exactly.
        let frequencies: Vec<_> = frequencies.iter().map(|frequency| format!("{frequency:?}")).collect();
        put("rope_style", style.clone());
        put("rope_n_rot", n_rot.to_string());
        put("rope_frequencies", frequencies.join(","));
    }
    put("fingerprint", spec.fingerprint.clone());
    metadata
}

/// The header of a session, with a digest of zeros.
pub(super) fn header(spec: &SessionSpec, sequences: &[SavedSequence], num_rows: usize) -> Result<Header, SessionError> {
    let entries =
        serde_json::to_string(sequences).map_err(|error| SessionError::Header { reason: error.to_string() })?;
    let mut metadata = metadata(spec);
    metadata.insert("sequences".to_owned(), entries);

    let mut tensors = Vec::with_capacity(sequences.len() * Part::ALL.len() + 1);
    let mut end = 0;
    // In the order of their alignment, as in any file of this format.
    for part in Part::ALL {
        for (i, sequence) in sequences.iter().enumerate() {
            let len = match part {
                Part::Rows | Part::Positions => sequence.rows.len(),
                Part::Tokens => sequence.tokens.len(),
            };
            let start = end;
            end += len * part.dtype().bitsize() / 8;
            let tensor = TensorInfo { dtype: part.dtype(), shape: vec![len], data_offsets: (start, end) };
            tensors.push((part.name(i), tensor));
        }
    }
    let (start, shape) = (end, vec![num_rows, spec.row_len]);
    end += num_rows * spec.row_len;
    tensors.push((ROWS.to_owned(), TensorInfo { dtype: Dtype::U8, shape, data_offsets: (start, end) }));
    Ok(Header { metadata, tensors })
}

impl Contents {
    /// What a header says, once everything in it was checked but the cache that it is of.
    pub(super) fn new(header: &Header) -> Result<Self, SessionError> {
        let metadata = Metadata(&header.metadata);
        let mut tensors: HashMap<_, _> = header.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        let mut take = |name: &str, dtype, dims| take_tensor(&mut tensors, name, dtype, dims);

        let rows = take(ROWS, Dtype::U8, 2)?;
        let data_len = header.data_len();
        if rows.data_offsets.1 != data_len {
            let (expected, got) = (format!("up to byte {data_len}, the last"), place(rows));
            return Err(SessionError::Tensor { name: ROWS.to_owned(), expected, got });
        }
        let spec = metadata.spec(rows.shape[1])?;
        let sequences = metadata.sequences()?;
        let mut lens = Vec::with_capacity(sequences.len());
        let mut parts = Vec::with_capacity(sequences.len() * Part::ALL.len());
        for (i, &SavedSequence { gone, ga_i, .. }) in sequences.iter().enumerate() {
            let mut len = |part: Part| {
                let tensor = take(&part.name(i), part.dtype(), 1)?;
                parts.push((tensor.data_offsets, part, i));
                Ok(tensor.shape[0])
            };
            let (rows, known, positions) = (len(Part::Rows)?, len(Part::Tokens)?, len(Part::Positions)?);
            if positions != rows {
                let (name, expected, got) = (Part::Positions.name(i), format!("{rows} long"), format!("{positions}"));
                return Err(SessionError::Tensor { name, expected, got });
            }
            if known > rows {
                return Err(SessionError::KnownTokens { sequence: i, tokens: known as u64, rows: rows as u64 });
            }
            if let Some(got) = gone.into_iter().chain([ga_i]).find(|got| !(0..=MAX_POSITION).contains(got)) {
                let got = Some(got.to_string());
                return Err(SessionError::Metadata { key: "sequences", expected: SEQUENCES, got });
            }
            lens.push((rows, known));
        }
        if let Some(name) = tensors.into_keys().min() {
            return Err(SessionError::UnknownTensor { name: clip(name) });
        }
        parts.sort_unstable_by_key(|&(offsets, _, i)| (offsets, i));
        let parts = parts.into_iter().map(|(_, part, i)| (part, i)).collect();
        Ok(Self { spec, sequences, lens, parts, num_rows: rows.shape[0] })
    }
}

/// Takes the tensor of this name out of the map, which has to be of this type and of so many dimensions.
fn take_tensor<'a>(
    tensors: &mut HashMap<&str, &'a TensorInfo>,
    name: &str,
    dtype: Dtype,
    dims: usize,
) -> Result<&'a TensorInfo, SessionError> {
    let tensor = tensors.remove(name).ok_or_else(|| SessionError::MissingTensor { name: name.to_owned() })?;
    if (tensor.dtype, tensor.shape.len()) != (dtype, dims) {
        let describe = |dtype, dims| format!("{dtype} of {dims} dimensions");
        let (expected, got) = (describe(dtype, dims), describe(tensor.dtype, tensor.shape.len()));
        return Err(SessionError::Tensor { name: name.to_owned(), expected, got });
    }
    Ok(tensor)
}

fn place(tensor: &TensorInfo) -> String {
    format!("up to byte {}", tensor.data_offsets.1)
}

pub(crate) struct Metadata<'a>(pub(crate) &'a BTreeMap<String, String>);

impl Metadata<'_> {
    pub(crate) fn get(&self, key: &'static str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    pub(crate) fn error(&self, key: &'static str, expected: &'static str) -> SessionError {
        SessionError::Metadata { key, expected, got: self.get(key).map(clip) }
    }

    fn text(&self, key: &'static str) -> Result<String, SessionError> {
        self.get(key).map(str::to_owned).ok_or_else(|| self.error(key, "a text"))
    }

    fn number(&self, key: &'static str) -> Result<usize, SessionError> {
        self.get(key).and_then(|value| value.parse().ok()).ok_or_else(|| self.error(key, "a number"))
    }

    pub(crate) fn spec(&self, row_len: usize) -> Result<SessionSpec, SessionError> {
        let rope = match self.get("rope_style") {
            None => None,
            Some(style) => {
                let n_rot = self.number("rope_n_rot")?;
                Some(SavedRope { style: style.to_owned(), n_rot, frequencies: self.frequencies()? })
            }
        };
        Ok(SessionSpec {
            num_layer: self.number("num_layer")?,
            num_heads: self.number("num_heads")?,
            head_dim: self.number("head_dim")?,
            cache_type: self.text("cache_type")?,
            scale_type: self.get("scale_type").map(str::to_owned),
            quant_bit: self.number("quant_bit")?,
            quant_group: self.number("quant_group")?,
            key_form: self.text("key_form")?,
            rope,
            fingerprint: self.text("fingerprint")?,
            row_len,
        })
    }

    fn frequencies(&self) -> Result<Vec<f64>, SessionError> {
        const KEY: &str = "rope_frequencies";
        let error = || self.error(KEY, "numbers");
        let text = self.get(KEY).ok_or_else(error)?;
        let texts = if text.is_empty() { None } else { Some(text.split(',')) };
        texts.into_iter().flatten().map(|text| text.parse().map_err(|_| error())).collect()
    }

    fn sequences(&self) -> Result<Vec<SavedSequence>, SessionError> {
        const KEY: &str = "sequences";
        let text = self.get(KEY).unwrap_or_default();
        serde_json::from_str(text).map_err(|_| self.error(KEY, SEQUENCES))
    }
}

fn to_hex<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

fn from_hex<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let digit = |&byte: &u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| Some(digit(high)? << 4 | digit(low)?)).collect::<Option<Vec<_>>>();
    bytes.filter(|_| rest.is_empty()).ok_or_else(|| D::Error::custom("no hexadecimal digits"))
}
