//! What a step needs in the cache: pages, copies of shared ones, rotations, loads.

use kvcache_kernels::{Rotation, RowCopy};

use super::config::FarPositions;
use super::residency::Load;
use super::sequence::{Device, Sequence, Setup};
use crate::error::Error;
use crate::pages::{Pages, Source};
use crate::positions::MAX_POSITION;
use crate::seq_id::SeqId;
use crate::spec::KeyForm;

/// A sequence of a step.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) seq: SeqId,
    /// The index of its append.
    pub(crate) append: usize,
    /// New tokens.
    pub(crate) n: usize,
    /// By selection: the blocks that it sees, in ascending order, equally many in each.
    pub(crate) blocks: Vec<Vec<u32>>,
    /// The pages of new tokens that are not on the sequence's last page.
    pub(crate) tail: Vec<u32>,
}

/// How to undo one change.
#[derive(Debug)]
enum Undo {
    Take(u32, Source),
    Unshare(u32),
}

/// What a step does before it runs, entry by entry.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    setup: &'a Setup,
    pages: &'a mut Pages,
    pub(crate) copies: Vec<RowCopy>,
    pub(crate) rotations: Vec<Rotation>,
    undo: Vec<Undo>,
    /// The pages that are taken, and those that were free.
    need: usize,
    free: usize,
}

impl<'a> Plan<'a> {
    pub(crate) fn new(setup: &'a Setup, pages: &'a mut Pages) -> Self {
        let free = pages.num_free();
        Self { setup, pages, copies: Vec::new(), rotations: Vec::new(), undo: Vec::new(), need: 0, free }
    }

    /// Whether there were pages enough.
    ///
    /// # Errors
    /// [`Error::OutOfPages`].
    pub(crate) fn check(&self) -> Result<(), Error> {
        let Self { need, free, .. } = *self;
        if need <= free { Ok(()) } else { Err(Error::OutOfPages { need, free }) }
    }

    /// Gives back all that was taken.
    pub(crate) fn undo(self) {
        for undo in self.undo.into_iter().rev() {
            match undo {
                Undo::Take(page, source) => {
                    self.pages.unshare(page);
                    self.pages.untake(page, source);
                }
                Undo::Unshare(page) => drop(self.pages.share(page)),
            }
        }
    }

    /// Plans one entry: its sequence's rows in the cache, the blocks to load by selection, and whether keys are
    /// rotated. Its tail gets the pages of new tokens. What was planned after a page was missing is good for counting
    /// alone.
    ///
    /// # Errors
    /// [`Error::TooManyPages`], [`Error::PositionOverflow`], [`Error::ShiftLimit`].
    pub(crate) fn entry(
        &mut self,
        entry: &mut Entry,
        sequence: &Sequence,
    ) -> Result<(Device, Vec<Vec<Load>>, bool), Error> {
        let mut device = sequence.device.clone();
        let rows = sequence.rows(self.setup);
        let needed = (rows + entry.n).div_ceil(self.setup.page_size());
        self.check_width(entry, sequence, rows, needed)?;
        let rotated = self.shift(entry, sequence, &mut device)?;
        if let Some(last) = device.pages.last_mut() {
            let within = rows % self.setup.page_size();
            if within > 0 {
                *last = self.private(*last, within);
            }
        }
        entry.tail = (device.pages.len()..needed).map(|_| self.take()).collect();
        let loads: Vec<_> = device
            .residency
            .iter_mut()
            .zip(&entry.blocks)
            .map(|(residency, blocks)| residency.assign(blocks))
            .collect();
        let mut slots: Vec<usize> = loads.iter().flatten().map(|load| load.slot).collect();
        slots.sort_unstable();
        slots.dedup();
        // Other layers have other blocks in the slot.
        let kept = if self.setup.config.per_layer { self.setup.page_size() } else { 0 };
        for slot in slots {
            let pages = &mut device.slots[slot];
            if pages.is_empty() {
                *pages = (0..self.setup.pages(self.setup.config.block)).map(|_| self.take()).collect();
            } else {
                pages.iter_mut().for_each(|page| *page = self.private(*page, kept));
            }
        }
        Ok((device, loads, rotated))
    }

