//! Removing rows: later ones close up, and as few as possible move.

use std::ops::Range;

use kvcache_kernels::RowCopy;

use crate::error::Error;
use crate::sequences::SeqId;
use crate::sequences::sequence::{MemoryLocation, Passed};
use crate::slots::pages::NULL_PAGE;
use crate::spec::Mode;
use crate::state::State;

impl State {
    /// After a step: removes the rows of its sequences that no later token will see, in pages whole pages of them.
    pub(crate) fn trim_windows(&mut self) {
        if self.spec.window.is_some() {
            self.begin();
            for i in 0..self.plan.entries.len() {
                self.trim(self.plan.entries[i].seq);
            }
            self.commit();
        }
    }

    fn trim(&mut self, seq: SeqId) {
        let Some(window) = self.spec.window else { return };
        let sequence = &self.sequences[seq];
        let kept = (window + self.spec.slack) as i64;
        let first = if self.spec.keep_rows { sequence.passed.rows } else { self.spec.sink };
        let mut rows = first..sequence.positions.rows_before(sequence.positions.next() - kept + 1);
        if let Mode::Paged { page_size } = self.spec.mode {
            rows = rows.start.next_multiple_of(page_size)..rows.end / page_size * page_size;
        }
        if rows.is_empty() {
            return;
        }
        if self.spec.keep_rows {
            return self.pass(seq, rows);
        }
        let gone = sequence.positions.at(rows.end - 1);
        if let Err(error) = self.remove_rows_for_good(seq, rows) {
            unreachable!("whole pages, cells, and rows of a run leave without new ones: {error}");
        }
        let sequence = &mut self.sequences[seq];
        sequence.gone = sequence.gone.max(Some(gone));
    }

    /// Gives rows, whole pages after those that a window passed before, the null page. It is not in the journal.
    fn pass(&mut self, seq: SeqId, rows: Range<usize>) {
        let key = self.prefix_key(&self.sequences[seq], rows.end);
        let pages = rows.start / self.page_size()..rows.end / self.page_size();
        let sequence = &mut self.sequences[seq];
        (sequence.passed, sequence.version) = (Passed { rows: rows.end, key }, sequence.version + 1);
        let gone = sequence.table()[pages.clone()].to_vec();
        sequence.table_mut()[pages].fill(NULL_PAGE);
        gone.iter().for_each(|_| self.share_page(NULL_PAGE));
        self.drop_pages(&gone);
    }

    /// Refuses what needs rows that a window has passed, where these stay.
    pub(super) fn check_whole(&self, seq: SeqId) -> Result<(), Error> {
        match self.sequences[seq].passed.rows {
            0 => Ok(()),
            _ => Err(Error::NotShiftable { why: "a window has freed the pages of the first rows" }),
        }
    }

    /// Removes the rows of a sequence whose positions are in a range; returns how many they were.
    pub(crate) fn remove_positions(&mut self, seq: SeqId, positions: Range<i64>) -> Result<usize, Error> {
        let sequence = self.intact(seq)?;
        let rows = sequence.positions.rows(positions.clone());
        if rows.is_empty() {
            return Ok(0);
        }
        if let (Some(window), Some(gone)) = (self.spec.window, sequence.last_passed()) {
            let (p0, window) = (positions.start, window as i64);
            if rows.end == sequence.len() && p0 > 0 && gone > p0 - window {
                return Err(Error::WindowLost { p0, window, gone });
            }
        }
        let removed = rows.len();
        self.remove_rows(seq, rows)?;
        Ok(removed)
    }

    pub(super) fn remove_rows(&mut self, seq: SeqId, rows: Range<usize>) -> Result<(), Error> {
        let sequence = &self.sequences[seq];
        if rows.end < sequence.len() || (1..sequence.passed.rows).contains(&rows.start) {
            self.check_whole(seq)?;
        }
        self.note_edit(seq);
        self.remove_rows_for_good(seq, rows)
    }

    /// Removes rows of a sequence, which is not in the journal: what cannot fail need not be undone.
    pub(crate) fn remove_rows_for_good(&mut self, seq: SeqId, rows: Range<usize>) -> Result<(), Error> {
        let key = self.prefix_key(&self.sequences[seq], rows.start);
        let sequence = &self.sequences[seq];
        match &sequence.place {
            MemoryLocation::Run(_) => self.slide(seq, rows.clone()),
            MemoryLocation::Table(_) if rows.end == sequence.len() => self.cut(seq, rows.start),
            MemoryLocation::Table(_) if rows.len().is_multiple_of(self.page_size()) => {
                self.remove_pages(seq, rows.clone())?
            }
            MemoryLocation::Table(_) => self.close_up(seq, rows.clone())?,
        }
        let sequence = &mut self.sequences[seq];
        sequence.remove_positions(rows);
        sequence.key = key;
        sequence.version += 1;
        if sequence.len() == 0 {
            (sequence.shifts, sequence.gone, sequence.ga_i) = (0, None, 0);
            sequence.passed = Passed { rows: 0, key: sequence.root };
        }
        Ok(())
    }

