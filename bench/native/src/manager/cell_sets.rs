//! A peer of the mode `cells`: the loops of llama.cpp's unified cache, which has a set of ids for each cell, as
//! MANAGER.md describes them in sections 3 and 5.

use std::collections::BTreeSet;

/// Rows of a mask come in multiples of this.
const ROWS: usize = 32;

/// A cell: the position of its row, and the sequences that have it.
#[derive(Default, Clone)]
pub(crate) struct Cell {
    pub(crate) position: i64,
    pub(crate) ids: BTreeSet<usize>,
}

/// All cells of a cache.
pub(crate) struct CellSets {
    pub(crate) cells: Vec<Cell>,
    pub(crate) head: usize,
    pub(crate) used: usize,
}

impl CellSets {
    /// Finds `n` free cells in a row, from the head on.
    pub(crate) fn find_slot(&self, n: usize) -> Option<usize> {
        let size = self.cells.len();
        if n > size {
            return None;
        }
        let mut head = if self.head > self.used + 2 * n { 0 } else { self.head };
        let mut tested = 0;
        loop {
            if head + n > size {
                tested += size - head;
                head = 0;
                continue;
            }
            let mut found = true;
            for i in 0..n {
                if !self.cells[head + i].ids.is_empty() {
                    found = false;
                    head += i + 1;
                    tested += i + 1;
                    break;
                }
            }
            if found {
                return Some(head);
            }
            if tested >= size {
                return None;
            }
        }
    }

    /// The cells up to the last one in use, in multiples of `pad`.
    pub(crate) fn n_kv(&self, pad: usize) -> usize {
        let mut last = self.cells.len();
        while last > 0 && self.cells[last - 1].ids.is_empty() {
            last -= 1;
        }
        self.cells.len().min(pad.max(last.next_multiple_of(pad)))
    }

    /// The mask of queries, each of a sequence and at a position, over the first `n_kv` cells.
    pub(crate) fn mask(&self, queries: &[(usize, i64)], n_kv: usize, mask: &mut [f32]) {
        let rows = queries.len().next_multiple_of(ROWS);
        assert_eq!(mask.len(), rows * n_kv);
        for (row, &(id, position)) in queries.iter().enumerate() {
            for (column, cell) in self.cells[..n_kv].iter().enumerate() {
                let hidden = !cell.ids.contains(&id) || cell.position > position;
                mask[row * n_kv + column] = if hidden { f32::NEG_INFINITY } else { 0.0 };
            }
        }
        for row in queries.len()..rows {
            for column in 0..n_kv {
                mask[row * n_kv + column] = f32::NEG_INFINITY;
            }
        }
    }
}