    fn check_width(&self, entry: &Entry, sequence: &Sequence, rows: usize, pages: usize) -> Result<(), Error> {
        let blocks = entry.blocks[0].len();
        let kvlen = rows + blocks * self.setup.config.block + entry.n;
        let need = pages + blocks * self.setup.pages(self.setup.config.block);
        let end = sequence.n.checked_add(entry.n).filter(|&end| end as i64 - 1 <= MAX_POSITION);
        if end.is_none() {
            let (append, first) = (Some(entry.append), sequence.n as i64);
            return Err(Error::PositionOverflow { append, first, n: entry.n, max: MAX_POSITION });
        }
        match self.setup.spec.max_pages() {
            Some(max_pages) if need > max_pages => {
                let (append, page_size) = (entry.append, self.setup.page_size());
                Err(Error::TooManyPages { append, kvlen, page_size, need, max_pages })
            }
            _ => Ok(()),
        }
    }

    /// Moves the rows behind the blocks back, right behind the positions of blocks, if the new tokens would not be
    /// below `n_ctx` otherwise. Whether keys are rotated.
    fn shift(&mut self, entry: &Entry, sequence: &Sequence, device: &mut Device) -> Result<bool, Error> {
        let FarPositions::FarFixed { n_ctx } = self.setup.config.positions else { return Ok(false) };
        let first = sequence.next_position();
        if first + entry.n <= n_ctx {
            return Ok(false);
        }
        let config = &self.setup.config;
        let start = self.setup.rest_start(sequence.n);
        let back = (start - device.shift).saturating_sub(config.init + config.block);
        if first - back.min(first) + entry.n > n_ctx {
            let (append, max) = (Some(entry.append), n_ctx as i64 - 1);
            return Err(Error::PositionOverflow { append, first: (first - back.min(first)) as i64, n: entry.n, max });
        }
        device.shift += back;
        if self.setup.spec.key_form() == KeyForm::Raw || start >= sequence.n {
            return Ok(false);
        }
        // The oldest of the rows was moved by all of these, and will be rotated once more when its block forms.
        device.shifts.retain(|&tokens| tokens > start);
        device.shifts.push(sequence.n);
        let shifts = device.shifts.len() as u32 + 1;
        if let Some(limit) = self.setup.spec.shift_limit().filter(|&limit| shifts > limit) {
            return Err(Error::ShiftLimit { shifts, limit });
        }
        let page_size = self.setup.page_size();
        let mut left = sequence.n - start;
        for page in &mut device.pages[self.setup.pages(config.init)..] {
            let len = left.min(page_size);
            left -= len;
            *page = self.private(*page, len);
            self.rotations.push(Rotation { slot: *page as usize * page_size, len, delta: -(back as i64) });
        }
        Ok(true)
    }

    /// Takes a page. If there is none, it is only counted.
    fn take(&mut self) -> u32 {
        self.need += 1;
        let Some((page, source)) = self.pages.take(0) else { return u32::MAX };
        self.pages.share(page);
        self.undo.push(Undo::Take(page, source));
        page
    }

    /// A page that can be written, with its first rows: itself, or a copy if another table has it too.
    fn private(&mut self, page: u32, rows: usize) -> u32 {
        if page == u32::MAX || self.pages.refcount(page) < 2 {
            return page;
        }
        let copy = self.take();
        if copy != u32::MAX {
            self.pages.unshare(page);
            self.undo.push(Undo::Unshare(page));
            if rows > 0 {
                let slot = |page: u32| page as usize * self.setup.page_size();
                self.copies.push(RowCopy { src: slot(page), dst: slot(copy), len: rows });
            }
        }
        copy
    }
}

impl Device {
    /// The pages of all its tables.
    pub(crate) fn all_pages(&self) -> impl Iterator<Item = u32> {
        self.pages.iter().chain(self.slots.iter().flatten()).copied()
    }
}

/// The slots of pages, in order.
pub(crate) fn slots(pages: &[u32], page_size: usize) -> impl Iterator<Item = usize> {
    pages.iter().flat_map(move |&page| (0..page_size).map(move |i| page as usize * page_size + i))
}
