//! Pages, or cells: how many table entries name each, and which are free.

use std::collections::HashSet;
use std::ops::Range;

use crate::error::Error;
use crate::slots::bits::{Bits, zeros};
use crate::slots::cells;

/// The page of rows that a window has passed, where these stay. Nothing is written to it.
pub(crate) const NULL_PAGE: u32 = 0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    Freed,
    /// It was never used.
    Fresh,
    Cell,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Pool {
    /// Pages, one at a time: the latest freed first, then those that were never used in ascending order.
    Stack {
        freed: Vec<u32>,
        /// The first of the pages that were never used.
        fresh: u32,
    },
    /// Cells, several neighbors at a time: from `head` on.
    Cells { busy: Bits, head: usize },
}

/// Reference counts, and the free pages. In the mode `runs` cells have no reference counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pages {
    refcounts: Vec<u32>,
    pool: Pool,
}

impl Pages {
    /// Free pages, taken one at a time.
    pub(crate) fn stack(num_pages: usize) -> Result<Self, Error> {
        Ok(Self { refcounts: zeros(num_pages)?, pool: Pool::Stack { freed: Vec::new(), fresh: 0 } })
    }

    /// Free cells, taken as neighbors.
    pub(crate) fn cells(num_cells: usize) -> Result<Self, Error> {
        Ok(Self { refcounts: zeros(num_cells)?, pool: Pool::Cells { busy: Bits::new(num_cells)?, head: 0 } })
    }

    /// Takes a free page, or the lowest free cell from `first` on; its reference count is still 0.
    pub(crate) fn take(&mut self, first: usize) -> Option<(u32, Source)> {
        match &mut self.pool {
            Pool::Stack { freed, fresh } => {
                if let Some(page) = freed.pop() {
                    return Some((page, Source::Freed));
                }
                let page = *fresh;
                ((page as usize) < self.refcounts.len()).then(|| {
                    *fresh += 1;
                    (page, Source::Fresh)
                })
            }
            Pool::Cells { busy, .. } => {
                let cell = busy.next_free(first..busy.len())?;
                busy.set(cell..cell + 1);
                Some((cell as u32, Source::Cell))
            }
        }
    }

    /// Undoes the latest [`take`](Self::take) that is not undone.
    pub(crate) fn untake(&mut self, page: u32, source: Source) {
        match (&mut self.pool, source) {
            (Pool::Stack { freed, .. }, Source::Freed) => freed.push(page),
            (Pool::Stack { fresh, .. }, _) => *fresh -= 1,
            (Pool::Cells { busy, .. }, _) => busy.clear(page as usize..page as usize + 1),
        }
    }

    /// Takes `n` neighboring cells; returns the first, and the head before. The next search begins after them.
    pub(crate) fn take_cells(&mut self, n: usize) -> Option<(usize, usize)> {
        let Pool::Cells { busy, head } = &mut self.pool else { unreachable!("pages are taken one at a time") };
        let before = *head;
        let (slot, _) = cells::find_slot_in(busy, before, busy.count(), n);
        let slot = slot?;
        busy.set(slot..slot + n);
        *head = if slot + n == busy.len() { 0 } else { slot + n };
        Some((slot, before))
    }

    /// Takes cells after a run, if they are free.
    pub(crate) fn take_behind(&mut self, cells: Range<usize>) -> bool {
        let Pool::Cells { busy, .. } = &mut self.pool else { unreachable!("pages are taken one at a time") };
        let free = cells.end <= busy.len() && busy.next_busy(cells.clone()).is_none();
        if free {
            busy.set(cells);
        }
        free
    }

    /// Frees cells; the next search begins with them, unless it would begin earlier.
    pub(crate) fn free_cells(&mut self, cells: Range<usize>) {
        if let Pool::Cells { busy, head } = &mut self.pool
            && !cells.is_empty()
        {
            *head = cells.start.min(*head);
            busy.clear(cells);
        }
    }

    /// Undoes [`take_cells`](Self::take_cells) or [`take_behind`](Self::take_behind).
    pub(crate) fn untake_cells(&mut self, cells: Range<usize>) {
        if let Pool::Cells { busy, .. } = &mut self.pool {
            busy.clear(cells);
        }
    }

