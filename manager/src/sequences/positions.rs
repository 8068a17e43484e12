//! Positions by row, as runs of consecutive ones.

use std::ops::Range;

/// The largest position of a row.
pub const MAX_POSITION: i64 = i32::MAX as i64 - 1;

/// Rows of consecutive positions: up to the next run, or to the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    row: usize,
    position: i64,
}

/// Neighboring rows and their positions, which are consecutive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Consecutive {
    pub(crate) row: usize,
    pub(crate) len: usize,
    pub(crate) position: i64,
}

/// The positions of all rows of a sequence. They do not fall along the rows. Runs that continue each other are one, so
/// equal positions are equal values.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Positions {
    runs: Vec<Run>,
    len: usize,
}

impl Positions {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn first(&self) -> Option<i64> {
        self.runs.first().map(|run| run.position)
    }

    pub(crate) fn last(&self) -> Option<i64> {
        self.runs.last().map(|run| run.position + (self.len - run.row) as i64 - 1)
    }

    /// The position after the last one; 0 without rows.
    pub(crate) fn next(&self) -> i64 {
        self.last().map_or(0, |last| last + 1)
    }

    /// The position of a row, which there is.
    pub(crate) fn at(&self, row: usize) -> i64 {
        let run = self.runs[self.runs.partition_point(|run| run.row <= row) - 1];
        run.position + (row - run.row) as i64
    }

    /// Adds `n` rows of consecutive positions.
    pub(crate) fn push(&mut self, n: usize, position: i64) {
        if n > 0 && (self.runs.is_empty() || position != self.next()) {
            self.runs.push(Run { row: self.len, position });
        }
        self.len += n;
    }

    /// The longest runs of rows whose positions are consecutive, in order.
    pub(crate) fn runs(&self) -> impl Iterator<Item = Consecutive> + Clone {
        let ends = self.runs.iter().skip(1).map(|run| run.row).chain([self.len]);
        self.runs.iter().zip(ends).map(|(run, end)| Consecutive {
            row: run.row,
            len: end - run.row,
            position: run.position,
        })
    }

    /// The parts of the runs that are inside of a range of rows.
    pub(crate) fn runs_of(&self, rows: Range<usize>) -> impl Iterator<Item = Consecutive> {
        let first = self.runs.partition_point(|run| run.row <= rows.start).saturating_sub(1);
        let parts = (first..self.runs.len()).map(move |i| {
            let Run { row, position } = self.runs[i];
            let end = self.runs.get(i + 1).map_or(self.len, |next| next.row).min(rows.end);
            let start = row.max(rows.start);
            Consecutive { row: start, len: end.saturating_sub(start), position: position + (start - row) as i64 }
        });
        parts.take_while(|part| part.len > 0)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = i64> {
        self.runs().flat_map(|run| run.position..run.position + run.len as i64)
    }

    pub(crate) fn rows_before(&self, position: i64) -> usize {
        let behind = self.runs.partition_point(|run| run.position < position);
        let Some(run) = behind.checked_sub(1).map(|i| self.runs[i]) else {
            return 0;
        };
        let end = self.runs.get(behind).map_or(self.len, |next| next.row);
        // The run begins before the position.
        end.min(run.row.saturating_add((position - run.position) as usize))
    }

    pub(crate) fn rows(&self, positions: Range<i64>) -> Range<usize> {
        let start = self.rows_before(positions.start);
        start..self.rows_before(positions.end).max(start)
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        if len < self.len {
            self.runs.truncate(self.runs.partition_point(|run| run.row < len));
            self.len = len;
        }
    }

    pub(crate) fn slice(&self, rows: Range<usize>) -> Self {
        let mut slice = Self::default();
        for run in self.runs_of(rows) {
            slice.push(run.len, run.position);
        }
        slice
    }

    /// Removes rows; later ones close up.
    pub(crate) fn remove(&mut self, rows: Range<usize>) {
        self.replace(rows, Self::default());
    }

    /// Puts other rows into the place of some.
    fn replace(&mut self, rows: Range<usize>, by: Self) {
        let behind = self.slice(rows.end..self.len);
        self.truncate(rows.start);
        for run in by.runs().chain(behind.runs()) {
            self.push(run.len, run.position);
        }
    }

    /// Changes the positions of some rows, by a function of the position that does not fall. `consecutive`: it maps
    /// consecutive positions to consecutive ones.
    pub(crate) fn map(&mut self, rows: Range<usize>, consecutive: bool, f: impl Fn(i64) -> i64) {
        let mut mapped = Self::default();
        for Consecutive { len, position, .. } in self.runs_of(rows.clone()) {
            if consecutive {
                mapped.push(len, f(position));
            } else {
                (position..position + len as i64).for_each(|position| mapped.push(1, f(position)));
            }
        }
        self.replace(rows, mapped);
    }

    /// The invariant that the runs of `len` rows break, if they break one.
    pub(crate) fn broken(&self, len: usize) -> Option<&'static str> {
        let positions = |run: Consecutive| run.position..=run.position + run.len as i64 - 1;
        if self.len != len {
            return Some("a sequence has a position for each row");
        }
        if self.runs.first().map(|run| run.row) != (len > 0).then_some(0) {
            return Some("the first run of positions begins at row 0, if there are rows");
        }
        if !self.runs.is_sorted_by(|a, b| a.row < b.row) || self.runs.last().is_some_and(|run| run.row >= len) {
            return Some("runs of positions are ordered and not empty");
        }
        if !self.runs().zip(self.runs().skip(1)).all(|(a, b)| {
            let last = *positions(a).end();
            last <= b.position && last + 1 != b.position
        }) {
            return Some("positions do not fall, and runs of them are as long as can be");
        }
        if self.runs().any(|run| *positions(run).start() < 0 || *positions(run).end() > MAX_POSITION) {
            return Some("positions are in their range");
        }
        None
    }
}