    /// Keeps the pages of the first rows of a table.
    fn cut(&mut self, seq: SeqId, len: usize) {
        let pages = len.div_ceil(self.page_size());
        let gone = self.sequences[seq].table_mut().split_off(pages);
        self.drop_pages(&gone);
    }

    /// Takes pages out of a table. The last goes first, so that it is evicted before those that it is of no use
    /// without.
    fn drop_pages(&mut self, pages: &[u32]) {
        for &page in pages.iter().rev() {
            self.unshare_page(page);
        }
    }

    /// Removes rows that are as many as whole pages. Where they begin inside of a page, the rows in front of them in
    /// their first page and later rows in the page where they end become one page: the fewer move to the
    /// others, unless these are in a page that other sequences have.
    fn remove_pages(&mut self, seq: SeqId, rows: Range<usize>) -> Result<(), Error> {
        let page_size = self.page_size();
        let sequence = &self.sequences[seq];
        let (first, last) = (rows.start / page_size, rows.end / page_size);
        let front = rows.start % page_size;
        if front == 0 {
            let gone: Vec<u32> = self.sequences[seq].table_mut().drain(first..last).collect();
            self.drop_pages(&gone);
            return Ok(());
        }
        let behind = (page_size - front).min(sequence.len() - rows.end);
        let (head, tail) = (sequence.table()[first], sequence.table()[last]);
        let own = |page: u32| self.pages.refcount(page) == 1;
        let slot = |page: u32| page as usize * page_size;
        let to_tail = |page: u32| RowCopy { src: slot(head), dst: slot(page), len: front };
        let to_head = |page: u32| RowCopy { src: slot(tail) + front, dst: slot(page) + front, len: behind };
        let merged = if own(tail) && (front <= behind || !own(head)) {
            self.unseal_page(tail);
            self.queue_copy(to_tail(tail));
            tail
        } else if own(head) {
            self.unseal_page(head);
            self.queue_copy(to_head(head));
            head
        } else {
            self.require(1)?;
            let page = self.take_required(0);
            self.queue_copy(to_tail(page));
            self.queue_copy(to_head(page));
            page
        };
        let old: Vec<u32> = self.sequences[seq].table_mut().splice(first..=last, [merged]).collect();
        let gone: Vec<u32> = old.into_iter().filter(|&page| page != merged).collect();
        self.drop_pages(&gone);
        Ok(())
    }

    /// Removes rows; all later rows move into their places. Pages that others have are replaced.
    fn close_up(&mut self, seq: SeqId, rows: Range<usize>) -> Result<(), Error> {
        let page_size = self.page_size();
        let sequence = &self.sequences[seq];
        let (len, first) = (sequence.len(), rows.start / page_size);
        let kept = (len - rows.len()).div_ceil(page_size);
        let old = sequence.table()[first..].to_vec();
        let mut pages = old[..kept - first].to_vec();
        let shared = |page: &u32| self.pages.refcount(*page) > 1;
        self.require(pages.iter().filter(|page| shared(page)).count())?;
        let mut gone = old[kept - first..].to_vec();
        let slot = |pages: &[u32], row: usize| pages[row / page_size - first] as usize * page_size + row % page_size;
        for (index, page) in pages.iter_mut().enumerate() {
            if self.pages.refcount(*page) == 1 {
                self.unseal_page(*page);
                continue;
            }
            let own = self.take_required(0);
            let front = rows.start % page_size;
            if index == 0 && front > 0 {
                let src = *page as usize * page_size;
                self.queue_copy(RowCopy { src, dst: own as usize * page_size, len: front });
            }
            gone.push(std::mem::replace(page, own));
        }
        let mut row = rows.end;
        while row < len {
            let to = row - rows.len();
            let n = (page_size - row % page_size).min(page_size - to % page_size).min(len - row);
            self.queue_copy(RowCopy { src: slot(&old, row), dst: slot(&pages, to), len: n });
            row += n;
        }
        let table = self.sequences[seq].table_mut();
        table.truncate(first);
        table.append(&mut pages);
        self.drop_pages(&gone);
        Ok(())
    }

    /// Removes rows of a run: the fewer of the rows in front and the later ones move. Cells in front of the first row
    /// are given back.
    fn slide(&mut self, seq: SeqId, rows: Range<usize>) {
        let sequence = &self.sequences[seq];
        let Range { start, end } = sequence.run();
        let (front, behind) = (rows.start, sequence.len() - rows.end);
        let reserved = if front + behind == 0 {
            self.free_cells(start..end);
            0..0
        } else if front < behind {
            let moved = start + rows.len();
            if front > 0 {
                self.queue_copy(RowCopy { src: start, dst: moved, len: front });
            }
            self.free_cells(start..moved);
            moved..end
        } else {
            if behind > 0 {
                self.queue_copy(RowCopy { src: start + rows.end, dst: start + rows.start, len: behind });
            }
            start..end
        };
        self.sequences[seq].place = MemoryLocation::Run(reserved);
    }
}
