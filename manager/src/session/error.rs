//! Why a session is refused.

use strum::IntoStaticStr;
use thiserror::Error;

/// A session file that was not written, or was not taken. Neither the manager's sequences nor live rows have changed.
///
/// [`SessionError::kind`] is a stable name for programs.
#[derive(Debug, Error, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum SessionError {
    /// The file system failed.
    #[error("cannot {action}: {source}")]
    Io {
        /// What could not be done.
        action: &'static str,
        /// What the system said.
        source: std::io::Error,
    },

    /// A file that is no session.
    #[error("format is {}, expected \"kvcache-session\"", quoted(.got.as_deref()))]
    Format {
        /// The format that its metadata names.
        got: Option<String>,
    },

    /// A session of another version.
    #[error("version is {}, expected \"{expected}\"", quoted(.got.as_deref()))]
    Version {
        /// The version that is read.
        expected: &'static str,
        /// The file's.
        got: Option<String>,
    },

    /// A file that ends before its last tensor.
    #[error("the file has {got} bytes, expected {expected}: it is truncated")]
    Truncated {
        /// The length that its beginning tells of.
        expected: u64,
        /// The length that it has.
        got: u64,
    },

    /// A file that goes on behind its last tensor.
    #[error("the file has {got} bytes, expected {expected}: others follow its data")]
    Trailing {
        /// The length that its beginning tells of.
        expected: u64,
        /// The length that it has.
        got: u64,
    },

    /// A file that is damaged: it has not the bytes that were written.
    #[error("the digest of the file is {got}, expected {expected}")]
    Digest {
        /// The digest in the file's metadata.
        expected: String,
        /// That of the file's bytes.
        got: String,
    },

    /// A header that would be, or is said to be, longer than those of safetensors are.
    #[error("the header has {got} bytes, expected at most {max}")]
    HeaderLength {
        /// Its length.
        got: u64,
        /// The longest one.
        max: u64,
    },

    /// A header that is not one of safetensors.
    #[error("the header is malformed: {reason}")]
    Header {
        /// What is wrong with it.
        reason: String,
    },

    /// Metadata without a key of sessions, or with a value that it cannot have.
    #[error("{key} is {}, expected {expected}", quoted(.got.as_deref()))]
    Metadata {
        /// The key.
        key: &'static str,
        /// What its value should be.
        expected: &'static str,
        /// Its value.
        got: Option<String>,
    },

    /// A tensor that a session has, and this file has not.
    #[error("there is no tensor {name}")]
    MissingTensor {
        /// Its name.
        name: String,
    },

    /// Two tensors of one name.
    #[error("there are two tensors {name}")]
    DuplicateTensor {
        /// Their name.
        name: String,
    },

    /// A tensor that no session has.
    #[error("there is a tensor {name}, which is not part of a session")]
    UnknownTensor {
        /// Its name.
        name: String,
    },

    /// A tensor of another type, shape or place than a session's.
    #[error("the tensor {name} is {got}, expected {expected}")]
    Tensor {
        /// Its name.
        name: String,
        /// What it should be.
        expected: String,
        /// What it is.
        got: String,
    },

    /// Rows of another cache: of other dimensions.
    #[error("{name} is {got}, expected {expected}")]
    Dimensions {
        /// The dimension.
        name: &'static str,
        /// That of the manager's cache.
        expected: usize,
        /// That of the session.
        got: usize,
    },

    /// Rows of another cache: of other types.
    #[error("the type of {tensor} is {got}, expected {expected}")]
    Types {
        /// `cache` or `scale`.
        tensor: &'static str,
        /// That of the manager's cache.
        expected: String,
        /// That of the session.
        got: String,
    },

    /// Rows of another cache: of another quantization.
    #[error("{attribute} is {got}, expected {expected}")]
    Quantization {
        /// `quant_bit` or `quant_group`; both are 0 without quantization.
        attribute: &'static str,
        /// That of the manager's cache.
        expected: usize,
        /// That of the session.
        got: usize,
    },

    /// Keys of another form.
    #[error("keys are {got}, expected {expected}")]
    KeyForm {
        /// That of the manager's cache: `roped` or `raw`.
        expected: String,
        /// That of the session.
        got: String,
    },

    /// Keys of another rotary embedding.
    #[error("{name} of RoPE is {got}, expected {expected}")]
    Rope {
        /// What is different: the style, `n_rot` or a frequency.
        name: String,
        /// That of the manager's cache.
        expected: String,
        /// That of the session.
        got: String,
    },

    /// Rows of another model.
    #[error("the fingerprint is \"{got}\", expected \"{expected}\"")]
    Fingerprint {
        /// That of the manager's cache.
        expected: String,
        /// That of the session.
        got: String,
    },

    /// A row that the file does not have.
    #[error("row {row} of sequence {sequence} is row {got} of the file, which has {rows}")]
    RowIndex {
        /// The index of the sequence in the file.
        sequence: usize,
        /// The row of the sequence.
        row: usize,
        /// The row of the file.
        got: u64,
        /// The rows of the file.
        rows: u64,
    },

    /// A position outside its range.
    #[error("row {row} of sequence {sequence} has position {got}, expected 0 to {max}")]
    PositionRange {
        /// The index of the sequence in the file.
        sequence: usize,
        /// The row of the sequence.
        row: usize,
        /// Its position.
        got: i64,
        /// The largest position.
        max: i64,
    },

    /// A position before that of the row before it.
    #[error("row {row} of sequence {sequence} has position {got}, expected {min} or a later one")]
    PositionOrder {
        /// The index of the sequence in the file.
        sequence: usize,
        /// The row of the sequence.
        row: usize,
        /// Its position.
        got: i64,
        /// That of the row before it.
        min: i64,
    },

    /// A row of the file that two rows of sequences say is of different tokens.
    #[error("row {row} of the file is of the tokens {tokens:?}, expected one token")]
    RowTokens {
        /// The row of the file.
        row: u64,
        /// Its tokens.
        tokens: [u32; 2],
    },

    /// More known tokens than rows.
    #[error("sequence {sequence} has {tokens} tokens, but {rows} rows")]
    KnownTokens {
        /// The index of the sequence in the file.
        sequence: usize,
        /// Its tokens.
        tokens: u64,
        /// Its rows.
        rows: u64,
    },

    /// A sequence that the file does not have.
    #[error("there is no sequence {index}: the file has {sequences}")]
    NoSequence {
        /// The index of the sequence in the file.
        index: usize,
        /// The sequences of the file.
        sequences: usize,
    },

    /// All sequences of a session that are to be loaded beside others.
    #[error("the manager has {sequences} sequences, expected none")]
    NotEmpty {
        /// Its sequences.
        sequences: usize,
    },

    /// A sequence that would need more pages than a row of `cachestarts` has.
    #[error("sequence {sequence} has {rows} rows, which are {need} pages of {page_size}, expected at most {max_pages}")]
    TooManyPages {
        /// The place of the sequence among those that are loaded.
        sequence: usize,
        /// Its rows.
        rows: usize,
        /// Rows of a page.
        page_size: usize,
        /// The pages for that many rows.
        need: usize,
        /// The specification's `max_pages`.
        max_pages: usize,
    },

    /// A cache without room for the session.
    #[error("the session needs {need} slots, {free} are free")]
    NoRoom {
        /// The slots that it needs.
        need: usize,
        /// The slots that it can have.
        free: usize,
    },
}

fn quoted(text: Option<&str>) -> String {
    text.map_or_else(|| "missing".to_owned(), |text| format!("\"{text}\""))
}

impl SessionError {
    /// The variant's name in snake case.
    pub fn kind(&self) -> &'static str {
        self.into()
    }
}
