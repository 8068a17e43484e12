//! Reading a session.
//!
//! All bytes of a file are hashed, and none is believed before the digest agrees: then the sequences, and at last the
//! rows. A small file is read once, into memory. A large one is read twice, block by block, and hashed again the second
//! time, so that a file that was changed between the two is noticed, too. A mapped file would be read once, but mapping
//! one that others may shorten is not safe: the process would die of a signal.

use std::collections::HashMap;
use std::io::{self, Read, Seek, SeekFrom};

use xxhash_rust::xxh3::Xxh3;

use super::contents::{Contents, Part, SavedSequence};
use super::error::SessionError;
use super::header::{DIGEST, Header, MAX_HEADER, PREFIX, Parsed};
use super::spec::SessionSpec;
use crate::positions::MAX_POSITION;

/// How many bytes are read, hashed or written at once.
pub(super) const BLOCK: usize = 1 << 20;

/// The largest data that is kept in memory: what allocators serve from memory that was used before. Fresh memory would
/// cost more than reading twice.
const IN_MEMORY: u64 = 32 << 20;

pub(crate) fn io(action: &'static str) -> impl Fn(io::Error) -> SessionError {
    move |source| SessionError::Io { action, source }
}

/// A session file whose digest was right, read up to the end of its header.
pub(crate) struct SessionFile<R> {
    reader: Reader<R>,
    contents: Contents,
}

/// The rows of a session file, which are the last of its bytes.
pub(crate) struct RowReader<R> {
    reader: Reader<R>,
    num_rows: usize,
    row_len: usize,
}

pub(crate) struct Reader<R> {
    file: R,
    hash: Xxh3,
    digest: String,
    block: Vec<u8>,
    /// Where the next bytes are in `block`, if that has all of the data.
    at: Option<usize>,
}

impl<R: Read + Seek> Reader<R> {
    /// Hashes a file whole, and gives its header, and what reads its data.
    pub(crate) fn open(file: R) -> Result<(Header, Self), SessionError> {
        Self::open_within(file, IN_MEMORY)
    }

    fn open_within(mut file: R, in_memory: u64) -> Result<(Header, Self), SessionError> {
        let read = io("read the file");
        let len = file.seek(SeekFrom::End(0)).map_err(&read)?;
        file.seek(SeekFrom::Start(0)).map_err(&read)?;
        if len < PREFIX as u64 {
            return Err(SessionError::Truncated { expected: PREFIX as u64, got: len });
        }
        let mut prefix = [0; PREFIX];
        file.read_exact(&mut prefix).map_err(&read)?;
        let header_len = u64::from_le_bytes(prefix);
        if header_len > MAX_HEADER {
            return Err(SessionError::HeaderLength { got: header_len, max: MAX_HEADER });
        }
        let start = PREFIX as u64 + header_len;
        if start > len {
            return Err(SessionError::Truncated { expected: start, got: len });
        }
        // Not longer than the file.
        let mut header = vec![0; header_len as usize];
        file.read_exact(&mut header).map_err(&read)?;
        let Parsed { header: parsed, digest: place } = Header::parse(&header)?;
        let data_len = parsed.data_len() as u64;
        let expected = start.saturating_add(data_len);
        if len < expected {
            return Err(SessionError::Truncated { expected, got: len });
        }
        if len > expected {
            return Err(SessionError::Trailing { expected, got: len });
        }

        let digest = String::from_utf8_lossy(&header[place.clone()]).into_owned();
        header[place].copy_from_slice(&[b'0'; DIGEST]);
        let mut hash = Xxh3::new();
        hash.update(&prefix);
        hash.update(&header);
        let mut reader = Reader { file, hash: hash.clone(), digest, block: Vec::new(), at: None };
        if data_len <= in_memory && reader.block.try_reserve_exact(data_len as usize).is_ok() {
            let got = reader.file.by_ref().take(data_len).read_to_end(&mut reader.block).map_err(read)? as u64;
            if got < data_len {
                return Err(SessionError::Truncated { expected, got: start + got });
            }
            reader.hash.update(&reader.block);
            reader.check_digest()?;
            reader.at = Some(0);
        } else {
            reader.skip(data_len)?;
            reader.check_digest()?;
            reader.hash = hash;
            reader.file.seek(SeekFrom::Start(start)).map_err(read)?;
        }
        Ok((parsed, reader))
    }
}

impl<R: Read + Seek> SessionFile<R> {
    /// Reads the header of a file and hashes the file whole.
    pub(crate) fn open(file: R) -> Result<Self, SessionError> {
        Self::open_within(file, IN_MEMORY)
    }

    /// Opens a file of which so many bytes of data may be kept in memory.
    pub(super) fn open_within(file: R, in_memory: u64) -> Result<Self, SessionError> {
        let (header, reader) = Reader::open_within(file, in_memory)?;
        Ok(Self { contents: Contents::new(&header)?, reader })
    }

    pub(crate) fn spec(&self) -> &SessionSpec {
        &self.contents.spec
    }

