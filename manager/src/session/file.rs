//! The file of a session: a safetensors file whose last tensor is the digest of all bytes before it.
//!
//! ```text
//! 8 bytes     the length of the header, lowest byte first
//! header      JSON, padded with spaces: __metadata__; by tensor its dtype, shape and data_offsets
//! data        the tensors in the order in which they are written, without gaps
//! 16 bytes    the tensor `digest`: xxh3-128 of every byte before it, highest byte first
//! ```
//!
//! [`write`] streams the tensors to a file beside its place, which is synced and then renamed. [`Reader::open`]
//! compares every length with the file's. The tensors are then read once, in order, and [`Reader::finish`] compares the
//! digest of what was read: until then the reader must be able to undo what it has done with them.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::Serialize;
use xxhash_rust::xxh3::Xxh3;

use super::error::SessionError;

const FORMAT: &str = "kvcache-session";
/// Version 1 had the digest among the metadata; in version 2 codes of int4 had 15 levels, and keys were rotated over
/// whole heads.
const VERSION: &str = "3";
/// The length of the header's length.
const PREFIX: usize = 8;
/// The limit of the crate `safetensors`.
const MAX_HEADER: u64 = 100_000_000;
/// The last tensor, and its bytes.
const DIGEST: &str = "digest";
const DIGEST_LEN: usize = 16;
/// How many bytes are read, hashed or written at once.
pub(crate) const BLOCK: usize = 1 << 20;

/// A tensor of a file.
#[derive(Debug)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
}

impl Tensor {
    pub(crate) fn new(name: impl Into<String>, dtype: Dtype, shape: impl Into<Vec<usize>>) -> Self {
        Self { name: name.into(), dtype, shape: shape.into() }
    }
}

/// Names what could not be done, in front of the file system's error.
pub(crate) fn io(action: &'static str) -> impl Fn(io::Error) -> SessionError {
    move |source| SessionError::Io { action, source }
}

/// A header that is not one of safetensors.
pub(crate) fn malformed(reason: impl Display) -> SessionError {
    let reason = format!("the header is malformed: {}", clip(&reason.to_string()));
    SessionError::Malformed { kind: "header", reason }
}

fn check_header_len(got: u64) -> Result<(), SessionError> {
    let reason = || format!("the header has {got} bytes, expected at most {MAX_HEADER}");
    if got <= MAX_HEADER { Ok(()) } else { Err(SessionError::Malformed { kind: "header_length", reason: reason() }) }
}

/// The beginning of a text from a file, which may have any length.
pub(super) fn clip(text: &str) -> String {
    text.chars().take(100).collect()
}

/// Places tensors one after the other, the digest last.
fn layout(tensors: &[Tensor]) -> Result<Vec<(&str, TensorInfo)>, SessionError> {
    let mut start = 0;
    let mut place = |name, dtype: Dtype, shape: &[usize]| {
        let bytes = shape.iter().try_fold(dtype.bitsize() / 8, |bytes: usize, &dim| bytes.checked_mul(dim));
        let end = bytes.and_then(|bytes| bytes.checked_add(start));
        let end = end.ok_or_else(|| malformed(format_args!("{name} is too large")))?;
        let tensor = TensorInfo { dtype, shape: shape.to_vec(), data_offsets: (start, end) };
        start = end;
        Ok((name, tensor))
    };
    let mut placed = Vec::with_capacity(tensors.len() + 1);
    for Tensor { name, dtype, shape } in tensors {
        placed.push(place(name.as_str(), *dtype, shape)?);
    }
    placed.push(place(DIGEST, Dtype::U8, &[DIGEST_LEN])?);
    Ok(placed)
}

/// Replaces a file, whole or not at all: `metadata`, to which format and version are added, and `tensors`, whose data
/// `fill` writes in order.
pub(crate) fn write<E: From<SessionError>>(
    path: &Path,
    metadata: BTreeMap<&str, String>,
    tensors: &[Tensor],
    fill: impl FnOnce(&mut Writer<&mut File>) -> Result<(), E>,
) -> Result<(), E> {
    // A file name without a directory is in the current one.
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(directory).map_err(io("create a file"))?;
    let mut writer = Writer::new(file.as_file_mut(), metadata, tensors)?;
    fill(&mut writer)?;
    writer.finish()?;
    file.as_file().sync_all().map_err(io("write the file to disk"))?;
    file.persist(path).map_err(|error| io("rename the file")(error.error))?;
    // Only Unix can write the entry of a renamed file to disk.
    if cfg!(unix) {
        File::open(directory).and_then(|directory| directory.sync_all()).map_err(io("write the directory to disk"))?;
    }
    Ok(())
}

