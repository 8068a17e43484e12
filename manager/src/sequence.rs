//! A sequence: its rows, their pages, their positions, and how far its tokens are known.

use crate::error::Error;

/// The largest position of a row.
pub const MAX_POSITION: i64 = i32::MAX as i64 - 1;

/// Rows of consecutive positions: up to the next run, or to the sequence's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    row: usize,
    position: i64,
}

#[derive(Debug, Clone)]
pub(crate) struct Sequence {
    /// The number of rows.
    pub(crate) len: usize,
    /// The page of rows `i * page_size` and on, by i.
    pub(crate) table: Vec<u32>,
    /// Changes when pages leave the table's end.
    pub(crate) version: u64,
    runs: Vec<Run>,
    /// The number of leading rows whose tokens are known and whose positions are their rows.
    pub(crate) known: usize,
    /// The prefix key of no tokens, made of the sequence's salt.
    pub(crate) root: u128,
    /// The prefix key of the last full page of known rows; without one, `root`.
    pub(crate) key: u128,
    /// The index of its append in the open step.
    pub(crate) append: Option<usize>,
}

/// A sequence's state that appending changes, but for its table's entries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Before {
    len: usize,
    pages: usize,
    runs: usize,
    known: usize,
    key: u128,
}

impl Sequence {
    /// A sequence without rows, whose prefix keys begin with `root`.
    pub(crate) fn new(root: u128) -> Self {
        Self { len: 0, table: Vec::new(), version: 0, runs: Vec::new(), known: 0, root, key: root, append: None }
    }

    /// The position behind the last one.
    pub(crate) fn next_position(&self) -> i64 {
        self.runs.last().map_or(0, |run| run.position + (self.len - run.row) as i64)
    }

    pub(crate) fn first_position(&self) -> Option<i64> {
        self.runs.first().map(|run| run.position)
    }

    /// Adds rows of consecutive positions, of which the first is not before [`next_position`](Self::next_position).
    pub(crate) fn push_rows(&mut self, n: usize, position: i64) {
        if self.runs.is_empty() || position != self.next_position() {
            self.runs.push(Run { row: self.len, position });
        }
        self.len += n;
    }

    /// The positions of all rows.
    pub(crate) fn positions(&self) -> impl Iterator<Item = i64> {
        let ends = self.runs.iter().skip(1).map(|run| run.row).chain([self.len]);
        self.runs.iter().zip(ends).flat_map(|(run, end)| run.position..run.position + (end - run.row) as i64)
    }

    /// The number of rows before a position.
    pub(crate) fn rows_before(&self, position: i64) -> usize {
        let Some(run) = self.runs.iter().rfind(|run| run.position < position) else {
            return 0;
        };
        let behind = self.runs.iter().find(|next| next.row > run.row);
        let end = behind.map_or(self.len, |next| next.row);
        end.min(run.row + (position - run.position) as usize)
    }

    /// Keeps the first rows and their pages, of `page_size` rows; `key` is the prefix key of those that are known then.
    pub(crate) fn truncate(&mut self, len: usize, page_size: usize, key: u128) {
        let pages = len.div_ceil(page_size);
        if pages < self.table.len() {
            self.table.truncate(pages);
            self.version += 1;
        }
        let runs = self.runs.iter().take_while(|run| run.row < len).count();
        self.runs.truncate(runs);
        (self.len, self.known, self.key) = (len, self.known.min(len), key);
    }

    pub(crate) fn before(&self) -> Before {
        Before { len: self.len, pages: self.table.len(), runs: self.runs.len(), known: self.known, key: self.key }
    }

    /// Undoes appends.
    pub(crate) fn restore(&mut self, before: Before) {
        let Before { len, pages, runs, known, key } = before;
        self.table.truncate(pages);
        self.runs.truncate(runs);
        (self.len, self.known, self.key) = (len, known, key);
    }

    /// Checks that pages and positions are those of `len` rows.
    pub(crate) fn check(&self, at: usize, page_size: usize) -> Result<(), Error> {
        let broken = |what| Err(Error::Broken { what, at });
        if self.table.len() != self.len.div_ceil(page_size) {
            return broken("a sequence has the pages that its rows need");
        }
        if self.known > self.len {
            return broken("known rows are rows");
        }
        if self.runs.first().map(|run| run.row) != (self.len > 0).then_some(0) {
            return broken("the first run of positions begins at row 0, if there are rows");
        }
        let ordered = |pair: &[Run]| {
            let len = pair[1].row.checked_sub(pair[0].row).filter(|&len| len > 0);
            len.is_some_and(|len| pair[0].position + (len as i64) < pair[1].position)
        };
        if !self.runs.windows(2).all(ordered) || self.runs.last().is_some_and(|run| run.row >= self.len) {
            return broken("runs of positions are ordered, not empty and not contiguous");
        }
        if self.next_position() > MAX_POSITION + 1 || self.first_position().is_some_and(|first| first < 0) {
            return broken("positions are in their range");
        }
        if !self.positions().take(self.known).eq(0..self.known as i64) {
            return broken("the positions of known rows are their rows");
        }
        Ok(())
    }
}

/// Equal in all that later operations depend on.
impl PartialEq for Sequence {
    fn eq(&self, other: &Self) -> bool {
        let Self { len, table, version: _, runs, known, root, key, append } = self;
        (*len, table, runs, *known) == (other.len, &other.table, &other.runs, other.known)
            && (*root, *key, *append) == (other.root, other.key, other.append)
    }
}
