//! What is done to whole sequences and single pages: all of it takes time in proportion to pages, or none at all.

use kvcache_manager::{Append, Error, Manager, RowCopy, SeqId};

use crate::manager::case::{self, Case};
use crate::manager::meter::Meter;
use crate::manager::setup::{NoBytes, paged, step, text};

/// Rows of a page.
const PAGE_SIZE: usize = 16;
/// Rows of the last page of the sequence that is forked.
const LAST_ROWS: usize = PAGE_SIZE / 2;
/// Forks that are made or freed in one go.
const FORKS: usize = 64;
/// Sequences that copy a page before they write, in one step.
const WRITERS: usize = 16;
/// How often they do so before they are cut back.
const WRITES: usize = PAGE_SIZE - LAST_ROWS - 2;
/// Sequences without forks that are freed in one go.
const OWNERS: usize = 4;

/// Bytes that are read before each step that copies pages, so that what it needs is out of the second-level cache and
/// its addresses are not translated yet, whatever the number of pages.
const OTHERS: usize = 32 << 20;

/// A sequence of many pages, its forks, and other sequences of as many.
pub(crate) struct Pages {
    pages: usize,
    manager: Manager,
    parent: SeqId,
    /// Sequences of as many pages.
    writers: Vec<SeqId>,
    /// A cache of as many pages, all of them cached: whoever takes one evicts another.
    full: Manager,
    token: u32,
    others: Vec<u64>,
}

impl Pages {
    /// A sequence of `pages` pages, with room for what is done to it.
    ///
    /// # Errors
    /// If it is too large.
    pub(crate) fn new(pages: usize) -> Result<Self, String> {
        let rows = pages * PAGE_SIZE;
        let spec = paged((OWNERS + WRITERS + 2) * rows, PAGE_SIZE).build().map_err(text)?;
        let mut manager = Manager::new(spec).map_err(text)?;
        let mut sequence = || {
            let seq = manager.create();
            step(&mut manager, &[Append::count(seq, rows - PAGE_SIZE + LAST_ROWS)])?;
            Ok::<_, String>(seq)
        };
        let parent = sequence()?;
        let writers = (0..WRITERS).map(|_| sequence()).collect::<Result<_, _>>()?;
        let full = Manager::new(paged(rows, PAGE_SIZE).build().map_err(text)?).map_err(text)?;
        let mut pages = Self { pages, manager, parent, writers, full, token: 0, others: vec![1; OTHERS / 8] };
        pages.evict()?;
        Ok(pages)
    }

    fn forks(&mut self) -> Result<Vec<SeqId>, String> {
        (0..FORKS).map(|_| self.manager.fork(self.parent).map_err(text)).collect()
    }

    fn free(&mut self, seqs: &[SeqId]) -> Result<(), String> {
        seqs.iter().try_for_each(|&seq| self.manager.free(seq).map_err(text))
    }

    /// A sequence of new pages.
    fn take(&mut self, meter: &mut Meter) -> Result<SeqId, String> {
        let seq = self.manager.create();
        let append = [Append::count(seq, self.pages * PAGE_SIZE)];
        meter.run(self.pages, || step(&mut self.manager, &append))?;
        Ok(seq)
    }

    /// A prompt that nobody has had before takes all pages of the full cache, and leaves them cached.
    fn evict(&mut self) -> Result<Meter, String> {
        self.token += 1;
        let seq = self.full.create();
        let tokens = vec![self.token; self.pages * PAGE_SIZE];
        let mut meter = Meter::default();
        meter.run(self.pages, || step(&mut self.full, &[Append::tokens(seq, &tokens)]))?;
        self.full.free(seq).map_err(text)?;
        Ok(meter)
    }

    /// Sequences that append a row each, step after step, and are forked before each step: so each of them copies its
    /// last page. Gives the copies, too.
    fn copy_on_write(&mut self) -> Result<(Meter, Vec<RowCopy>), String> {
        let Self { manager, writers, others, .. } = self;
        let appends: Vec<_> = writers.iter().map(|&writer| Append::count(writer, 1)).collect();
        step(manager, &appends)?;
        let (mut meter, mut memory) = (Meter::default(), NoBytes(Vec::with_capacity(WRITERS * WRITES)));
        for _ in 0..WRITES {
            let forks = writers.iter().map(|&writer| manager.fork(writer)).collect::<Result<Vec<_>, _>>();
            std::hint::black_box(others.iter().sum::<u64>());
            let stepped = meter.run(WRITERS, || {
                manager.begin_step(&appends)?.apply(&mut memory)?.commit();
                Ok::<_, Error>(())
            });
            stepped.map_err(text)?;
            forks.map_err(text)?.into_iter().try_for_each(|fork| manager.free(fork)).map_err(text)?;
        }
        let len = self.pages * PAGE_SIZE - PAGE_SIZE + LAST_ROWS;
        self.writers.iter().try_for_each(|&writer| manager.seq_rm(writer, len as i64..).map(|_| ())).map_err(text)?;
        Ok((meter, memory.0))
    }
}

impl Case for Pages {
    fn check(&mut self) -> Result<(), String> {
        let free = self.manager.stats().free;
        let forks = self.forks()?;
        let slots = |seq| Ok::<_, String>(self.manager.slots(seq).map_err(text)?.collect::<Vec<_>>());
        let parents = slots(self.parent)?;
        for &fork in &forks {
            if slots(fork)? != parents {
                return Err("a fork has other slots than its parent".into());
            }
        }
        self.free(&forks)?;
        let (_, copies) = self.copy_on_write()?;
        let lens = (0..WRITES).flat_map(|i| [LAST_ROWS + 1 + i; WRITERS]);
        if !copies.iter().map(|copy| copy.len).eq(lens) {
            return Err(format!("sequences that are forked have made the copies {copies:?}"));
        }
        for _ in 0..2 {
            let taken = self.take(&mut Meter::default())?;
            self.free(&[taken])?;
            self.evict()?;
            let stats = self.full.stats();
            if stats.cached != stats.slots {
                return Err(format!("{} of {} slots are cached", stats.cached, stats.slots));
            }
        }
        if self.manager.stats().free != free {
            return Err(format!("{} slots are free, {free} were", self.manager.stats().free));
        }
        self.manager.check().and_then(|()| self.full.check()).map_err(text)
    }

    fn measure(&mut self, contender: &str) -> Result<Meter, String> {
        let mut meter = Meter::default();
        match contender {
            "fork" => {
                let forks = meter.run(FORKS, || self.forks())?;
                self.free(&forks)?;
            }
            "free a fork" => {
                let forks = self.forks()?;
                meter.run(FORKS, || self.free(&forks))?;
            }
            "free the last owner" => {
                let owners = (0..OWNERS).map(|_| self.take(&mut Meter::default())).collect::<Result<Vec<_>, _>>()?;
                meter.run(OWNERS, || self.free(&owners))?;
            }
            "page taken" => {
                let taken = self.take(&mut meter)?;
                self.free(&[taken])?;
            }
            "page evicted" => meter = self.evict()?,
            "copy on write" => meter = self.copy_on_write()?.0,
            _ => return case::unknown(contender),
        }
        Ok(meter)
    }
}
