//! Copying rows of a sequence to another: shared where the mode can, else moved.

use std::ops::Range;

use kvcache_kernels::RowCopy;

use crate::error::Error;
use crate::sequences::SeqId;
use crate::sequences::sequence::MemoryLocation;
use crate::spec::Mode;
use crate::state::State;

impl State {
    /// Returns a new sequence with all rows of another, and with its salt.
    pub(crate) fn fork(&mut self, src: SeqId) -> Result<SeqId, Error> {
        let created = self.next_created();
        let sequence = self.intact(src)?;
        let rows = 0..sequence.len();
        let sibling = sequence.sibling(created);
        let fork = self.insert(sibling);
        self.copy_to(src, fork, rows)?;
        Ok(fork)
    }

    /// Copies the rows of `src` whose positions are in a range to `dst`, which has no rows; returns how many they are.
    pub(crate) fn copy_positions(&mut self, src: SeqId, dst: SeqId, positions: Range<i64>) -> Result<usize, Error> {
        let sequence = self.intact(src)?;
        let len = self.intact(dst)?.len();
        if src == dst || positions.is_empty() {
            return Ok(0);
        }
        if len > 0 {
            return Err(Error::NotEmpty { len });
        }
        let rows = sequence.positions.rows(positions);
        if rows.len() < sequence.len() {
            self.check_whole(src)?;
        }
        let copied = rows.len();
        self.copy_to(src, dst, rows)?;
        Ok(copied)
    }

    /// Copies to a sequence without rows some of another's.
    fn copy_to(&mut self, src: SeqId, dst: SeqId, rows: Range<usize>) -> Result<(), Error> {
        self.note_edit(dst);
        if self.spec.mode == Mode::Cells {
            self.set_head(0);
        }
        if !rows.is_empty() {
            match self.spec.mode {
                Mode::Cells => self.share_rows(src, dst, rows.clone()),
                Mode::Paged { .. } if rows.start == 0 => self.share_rows(src, dst, rows.clone()),
                Mode::Paged { .. } => self.copy_to_pages(src, dst, rows.clone())?,
                Mode::Runs => self.copy_to_run(src, dst, rows.clone())?,
            }
        }
        let from = &self.sequences[src];
        let known = if rows.start == 0 && from.root == self.sequences[dst].root { from.known.min(rows.end) } else { 0 };
        let key = self.prefix_key(from, known);
        let positions = from.positions.slice(rows.clone());
        let rotated = from.rotated.as_ref().map(|rotated| rotated.slice(rows.clone()));
        // A sequence without rows has no past, whatever another one has.
        let passed = from.passed;
        let past = if rows.is_empty() { (0, None, 0) } else { (from.shifts, from.gone, from.ga_i) };
        let to = &mut self.sequences[dst];
        (to.positions, to.rotated, (to.shifts, to.gone, to.ga_i)) = (positions, rotated, past);
        if passed.rows > 0 && !rows.is_empty() {
            to.passed = passed;
        }
        to.settle_rotation();
        if known > 0 {
            (to.known, to.key) = (known, key);
        }
        to.version += 1;
        Ok(())
    }

    /// Adds pages, or cells, of rows to the other table as well.
    fn share_rows(&mut self, src: SeqId, dst: SeqId, rows: Range<usize>) {
        let page_size = self.page_size();
        let pages = rows.start / page_size..rows.end.div_ceil(page_size);
        let table = self.sequences[src].table()[pages].to_vec();
        for &page in &table {
            self.share_page(page);
        }
        *self.sequences[dst].table_mut() = table;
    }

    fn copy_to_pages(&mut self, src: SeqId, dst: SeqId, rows: Range<usize>) -> Result<(), Error> {
        let page_size = self.page_size();
        let need = rows.len().div_ceil(page_size);
        self.require(need)?;
        let table: Vec<u32> = (0..need).map(|_| self.take_required(0)).collect();
        let segments: Vec<_> = self.sequences[src].segments(rows.clone(), page_size).collect();
        for segment in segments {
            let mut done = 0;
            while done < segment.len {
                let row = segment.row + done - rows.start;
                let len = (page_size - row % page_size).min(segment.len - done);
                let dst = table[row / page_size] as usize * page_size + row % page_size;
                self.queue_copy(RowCopy { src: segment.slot + done, dst, len });
                done += len;
            }
        }
        *self.sequences[dst].table_mut() = table;
        Ok(())
    }

    fn copy_to_run(&mut self, src: SeqId, dst: SeqId, rows: Range<usize>) -> Result<(), Error> {
        let (need, base) = (rows.len(), self.sequences[src].slot(rows.start, 1));
        let reserve = self.sequences[dst].reserve;
        let (start, len) = self.take_run(need, reserve).ok_or_else(|| self.no_slot(need))?;
        self.queue_copy(RowCopy { src: base, dst: start, len: need });
        self.sequences[dst].place = MemoryLocation::Run(start..start + len);
        Ok(())
    }
}