    /// Where the next search for cells begins; 0 with pages.
    pub(crate) fn head(&self) -> usize {
        if let Pool::Cells { head, .. } = self.pool { head } else { 0 }
    }

    /// Lets the next search for cells begin elsewhere.
    pub(crate) fn set_head(&mut self, to: usize) {
        if let Pool::Cells { head, .. } = &mut self.pool {
            *head = to;
        }
    }

    /// After an edit that has set the head after all cells: without a freed cell the next search begins at 0.
    pub(crate) fn settle_head(&mut self) {
        if let Pool::Cells { busy, head } = &mut self.pool
            && *head >= busy.len()
        {
            *head = 0;
        }
    }

    /// The busy cells, where there are cells.
    pub(crate) fn busy(&self) -> Option<&Bits> {
        if let Pool::Cells { busy, .. } = &self.pool { Some(busy) } else { None }
    }

    pub(crate) fn free(&mut self, page: u32) {
        match &mut self.pool {
            Pool::Stack { freed, .. } => freed.push(page),
            Pool::Cells { .. } => self.free_cells(page as usize..page as usize + 1),
        }
    }

    pub(crate) fn refcount(&self, page: u32) -> u32 {
        self.refcounts[page as usize]
    }

    /// One more table entry; returns how many there are.
    pub(crate) fn share(&mut self, page: u32) -> u32 {
        self.refcounts[page as usize] += 1;
        self.refcounts[page as usize]
    }

    /// One table entry less; returns how many are left.
    pub(crate) fn unshare(&mut self, page: u32) -> u32 {
        self.refcounts[page as usize] -= 1;
        self.refcounts[page as usize]
    }

    pub(crate) fn num_free(&self) -> usize {
        match &self.pool {
            Pool::Stack { freed, fresh } => freed.len() + self.refcounts.len() - *fresh as usize,
            Pool::Cells { busy, .. } => busy.len() - busy.count(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.refcounts.len()
    }

    /// The free pages, in any order.
    pub(crate) fn free_pages(&self) -> Box<dyn Iterator<Item = u32> + '_> {
        match &self.pool {
            Pool::Stack { freed, fresh } => Box::new(freed.iter().copied().chain(*fresh..self.len() as u32)),
            Pool::Cells { busy, .. } => {
                Box::new((0..self.len()).filter(|&cell| !busy.is_busy(cell)).map(|cell| cell as u32))
            }
        }
    }

    /// A page was freed and not taken again.
    pub(crate) fn any_freed(&self) -> bool {
        match &self.pool {
            Pool::Stack { freed, .. } => !freed.is_empty(),
            Pool::Cells { busy, .. } => busy.count() < busy.end(),
        }
    }

    /// The freed pages, ascending. Those that were never used come after all live ones.
    pub(crate) fn freed(&self) -> Vec<u32> {
        let Pool::Stack { freed, .. } = &self.pool else { unreachable!("cells are no list") };
        let mut freed = freed.clone();
        freed.sort_unstable();
        freed
    }

    /// Moves the table entries of pages to freed ones: of each pair (page, freed page). The pages are freed.
    pub(crate) fn move_pages(&mut self, moves: &[(u32, u32)]) {
        let Pool::Stack { freed, .. } = &mut self.pool else { unreachable!("cells are moved in runs") };
        let taken: HashSet<u32> = moves.iter().map(|pair| pair.1).collect();
        freed.retain(|page| !taken.contains(page));
        for &(src, dst) in moves {
            self.refcounts.swap(src as usize, dst as usize);
            freed.push(src);
        }
    }

    /// Moves the table entries of cells to free ones.
    pub(crate) fn move_cells(&mut self, src: usize, dst: usize, len: usize) {
        let Pool::Cells { busy, .. } = &mut self.pool else { unreachable!("pages are moved one at a time") };
        for i in 0..len {
            self.refcounts[dst + i] = std::mem::take(&mut self.refcounts[src + i]);
        }
        busy.clear(src..src + len);
        busy.set(dst..dst + len);
    }
}