    pub(crate) fn num_sequences(&self) -> usize {
        self.contents.sequences.len()
    }

    /// Reads and checks all sequences, and gives those with an index that is `wanted`; then the rows can be read.
    pub(crate) fn read_sequences(
        mut self,
        wanted: impl Fn(usize) -> bool,
    ) -> Result<(Vec<SavedSequence>, RowReader<R>), SessionError> {
        let Contents { spec, mut sequences, lens, parts, num_rows } = self.contents;
        for (part, i) in parts {
            let ((len, known), sequence) = (lens[i], &mut sequences[i]);
            match part {
                Part::Rows => {
                    sequence.rows = self.reader.values(len, u64::from_le_bytes)?;
                    check_rows(i, &sequence.rows, num_rows as u64)?;
                }
                Part::Tokens => sequence.tokens = self.reader.values(known, u32::from_le_bytes)?,
                Part::Positions => {
                    sequence.positions = self.reader.values(len, i32::from_le_bytes)?;
                    check_positions(i, &sequence.positions)?;
                }
            }
            if !wanted(i) {
                *sequence = SavedSequence::default();
            }
        }
        let mut indexes = 0..;
        sequences.retain(|_| indexes.next().is_some_and(&wanted));
        check_tokens(&sequences)?;
        Ok((sequences, RowReader { reader: self.reader, num_rows, row_len: spec.row_len }))
    }
}

fn check_rows(sequence: usize, indexes: &[u64], rows: u64) -> Result<(), SessionError> {
    match indexes.iter().position(|&index| index >= rows) {
        Some(row) => Err(SessionError::RowIndex { sequence, row, got: indexes[row], rows }),
        None => Ok(()),
    }
}

/// Positions are in their range and never fall.
fn check_positions(sequence: usize, positions: &[i32]) -> Result<(), SessionError> {
    let mut min = 0;
    for (row, got) in positions.iter().map(|&position| i64::from(position)).enumerate() {
        if !(0..=MAX_POSITION).contains(&got) {
            return Err(SessionError::PositionRange { sequence, row, got, max: MAX_POSITION });
        }
        if got < min {
            return Err(SessionError::PositionOrder { sequence, row, got, min });
        }
        min = got;
    }
    Ok(())
}

/// Rows that sequences share have one token.
fn check_tokens(sequences: &[SavedSequence]) -> Result<(), SessionError> {
    let mut tokens = HashMap::new();
    for sequence in sequences {
        for (&row, &token) in sequence.rows.iter().zip(&sequence.tokens) {
            let first = *tokens.entry(row).or_insert(token);
            if first != token {
                return Err(SessionError::RowTokens { row, tokens: [first, token] });
            }
        }
    }
    Ok(())
}

impl<R: Read> RowReader<R> {
    /// Gives all rows to `write`, some at a time: the index of the first, and their bytes. At the end the digest of what
    /// was read again is checked again; after an error, rows that were given may be wrong.
    pub(crate) fn read<E: From<SessionError>>(
        mut self,
        mut write: impl FnMut(usize, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let step = (BLOCK / self.row_len.max(1)).max(1);
        for start in (0..self.num_rows).step_by(step) {
            let len = step.min(self.num_rows - start) * self.row_len;
            write(start, self.reader.block(len)?)?;
        }
        Ok(self.reader.end()?)
    }
}

impl<R: Read> Reader<R> {
    /// The next bytes, which the file has.
    pub(crate) fn block(&mut self, len: usize) -> Result<&[u8], SessionError> {
        if let Some(at) = &mut self.at {
            let start = *at;
            *at += len;
            return Ok(&self.block[start..start + len]);
        }
        if self.block.len() < len {
            self.block.resize(len, 0);
        }
        let block = &mut self.block[..len];
        self.file.read_exact(block).map_err(io("read the file"))?;
        self.hash.update(block);
        Ok(block)
    }

    fn skip(&mut self, mut len: u64) -> Result<(), SessionError> {
        while len > 0 {
            let step = len.min(BLOCK as u64);
            self.block(step as usize)?;
            len -= step;
        }
        Ok(())
    }

    /// The next numbers, their lowest byte first.
    pub(crate) fn values<T, const N: usize>(
        &mut self,
        mut len: usize,
        value: impl Fn([u8; N]) -> T,
    ) -> Result<Vec<T>, SessionError> {
        // The file is as long as they are.
        let mut values = Vec::with_capacity(len);
        while len > 0 {
            let step = len.min(BLOCK / N);
            values.extend(self.block(step * N)?.as_chunks().0.iter().map(|&bytes| value(bytes)));
            len -= step;
        }
        Ok(values)
    }

    /// All data was read: what was read a second time has the same digest.
    pub(crate) fn end(&self) -> Result<(), SessionError> {
        if self.at.is_some() { Ok(()) } else { self.check_digest() }
    }

    fn check_digest(&self) -> Result<(), SessionError> {
        let got = format!("{:032x}", self.hash.digest128());
        if got == self.digest { Ok(()) } else { Err(SessionError::Digest { expected: self.digest.clone(), got }) }
    }
}
