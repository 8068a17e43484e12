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

/// Tokens of one sequence in neighboring slots, placed by one entry of `cachestarts`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// The entry's column in `cachestarts`: the page, or 0 outside of paged mode.
    pub page: usize,
    /// The entry as the caller gave it, unchecked.
    pub start: i64,
    /// The first token, counted in the sequence.
    pub token: usize,
    /// How far behind `start` the first token lies.
    pub skip: usize,
    /// The number of tokens.
    pub len: usize,
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

    /// The number of entries of a row of `cachestarts` that place `kvlen` tokens.
    pub fn entries(&self, kvlen: usize) -> usize {
        match *self {
            Self::Offset { .. } => 1,
            Self::Paged { page_size, .. } => kvlen.div_ceil(page_size),
        }
    }

    /// The segments of some tokens of sequence `b`, in order, with the entries of `cachestarts` as they are.
    ///
    /// # Panics
    /// In iteration, if the tokens need more than `max_p` entries.
    pub fn segments(&self, b: usize, tokens: Range<usize>) -> impl Iterator<Item = Segment> + use<'a> {
        let (row, page_size) = match *self {
            Self::Offset { cachestarts } => (&cachestarts[b..=b], usize::MAX),
            Self::Paged { cachestarts, max_p, page_size } => (&cachestarts[b * max_p..][..max_p], page_size),
        };
        let mut token = tokens.start;
        std::iter::from_fn(move || {
            if token >= tokens.end {
                return None;
            }
            let (page, skip) = (token / page_size, token % page_size);
            let len = (page_size - skip).min(tokens.end - token);
            let segment = Segment { page, start: row[page], token, skip, len };
            token += len;
            Some(segment)
        })
    }

    /// The longest runs of some tokens of sequence `b`, in order, in an addressing whose slots have been checked.
    pub fn runs(&self, b: usize, tokens: Range<usize>) -> impl Iterator<Item = Run> + use<'a> {
        let mut runs = self
            .segments(b, tokens)
            .map(|segment| Run { token: segment.token, slot: segment.start as usize + segment.skip, len: segment.len })
            .peekable();
        std::iter::from_fn(move || {
            let mut run = runs.next()?;
            while let Some(next) = runs.next_if(|next| next.slot == run.slot + run.len) {
                run.len += next.len;
            }
            Some(run)
        })
    }
}
