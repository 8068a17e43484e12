//! The index tensors of a step but for its pages: what entries have, how many tokens and rows.

use std::ops::Range;

#[derive(Debug, Clone, Default)]
pub(crate) struct Batch {
    pub(crate) seqstarts: Vec<i64>,
    pub(crate) kvstarts: Vec<i64>,
    pub(crate) start_pos: Vec<i64>,
    pub(crate) positions: Vec<i64>,
    pub(crate) order: Vec<i64>,
    pub(crate) max_seqlen: i64,
    pub(crate) max_kvlen: i64,
    pub(crate) decoding_batches: i64,
}

impl Batch {
    /// Without entries.
    pub(crate) fn clear(&mut self) {
        for starts in [&mut self.seqstarts, &mut self.kvstarts] {
            starts.clear();
            starts.push(0);
        }
        for values in [&mut self.start_pos, &mut self.positions, &mut self.order] {
            values.clear();
        }
        (self.max_seqlen, self.max_kvlen, self.decoding_batches) = (0, 0, 0);
    }

    /// The tokens of an append, by their positions.
    pub(crate) fn push_tokens(&mut self, append: usize, positions: Range<i64>) {
        self.order.push(append as i64);
        self.decoding_batches += i64::from(positions.end - positions.start == 1);
        self.positions.extend(positions);
    }

    /// An entry: rows that it has, and new ones.
    pub(crate) fn push_entry(&mut self, start: usize, n: usize) {
        let end = |starts: &[i64], len: usize| starts.last().map_or(0, |end| end + len as i64);
        self.seqstarts.push(end(&self.seqstarts, n));
        self.kvstarts.push(end(&self.kvstarts, start + n));
        self.start_pos.push(start as i64);
        self.max_seqlen = self.max_seqlen.max(n as i64);
        self.max_kvlen = self.max_kvlen.max((start + n) as i64);
    }
}

/// What a step says of its `batch()`.
macro_rules! batch_tensors {
    ($step:ty) => {
        impl $step {
            /// Shape (B + 1): where the tokens of each entry begin.
            pub fn seqstarts(&self) -> &[i64] {
                &self.batch().seqstarts
            }

            /// Shape (B + 1): where the rows of each entry begin in `key` and `value`.
            pub fn kvstarts(&self) -> &[i64] {
                &self.batch().kvstarts
            }

            /// Shape (B): the rows that each entry has, or sees, already.
            pub fn start_pos(&self) -> &[i64] {
                &self.batch().start_pos
            }

            /// The most tokens of an entry.
            pub fn max_seqlen(&self) -> i64 {
                self.batch().max_seqlen
            }

            /// The most rows of an entry.
            pub fn max_kvlen(&self) -> i64 {
                self.batch().max_kvlen
            }

            /// Shape (`seqstarts[B]`): the positions of the tokens.
            pub fn positions(&self) -> &[i64] {
                &self.batch().positions
            }

            /// Shape (B): by entry, the index of its append. Entries of one token come first.
            pub fn order(&self) -> &[i64] {
                &self.batch().order
            }

            /// The number of entries of one token.
            pub fn decoding_batches(&self) -> i64 {
                self.batch().decoding_batches
            }
        }
    };
}
pub(crate) use batch_tensors;
