//! A sequence: its rows, where they are, their positions, and how far its tokens are known.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use serde::{Serialize, Serializer};
use slotmap::{Key, new_key_type};

use crate::error::Error;
use crate::memory::block::BlockKey;
use crate::sequences::positions::Positions;

new_key_type! {
    /// A sequence's id. The id of a freed sequence is never given again; the default, the null id, is no sequence's.
    ///
    /// It has a meaning only to the manager that gave it, and to that manager's clones. Another manager does not notice
    /// that it is not its own, and may take it for one of its own ids.
    pub struct SeqId;
}

impl SeqId {
    /// Why no sequence has it.
    pub(crate) fn absence(self) -> &'static str {
        if self == Self::default() { "it is the null id" } else { "it was freed" }
    }
}

impl fmt::Display for SeqId {
    /// The number that names the sequence in other languages: `slotmap::KeyData::as_ffi`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.data().as_ffi().fmt(f)
    }
}

impl Serialize for SeqId {
    /// As that number.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.data().as_ffi().serialize(serializer)
    }
}

/// Rows of a sequence in neighboring slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) row: usize,
    pub(crate) slot: usize,
    pub(crate) len: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MemoryLocation {
    /// The page of rows `i * page_size` and on, by i. In the mode `cells` a page is a cell.
    Table(Vec<u32>),
    /// One slot after the other, from the first of the cells that are reserved for the sequence on. Without rows none
    /// are.
    Run(Range<usize>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SwappedRows {
    pub(crate) block: BlockKey,
    pub(crate) len: usize,
    /// If they were a sealed page: its key and the number of its sealing. A page with both still has the rows.
    pub(crate) sealed: Option<(BlockKey, u64)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Swapped {
    /// Its rows, in order.
    pub(crate) rows: Vec<SwappedRows>,
    pub(crate) tokens: Vec<u32>,
}

/// The first rows of a sequence, whole pages of them, which a window has passed: in its table they have the null page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Passed {
    pub(crate) rows: usize,
    /// Their prefix key, if their tokens are known.
    pub(crate) key: BlockKey,
}

#[derive(Debug, Clone)]
pub(crate) struct Sequence {
    pub(crate) place: MemoryLocation,
    /// Changes when entries of the table are replaced or removed.
    pub(crate) version: u64,
    /// How often rows were removed: others may have come to the same positions.
    pub(crate) removals: u64,
    pub(crate) positions: Positions,
    /// The positions that stored keys are rotated for, where they are others than `positions`.
    pub(crate) rotated: Option<Positions>,
    pub(crate) shifts: u32,
    /// The number of leading rows whose tokens are known and whose positions are their rows.
    pub(crate) known: usize,
    pub(crate) salt: Arc<[u8]>,
    /// The prefix key of no tokens, made of the salt.
    pub(crate) root: BlockKey,
    /// The prefix key of the last full page of known rows; without one, `root`.
    pub(crate) key: BlockKey,
    pub(crate) passed: Passed,
    /// The cells that its run has at first, in the mode `runs`.
    pub(crate) reserve: usize,
    /// The last position that a window has removed.
    pub(crate) gone: Option<i64>,
    /// The first position that self-extend has not grouped.
    pub(crate) ga_i: i64,
    /// Where its rows are, if it is swapped out. It has no slots then.
    pub(crate) swapped: Option<Swapped>,
    /// A memory has failed while it moved rows of the sequence.
    pub(crate) lost: bool,
    pub(crate) created: u64,
    /// The index of its append in the open step.
    pub(crate) append: Option<usize>,
}

/// What undoes an append: the lengths and keys before it. Replaced entries of the table, and the run, are undone apart.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AppendUndo {
    len: usize,
    pages: usize,
    known: usize,
    key: BlockKey,
    passed: Passed,
}

impl MemoryLocation {
    pub(crate) fn empty(&self) -> Self {
        match self {
            Self::Table(_) => Self::Table(Vec::new()),
            Self::Run(_) => Self::Run(0..0),
        }
    }
}

impl Sequence {
    pub(crate) fn new(place: MemoryLocation, salt: Arc<[u8]>, root: BlockKey, reserve: usize, created: u64) -> Self {
        Self {
            place,
            version: 0,
            removals: 0,
            positions: Positions::default(),
            rotated: None,
            shifts: 0,
            known: 0,
            salt,
            root,
            key: root,
            passed: Passed { rows: 0, key: root },
            reserve,
            gone: None,
            ga_i: 0,
            swapped: None,
            lost: false,
            created,
            append: None,
        }
    }

    /// A sequence without rows and of the same salt.
    pub(crate) fn sibling(&self, created: u64) -> Self {
        Self::new(self.place.empty(), self.salt.clone(), self.root, self.reserve, created)
    }

    pub(crate) fn len(&self) -> usize {
        self.positions.len()
    }

    /// The rows that have slots: all, or none of a sequence that is swapped out.
    fn resident(&self) -> usize {
        if self.swapped.is_some() { 0 } else { self.len() }
    }

    /// The pages, or cells, of its rows; none in the mode `runs`.
    pub(crate) fn table(&self) -> &[u32] {
        match &self.place {
            MemoryLocation::Table(table) => table,
            MemoryLocation::Run(_) => &[],
        }
    }

    /// The table, of a sequence that has one.
    pub(crate) fn table_mut(&mut self) -> &mut Vec<u32> {
        match &mut self.place {
            MemoryLocation::Table(table) => table,
            MemoryLocation::Run(_) => unreachable!("only the mode `runs` has sequences without a table"),
        }
    }

    /// The reserved cells, of a sequence in the mode `runs`.
    pub(crate) fn run(&self) -> Range<usize> {
        match &self.place {
            MemoryLocation::Run(reserved) => reserved.clone(),
            MemoryLocation::Table(_) => unreachable!("all sequences of the mode `runs` have runs"),
        }
    }

    pub(crate) fn slot(&self, row: usize, page_size: usize) -> usize {
        match &self.place {
            MemoryLocation::Table(table) => table[row / page_size] as usize * page_size + row % page_size,
            MemoryLocation::Run(reserved) => reserved.start + row,
        }
    }

    /// Where some rows are: in order, each segment as long as its slots are neighbors.
    pub(crate) fn segments(&self, rows: Range<usize>, page_size: usize) -> impl Iterator<Item = Segment> {
        let mut row = rows.start;
        std::iter::from_fn(move || {
            let slot = (row < rows.end).then(|| self.slot(row, page_size))?;
            let mut len = match &self.place {
                MemoryLocation::Table(_) => page_size - row % page_size,
                MemoryLocation::Run(_) => rows.end - row,
            };
            while row + len < rows.end && self.slot(row + len, page_size) == slot + len {
                len += page_size;
            }
            let segment = Segment { row, slot, len: len.min(rows.end - row) };
            row += segment.len;
            Some(segment)
        })
    }

    pub(crate) fn slots(&self, page_size: usize) -> impl Iterator<Item = usize> {
        self.segments(0..self.resident(), page_size).flat_map(|segment| segment.slot..segment.slot + segment.len)
    }

    /// Whether keys of its rows have to be rotated.
    pub(crate) fn is_pending(&self) -> bool {
        self.rotated.is_some() && !self.lost && self.swapped.is_none()
    }

    /// By row: how far its key has still to be rotated.
    pub(crate) fn pending(&self) -> impl Iterator<Item = i64> {
        let len = self.len();
        let rotated = self.rotated.as_ref().unwrap_or(&self.positions);
        self.positions.iter().zip(rotated.iter()).map(|(position, rotated)| position - rotated).take(len)
    }

    /// Adds rows of consecutive positions, whose keys are rotated for them.
    pub(crate) fn push_rows(&mut self, n: usize, position: i64) {
        self.positions.push(n, position);
        if let Some(rotated) = &mut self.rotated {
            rotated.push(n, position);
        }
    }

    /// The last position whose row has no page, or is gone, because a window has passed it.
    pub(crate) fn last_passed(&self) -> Option<i64> {
        self.gone.max(self.passed.rows.checked_sub(1).map(|row| self.positions.at(row)))
    }

    /// Removes the positions of some rows; later ones close up, and their tokens count as unknown.
    pub(crate) fn remove_positions(&mut self, rows: Range<usize>) {
        self.removals += 1;
        self.known = self.known.min(rows.start);
        self.positions.remove(rows.clone());
        if let Some(rotated) = &mut self.rotated {
            rotated.remove(rows);
        }
        self.settle_rotation();
    }

    /// Forgets the positions that keys are rotated for, if the rows have these positions.
    pub(crate) fn settle_rotation(&mut self) {
        if self.rotated.as_ref() == Some(&self.positions) {
            self.rotated = None;
        }
    }

    pub(crate) fn append_undo(&self) -> AppendUndo {
        AppendUndo { len: self.len(), pages: self.table().len(), known: self.known, key: self.key, passed: self.passed }
    }

    /// Undoes appends.
    pub(crate) fn undo_append(&mut self, before: AppendUndo) {
        let AppendUndo { len, pages, known, key, passed } = before;
        if let MemoryLocation::Table(table) = &mut self.place {
            table.truncate(pages);
        }
        self.positions.truncate(len);
        if let Some(rotated) = &mut self.rotated {
            rotated.truncate(len);
        }
        (self.known, self.key, self.passed) = (known, key, passed);
    }

    /// Checks that there is a slot and a position for each row.
    pub(crate) fn check(&self, at: usize, page_size: usize) -> Result<(), Error> {
        let broken = |what| Err(Error::Broken { what, at });
        let len = self.len();
        if let Some(what) = self.positions.broken(len) {
            return broken(what);
        }
        match &self.place {
            MemoryLocation::Table(table) if table.len() != self.resident().div_ceil(page_size) => {
                return broken("a sequence has the pages that its rows need");
            }
            MemoryLocation::Run(reserved) if self.resident() > reserved.len() => {
                return broken("a sequence's run has its rows");
            }
            MemoryLocation::Run(reserved) if self.resident() == 0 && !reserved.is_empty() => {
                return broken("a sequence without rows has no run");
            }
            _ => {}
        }
        if let Some(Swapped { rows, tokens }) = &self.swapped
            && (rows.iter().map(|rows| rows.len).sum::<usize>() != len - self.passed.rows
                || tokens.len() != self.known.saturating_sub(self.passed.rows))
        {
            return broken("a sequence that is swapped out has blocks of its rows, and its tokens");
        }
        if self.passed.rows > len || !self.passed.rows.is_multiple_of(page_size) {
            return broken("rows that a window has passed are whole pages");
        }
        if self.known > len {
            return broken("known rows are rows");
        }
        if !self.positions.iter().take(self.known).eq(0..self.known as i64) {
            return broken("the positions of known rows are their rows");
        }
        if let Some(rotated) = &self.rotated {
            if let Some(what) = rotated.broken(len) {
                return broken(what);
            }
            if *rotated == self.positions {
                return broken("keys are noted as pending only if they are");
            }
        }
        Ok(())
    }
}

/// Equal in all that later operations depend on.
impl PartialEq for Sequence {
    fn eq(&self, other: &Self) -> bool {
        let Self { place, version: _, removals: _, positions, rotated, shifts, known, .. } = self;
        let Self { salt, root, key, passed, reserve, gone, ga_i, swapped, lost, created, append, .. } = self;
        (place, positions, rotated, *shifts, *known)
            == (&other.place, &other.positions, &other.rotated, other.shifts, other.known)
            && (salt, *root, *key, *passed) == (&other.salt, other.root, other.key, other.passed)
            && *reserve == other.reserve
            && (*gone, *ga_i, swapped, *lost) == (other.gone, other.ga_i, &other.swapped, other.lost)
            && (*created, *append) == (other.created, other.append)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_join_neighboring_pages() {
        let (table, root) = (MemoryLocation::Table(vec![3, 4, 1, 0]), BlockKey::from_bytes([1; 32]));
        let mut sequence = Sequence::new(table, Arc::from([]), root, 0, 0);
        sequence.push_rows(15, 0);
        let segments = |rows| sequence.segments(rows, 4).map(|s| (s.row, s.slot, s.len)).collect::<Vec<_>>();
        assert_eq!(segments(0..15), [(0, 12, 8), (8, 4, 4), (12, 0, 3)]);
        assert_eq!(segments(2..9), [(2, 14, 6), (8, 4, 1)]);
        assert_eq!(segments(5..5), []);
    }
}