/// Writes and hashes the data of a file.
pub(crate) struct Writer<W> {
    file: W,
    hash: Xxh3,
    block: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// Begins a file with its header. The same session gives the same bytes.
    pub(super) fn new(file: W, mut metadata: BTreeMap<&str, String>, tensors: &[Tensor]) -> Result<Self, SessionError> {
        /// An entry of the header.
        #[derive(Serialize)]
        #[serde(untagged)]
        enum Entry<'a> {
            Metadata(BTreeMap<&'a str, String>),
            Tensor(TensorInfo),
        }

        metadata.extend([("format", FORMAT.to_owned()), ("version", VERSION.to_owned())]);
        let tensors = layout(tensors)?.into_iter().map(|(name, tensor)| (name, Entry::Tensor(tensor)));
        let entries: BTreeMap<_, _> = tensors.chain([("__metadata__", Entry::Metadata(metadata))]).collect();
        let mut header = vec![0; PREFIX];
        serde_json::to_writer(&mut header, &entries).map_err(malformed)?;
        header.resize(header.len().next_multiple_of(PREFIX), b' ');
        let len = (header.len() - PREFIX) as u64;
        check_header_len(len)?;
        header[..PREFIX].copy_from_slice(&len.to_le_bytes());
        let mut writer = Self { file, hash: Xxh3::new(), block: Vec::new() };
        writer.bytes(&header)?;
        Ok(writer)
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<(), SessionError> {
        self.hash.update(bytes);
        self.file.write_all(bytes).map_err(io("write the file"))
    }

    /// Writes numbers, their lowest byte first.
    pub(crate) fn numbers<T: Copy, const N: usize>(
        &mut self,
        numbers: &[T],
        to_le_bytes: impl Fn(T) -> [u8; N],
    ) -> Result<(), SessionError> {
        let mut block = std::mem::take(&mut self.block);
        for numbers in numbers.chunks(BLOCK / N) {
            block.clear();
            block.extend(numbers.iter().flat_map(|&number| to_le_bytes(number)));
            self.bytes(&block)?;
        }
        self.block = block;
        Ok(())
    }

    /// Writes the digest.
    pub(super) fn finish(mut self) -> Result<(), SessionError> {
        self.file.write_all(&self.hash.digest128().to_be_bytes()).map_err(io("write the file"))
    }
}

/// A file, and the data that was not read yet. What it says is known to be right after [`finish`](Self::finish).
pub(crate) struct Reader<R> {
    header: Metadata,
    file: R,
    hash: Xxh3,
    /// Bytes of data before the digest that were not read yet.
    left: usize,
    block: Vec<u8>,
}

impl<R: Read + Seek> Reader<R> {
    /// Reads the header of a file.
    pub(crate) fn open(mut file: R) -> Result<Self, SessionError> {
        let read = io("read the file");
        let len = file.seek(SeekFrom::End(0)).map_err(&read)?;
        file.rewind().map_err(&read)?;
        let at_least = |expected: u64| {
            let reason = || format!("the file has {len} bytes, expected {expected}: it is truncated");
            if len < expected { Err(SessionError::Malformed { kind: "truncated", reason: reason() }) } else { Ok(()) }
        };
        at_least(PREFIX as u64)?;
        let mut prefix = [0; PREFIX];
        file.read_exact(&mut prefix).map_err(&read)?;
        let header_len = u64::from_le_bytes(prefix);
        check_header_len(header_len)?;
        let start = PREFIX as u64 + header_len;
        at_least(start)?;
        let mut text = vec![0; header_len as usize];
        file.read_exact(&mut text).map_err(&read)?;

        let header: Metadata = serde_json::from_slice(&text).map_err(malformed)?;
        let mut hash = Xxh3::new();
        hash.update(&prefix);
        hash.update(&text);
        let left = header.data_len().saturating_sub(DIGEST_LEN);
        let reader = Self { header, file, hash, left, block: Vec::new() };
        for (key, expected) in [("format", FORMAT), ("version", VERSION)] {
            if reader.get(key) != Some(expected) {
                return Err(SessionError::mismatch(key, key, format!("\"{expected}\""), reader.quoted(key)));
            }
        }
        let expected = start.saturating_add(reader.header.data_len() as u64);
        at_least(expected)?;
        if len > expected {
            let reason = format!("the file has {len} bytes, expected {expected}: others follow its data");
            return Err(SessionError::Malformed { kind: "trailing", reason });
        }
        let place = (left, reader.header.data_len());
        let expected = TensorInfo { dtype: Dtype::U8, shape: vec![DIGEST_LEN], data_offsets: place };
        check(DIGEST, reader.tensor(DIGEST)?, &expected)?;
        Ok(reader)
    }
}

impl<R> Reader<R> {
    /// A value of the metadata.
    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.header.metadata().as_ref()?.get(key).map(String::as_str)
    }

