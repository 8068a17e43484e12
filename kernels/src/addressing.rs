//! From a token of a sequence to its slot in the cache: the only place on the host that reads `cachestarts`.

use std::ops::Range;

/// How `cachestarts` maps the tokens of each sequence to slots: the operator's `cache_mode`.
#[derive(Debug, Clone, Copy)]
pub enum Addressing<'a> {
    /// `cache_mode` 0: token t of sequence b has slot `cachestarts[b] + t`.
    Offset {
        /// Shape (B).
        cachestarts: &'a [i64],
    },
    /// `cache_mode` 1: token t of sequence b has slot `cachestarts[b, t / page_size] + t % page_size`.
    Paged {
        /// Shape (B, MaxP), row-major.
        cachestarts: &'a [i64],
        /// Page table entries per sequence (MaxP).
        max_p: usize,
        /// Tokens in a page, at least 1.
        page_size: usize,
    },
}

/// Tokens of one sequence in neighboring slots, placed by one or more entries of `cachestarts`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The first token, counted in the sequence.
    pub token: usize,
    /// The slot of the first token.
    pub slot: usize,
    /// The number of tokens.
    pub len: usize,
}

impl<'a> Addressing<'a> {
    /// The slot of token `t` of sequence `b`, in an addressing whose slots have been checked.
    pub fn slot(&self, b: usize, t: usize) -> usize {
        match *self {
            Self::Offset { cachestarts } => cachestarts[b] as usize + t,
            Self::Paged { cachestarts, max_p, page_size } => {
                cachestarts[b * max_p + t / page_size] as usize + t % page_size
            }
        }
    }

    /// The entries of `cachestarts` that place the first `kvlen` tokens of sequence `b`, unchecked, and how many tokens
    /// each places. There are at most `max_p`: whether they suffice is the caller's check.
    ///
    /// # Panics
    /// If `page_size` is 0.
    pub fn entries(&self, b: usize, kvlen: usize) -> impl Iterator<Item = (i64, usize)> + use<'a> {
        let (row, page_size) = self.row(b);
        row.iter().zip((0..kvlen).step_by(page_size)).map(move |(&start, first)| (start, page_size.min(kvlen - first)))
    }

    /// The longest runs of some tokens of sequence `b`, in order, in an addressing whose slots have been checked.
    ///
    /// # Panics
    /// In iteration, if the tokens need more than `max_p` entries.
    pub fn runs(&self, b: usize, tokens: Range<usize>) -> impl Iterator<Item = Run> + use<'a> {
        let (row, page_size) = self.row(b);
        let mut token = tokens.start;
        std::iter::from_fn(move || {
            let mut run: Option<Run> = None;
            while token < tokens.end {
                let (page, skip) = (token / page_size, token % page_size);
                let (slot, len) = (row[page] as usize + skip, (page_size - skip).min(tokens.end - token));
                match &mut run {
                    None => run = Some(Run { token, slot, len }),
                    Some(run) if slot == run.slot + run.len => run.len += len,
                    Some(_) => break,
                }
                token += len;
            }
            run
        })
    }

    /// The entries of sequence `b`, and the tokens that each of them places.
    fn row(&self, b: usize) -> (&'a [i64], usize) {
        match *self {
            Self::Offset { cachestarts } => (&cachestarts[b..=b], usize::MAX),
            Self::Paged { cachestarts, max_p, page_size } => (&cachestarts[b * max_p..][..max_p], page_size),
        }
    }
}
