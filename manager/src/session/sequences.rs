//! The session of a manager: its sequences, and each of their rows once.
//!
//! ```text
//! metadata    the cache's; `sequences`: by sequence its salt, its count of shifts, where a window and self-extend are
//! tensors     sequence.0.rows, sequence.1.rows, ...   u64: the index of each row in `rows`
//!             sequence.0.tokens, ...                  u32: the tokens of the first rows, as far as they are known
//!             sequence.0.positions, ...               i32: the position of each row
//!             rows                                    u8 (rows, bytes of a row)
//! ```

use std::collections::HashMap;
use std::io::{Read, Seek};
use std::ops::Range;
use std::path::Path;

use safetensors::Dtype;
use serde::{Deserialize, Serialize};

use super::cache;
use super::error::SessionError;
use super::file::{self, BLOCK, Reader, Tensor, malformed};
use crate::sequences::positions::MAX_POSITION;
use crate::spec::CacheSpec;

/// A sequence. The fields that are not skipped are in the metadata.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SavedSequence {
    pub(super) salt: Vec<u8>,
    pub(super) shifts: u32,
    /// The last position that a window has removed.
    pub(super) gone: Option<i64>,
    /// The first position that self-extend has not grouped.
    pub(super) ga_i: i64,
    /// By row: its index in the rows of the file.
    #[serde(skip)]
    pub(super) rows: Vec<u64>,
    #[serde(skip)]
    pub(super) positions: Vec<i32>,
    /// The tokens of the first rows.
    #[serde(skip)]
    pub(super) tokens: Vec<u32>,
}

/// The tensors of sequences, from each one's number of rows and of known tokens. They are in the order of their
/// alignment, as in any safetensors file.
fn tensors(lens: &[(usize, usize)], num_rows: usize, row_len: usize) -> Vec<Tensor> {
    let each = |part: &'static str, dtype, len: fn(&(usize, usize)) -> usize| {
        let tensor = move |(i, lens)| Tensor::new(name(i, part), dtype, [len(lens)]);
        lens.iter().enumerate().map(tensor)
    };
    let rows = Tensor::new("rows", Dtype::U8, [num_rows, row_len]);
    each("rows", Dtype::U64, |lens| lens.0)
        .chain(each("tokens", Dtype::U32, |lens| lens.1))
        .chain(each("positions", Dtype::I32, |lens| lens.0))
        .chain([rows])
        .collect()
}

fn name(sequence: usize, part: &str) -> String {
    format!("sequence.{sequence}.{part}")
}

/// How many rows are read or written at once.
fn rows_at_once(row_len: usize) -> usize {
    (BLOCK / row_len.max(1)).max(1)
}

/// Writes sequences to a file, which have that many rows in all. `read_rows` gives the rows of a range.
pub(super) fn write<E: From<SessionError>>(
    path: &Path,
    spec: &CacheSpec,
    sequences: &[SavedSequence],
    num_rows: usize,
    mut read_rows: impl FnMut(Range<usize>, &mut [u8]) -> Result<(), E>,
) -> Result<(), E> {
    let row_len = spec.bytes_per_token();
    let lens: Vec<_> = sequences.iter().map(|sequence| (sequence.rows.len(), sequence.tokens.len())).collect();
    let text = serde_json::to_string(sequences).map_err(malformed)?;
    let mut metadata = cache::metadata(spec);
    metadata.insert("sequences", text);
    file::write(path, metadata, &tensors(&lens, num_rows, row_len), |file| {
        for sequence in sequences {
            file.numbers(&sequence.rows, u64::to_le_bytes)?;
        }
        for sequence in sequences {
            file.numbers(&sequence.tokens, u32::to_le_bytes)?;
        }
        for sequence in sequences {
            file.numbers(&sequence.positions, i32::to_le_bytes)?;
        }
        let step = rows_at_once(row_len);
        let mut rows = vec![0; step.min(num_rows) * row_len];
        for start in (0..num_rows).step_by(step) {
            let end = (start + step).min(num_rows);
            let rows = &mut rows[..(end - start) * row_len];
            read_rows(start..end, rows)?;
            file.bytes(rows)?;
        }
        Ok(())
    })
}

/// The rows of a file whose sequences were read.
pub(super) struct RowReader<R> {
    file: Reader<R>,
    num_rows: usize,
    row_len: usize,
}