    /// Refuses a value of the metadata.
    pub(crate) fn unexpected(&self, key: &'static str, expected: &'static str) -> SessionError {
        SessionError::mismatch("metadata", key, expected, self.quoted(key))
    }

    fn quoted(&self, key: &str) -> String {
        self.get(key).map_or_else(|| "missing".to_owned(), |text| format!("\"{}\"", clip(text)))
    }

    fn tensor(&self, name: &str) -> Result<&TensorInfo, SessionError> {
        let reason = || format!("there is no tensor {name}");
        let missing = || SessionError::Malformed { kind: "missing_tensor", reason: reason() };
        self.header.info(name).ok_or_else(missing)
    }

    /// The shape of a tensor of that many dimensions.
    pub(crate) fn shape<const DIMS: usize>(&self, name: &str) -> Result<[usize; DIMS], SessionError> {
        let tensor = self.tensor(name)?;
        let expected = || format!("of {DIMS} dimensions");
        tensor.shape.as_slice().try_into().map_err(|_| differs(name, expected(), tensor))
    }

    /// Checks that the file has these tensors in this order, and no others but the digest.
    pub(crate) fn check_tensors(&self, expected: &[Tensor]) -> Result<(), SessionError> {
        let expected = layout(expected)?;
        for (name, expected) in &expected {
            check(name, self.tensor(name)?, expected)?;
        }
        let all = self.header.tensors();
        if all.len() == expected.len() {
            return Ok(());
        }
        let known: HashSet<&str> = expected.into_iter().map(|(name, _)| name).collect();
        let name = all.into_keys().filter(|name| !known.contains(name.as_str())).min().unwrap_or_default();
        let reason = format!("there is a tensor {}, which is not part of a session", clip(&name));
        Err(SessionError::Malformed { kind: "unknown_tensor", reason })
    }
}

impl<R: Read> Reader<R> {
    /// The next bytes, which the tensors have.
    pub(crate) fn bytes(&mut self, len: usize) -> Result<&[u8], SessionError> {
        if self.block.len() < len {
            self.block.resize(len, 0);
        }
        let block = &mut self.block[..len];
        self.file.read_exact(block).map_err(io("read the file"))?;
        self.hash.update(block);
        self.left -= len;
        Ok(block)
    }

    /// The next numbers, which the tensors have, their lowest byte first.
    pub(crate) fn numbers<T, const N: usize>(
        &mut self,
        mut len: usize,
        from_le_bytes: impl Fn([u8; N]) -> T,
    ) -> Result<Vec<T>, SessionError> {
        let mut numbers = Vec::with_capacity(len);
        while len > 0 {
            let step = len.min(BLOCK / N);
            numbers.extend(self.bytes(step * N)?.as_chunks().0.iter().map(|&bytes| from_le_bytes(bytes)));
            len -= step;
        }
        Ok(numbers)
    }

    /// Reads to the end, and compares the digest with what was read.
    pub(crate) fn finish(&mut self) -> Result<(), SessionError> {
        while self.left > 0 {
            self.bytes(BLOCK.min(self.left))?;
        }
        let mut digest = [0; DIGEST_LEN];
        self.file.read_exact(&mut digest).map_err(io("read the file"))?;
        let (expected, got) = (u128::from_be_bytes(digest), self.hash.digest128());
        if got == expected {
            return Ok(());
        }
        let [expected, got] = [expected, got].map(|digest| format!("{digest:032x}"));
        Err(SessionError::mismatch("digest", "the digest of the file", expected, got))
    }

    /// The error of a file whose contents are refused: a wrong digest comes first, since it explains the rest.
    pub(crate) fn refusal(&mut self, error: SessionError) -> SessionError {
        self.finish().err().unwrap_or(error)
    }
}

fn check(name: &str, got: &TensorInfo, expected: &TensorInfo) -> Result<(), SessionError> {
    if (got.dtype, &got.shape, got.data_offsets) == (expected.dtype, &expected.shape, expected.data_offsets) {
        return Ok(());
    }
    Err(differs(name, describe(expected), got))
}

fn differs(name: &str, expected: String, got: &TensorInfo) -> SessionError {
    SessionError::mismatch("tensor", format!("the tensor {name}"), expected, clip(&describe(got)))
}

fn describe(TensorInfo { dtype, shape, data_offsets: (start, end) }: &TensorInfo) -> String {
    format!("{dtype} of shape {shape:?} in bytes {start} to {end}")
}
