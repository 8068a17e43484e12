//! The rows that a step appends.

use crate::error::Error;
use crate::sequences::SeqId;
use crate::sequences::positions::MAX_POSITION;
use crate::state::State;

/// New rows of a sequence.
#[derive(Debug, Clone, Copy)]
pub struct Append<'a> {
    pub(crate) seq: SeqId,
    rows: Rows<'a>,
    first_pos: Option<i64>,
    /// Rows that attention sees beside the sequence's own.
    seen: usize,
    /// The most tokens that are looked up in the prefix index.
    most_cached: usize,
}

#[derive(Debug, Clone, Copy)]
enum Rows<'a> {
    Tokens(&'a [u32]),
    Count(usize),
}

impl<'a> Append<'a> {
    /// Appends these tokens. Where the sequence has no rows yet, it begins with the cached pages of the same tokens,
    /// and only the others are in the step.
    pub fn tokens(seq: SeqId, tokens: &'a [u32]) -> Self {
        Self { seq, rows: Rows::Tokens(tokens), first_pos: None, seen: 0, most_cached: usize::MAX }
    }

    /// Appends `n` rows whose tokens the manager does not know.
    pub fn count(seq: SeqId, n: usize) -> Self {
        Self { seq, rows: Rows::Count(n), first_pos: None, seen: 0, most_cached: usize::MAX }
    }

    /// The position of the first row; the others follow. Unless given, it is the one after the last, or 0.
    #[must_use]
    pub fn at(self, first_pos: i64) -> Self {
        Self { first_pos: Some(first_pos), ..self }
    }

    /// At most this many tokens come from the prefix index, as where another manager found no more.
    #[must_use]
    pub fn most_cached(self, most_cached: usize) -> Self {
        Self { most_cached, ..self }
    }

    /// The tokens that may be found in the prefix index: not the last one, which is always computed.
    pub(crate) fn may_be_cached(&self) -> &'a [u32] {
        let tokens = self.known().unwrap_or_default();
        &tokens[..tokens.len().saturating_sub(1).min(self.most_cached)]
    }

    /// Attention sees this many rows of whole pages beside the sequence's own.
    pub(crate) fn seeing(self, seen: usize) -> Self {
        Self { seen, ..self }
    }

    pub(crate) fn len(&self) -> usize {
        match self.rows {
            Rows::Tokens(tokens) => tokens.len(),
            Rows::Count(n) => n,
        }
    }

    pub(crate) fn known(&self) -> Option<&'a [u32]> {
        match self.rows {
            Rows::Tokens(tokens) => Some(tokens),
            Rows::Count(_) => None,
        }
    }

    /// The first position, for a sequence that continues at `next`.
    pub(crate) fn first_position(&self, next: i64) -> i64 {
        self.first_pos.unwrap_or(next)
    }

    /// Checks all but whether there is room.
    pub(crate) fn check(&self, append: usize, state: &State) -> Result<(), Error> {
        let sequence = state.intact(self.seq)?;
        let n = self.len();
        if n == 0 {
            return Err(Error::EmptyAppend { append });
        }
        if let Some(other) = sequence.append {
            return Err(Error::DuplicateSeq { append, other });
        }
        let min = sequence.positions.next();
        let first = self.first_position(min);
        if first < min {
            return Err(Error::PositionOrder { append: Some(append), got: first, min });
        }
        let last = i64::try_from(n).ok().and_then(|n| first.checked_add(n - 1));
        if last.is_none_or(|last| last > MAX_POSITION) {
            return Err(Error::PositionOverflow { append: Some(append), first, n, max: MAX_POSITION });
        }
        // Both are positions.
        let kvlen = (sequence.len() + self.seen).saturating_add(n);
        let (page_size, need) = (state.page_size(), kvlen.div_ceil(state.page_size()));
        match state.spec.max_pages {
            Some(max_pages) if need > max_pages => {
                Err(Error::TooManyPages { append, kvlen, page_size, need, max_pages })
            }
            _ => Ok(()),
        }
    }
}
