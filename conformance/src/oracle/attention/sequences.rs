//! Which rows belong to a sequence: its queries and its keys.

use std::ops::Range;

use crate::oracle::attention::decisions::{Attention, Keys, Queries};
use crate::oracle::attention::ragged::Ragged;

/// A key of a sequence.
#[derive(Debug, Clone, Copy)]
pub(super) struct Key {
    /// Its packed row; `None` if it is a key of zeros.
    pub(super) row: Option<i64>,
    /// Its position in the sequence.
    pub(super) j: i64,
}

/// The rows of `query` that are sequence `b`'s.
pub(super) fn queries(attention: &Attention, ragged: &Ragged, b: usize) -> Range<i64> {
    let own = ragged.queries(b);
    let (last, first) = (own.start.max(own.end - 1)..own.end, own.start..own.end.min(own.start + 1));
    match attention.queries {
        Queries::LastOfDecoding if ragged.is_decoding(b) => last,
        Queries::FirstOfDecoding if ragged.is_decoding(b) => first,
        Queries::FirstSequence if b > 0 => 0..0,
        Queries::LastSequenceMissing if b + 1 == ragged.len() => 0..0,
        Queries::EqualLengths => equal(ragged, ragged.tokens(), b),
        Queries::AtKvstarts => ragged.kvstarts[b]..ragged.kvstarts[b] + ragged.seqlen(b),
        _ => own,
    }
}

/// The keys that sequence `b`'s queries are scored with.
pub(super) fn keys(attention: &Attention, ragged: &Ragged, b: usize) -> Vec<Key> {
    let (own, kvlen, seqlen) = (ragged.keys(b), ragged.kvlen(b), ragged.seqlen(b));
    let (first, last) = (own.start, own.end);
    let past = (kvlen - seqlen).max(0);
    let (rows, position) = match attention.keys {
        Keys::Own | Keys::Padded => (own, 0),
        Keys::LastMissing => (first..last - 1, 0),
        Keys::OneMore => (first..last + 1, 0),
        Keys::PastAlone => (first..last - seqlen, 0),
        Keys::CurrentAlone => (first + past..last, past),
        Keys::FirstSequence => (0..kvlen, 0),
        Keys::AtSeqstarts => (ragged.seqstarts[b]..ragged.seqstarts[b] + kvlen, 0),
        Keys::EqualLengths => (equal(ragged, ragged.total_keys(), b), 0),
        Keys::AllSequences => (0..ragged.total_keys(), -first),
        Keys::WholeBlocks => (first..last - kvlen % attention.n as i64, 0),
    };
    let padding = kvlen..if attention.keys == Keys::Padded { ragged.longest() } else { kvlen };
    let keys = rows.zip(position..).map(|(row, j)| Key { row: Some(row), j });
    keys.chain(padding.map(|j| Key { row: None, j })).collect()
}

/// Sequence `b` of as many that have the same number of rows.
fn equal(ragged: &Ragged, rows: i64, b: usize) -> Range<i64> {
    let length = rows / ragged.len().max(1) as i64;
    length * b as i64..length * (b as i64 + 1)
}