/// Reads and checks all sequences of a file, and gives those that are asked for: all, or one by its index.
pub(super) fn read<R: Read + Seek>(
    file: R,
    spec: &CacheSpec,
    index: Option<usize>,
) -> Result<(Vec<SavedSequence>, RowReader<R>), SessionError> {
    let mut file = Reader::open(file)?;
    let read = read_sequences(&mut file, spec, index);
    let (sequences, num_rows) = read.map_err(|error| file.refusal(error))?;
    Ok((sequences, RowReader { file, num_rows, row_len: spec.bytes_per_token() }))
}

/// The sequences, and the number of the rows that follow.
fn read_sequences<R: Read>(
    file: &mut Reader<R>,
    spec: &CacheSpec,
    index: Option<usize>,
) -> Result<(Vec<SavedSequence>, usize), SessionError> {
    cache::check(spec, file)?;
    let unexpected = || file.unexpected("sequences", "a list of salts, shift counts and positions");
    let list = file.get("sequences").and_then(|text| serde_json::from_str::<Vec<SavedSequence>>(text).ok());
    let mut sequences = list.ok_or_else(unexpected)?;
    let positions = |sequence: &SavedSequence| sequence.gone.into_iter().chain([sequence.ga_i]);
    if !sequences.iter().flat_map(positions).all(|position| (0..=MAX_POSITION).contains(&position)) {
        return Err(unexpected());
    }

    let mut lens = Vec::with_capacity(sequences.len());
    for i in 0..sequences.len() {
        let [rows] = file.shape(&name(i, "rows"))?;
        let [tokens] = file.shape(&name(i, "tokens"))?;
        if tokens > rows {
            let reason = format!("sequence {i} has {tokens} tokens, but {rows} rows");
            return Err(SessionError::Malformed { kind: "known_tokens", reason });
        }
        lens.push((rows, tokens));
    }
    let ([num_rows, _], row_len) = (file.shape("rows")?, spec.bytes_per_token());
    file.check_tensors(&tensors(&lens, num_rows, row_len))?;
    if let Some(index) = index.filter(|&index| index >= lens.len()) {
        return Err(SessionError::NoSequence { index, sequences: lens.len() });
    }

    // What is not asked for is checked, and not kept.
    let is_wanted = |i| index.is_none_or(|index| index == i);
    for (i, &(rows, _)) in lens.iter().enumerate() {
        let indexes = file.numbers(rows, u64::from_le_bytes)?;
        if let Some(row) = indexes.iter().position(|&index| index >= num_rows as u64) {
            let reason = format!("row {row} of sequence {i} is row {} of the file, which has {num_rows}", indexes[row]);
            return Err(SessionError::Malformed { kind: "row_index", reason });
        }
        if is_wanted(i) {
            sequences[i].rows = indexes;
        }
    }
    for (i, &(_, tokens)) in lens.iter().enumerate() {
        let tokens = file.numbers(tokens, u32::from_le_bytes)?;
        if is_wanted(i) {
            sequences[i].tokens = tokens;
        }
    }
    for (i, &(rows, _)) in lens.iter().enumerate() {
        let positions = file.numbers(rows, i32::from_le_bytes)?;
        check_positions(i, &positions)?;
        if is_wanted(i) {
            sequences[i].positions = positions;
        }
    }
    if let Some(index) = index {
        sequences = vec![sequences.swap_remove(index)];
    }
    check_tokens(&sequences)?;
    Ok((sequences, num_rows))
}

/// Positions are in their range and never fall.
fn check_positions(sequence: usize, positions: &[i32]) -> Result<(), SessionError> {
    let mut min = 0;
    for (row, got) in positions.iter().map(|&position| i64::from(position)).enumerate() {
        let (kind, expected) = if !(0..=MAX_POSITION).contains(&got) {
            ("position_range", format!("0 to {MAX_POSITION}"))
        } else if got < min {
            ("position_order", format!("{min} or a later one"))
        } else {
            min = got;
            continue;
        };
        let reason = format!("row {row} of sequence {sequence} has position {got}, expected {expected}");
        return Err(SessionError::Malformed { kind, reason });
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
                let reason = format!("row {row} of the file is of the tokens [{first}, {token}], expected one token");
                return Err(SessionError::Malformed { kind: "row_tokens", reason });
            }
        }
    }
    Ok(())
}

impl<R: Read> RowReader<R> {
    /// Hands all rows to `write`, some at a time: the index of the first, and their bytes. After an error, rows that
    /// were given may be wrong.
    pub(super) fn read<E: From<SessionError>>(
        mut self,
        mut write: impl FnMut(usize, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let step = rows_at_once(self.row_len);
        for start in (0..self.num_rows).step_by(step) {
            let len = step.min(self.num_rows - start) * self.row_len;
            write(start, self.file.bytes(len)?)?;
        }
        Ok(self.file.finish()?)
    }
}
