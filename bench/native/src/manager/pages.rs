//! What is done to single pages, which takes as long however many there are.

use kvcache_manager::{Append, Error, Manager, RowCopy, SeqId};

use crate::manager::case::{self, Case, Meter};
use crate::manager::setup::{NoBytes, paged, step, text};

/// Rows of a page.
const PAGE_SIZE: usize = 16;
/// Rows of the last page of the sequence that is forked.
const LAST_ROWS: usize = PAGE_SIZE / 2;
/// Sequences that copy a page before they write, in one step.
const WRITERS: usize = 16;
/// How often they do so before they are cut back.
const WRITES: usize = PAGE_SIZE - LAST_ROWS - 2;

/// Bytes that are read before each step that copies pages, so that what it needs is out of the second-level cache and
/// its addresses are not translated yet, whatever the number of pages.
const OTHERS: usize = 32 << 20;

/// Sequences of many pages.
pub(crate) struct Pages {
    pages: usize,
    manager: Manager,
    writers: Vec<SeqId>,
    others: Vec<u64>,
}

impl Pages {
    /// Sequences of `pages` pages, with room for another.
    ///
    /// # Errors
    /// If they are too large.
    pub(crate) fn new(pages: usize) -> Result<Self, String> {
        let rows = pages * PAGE_SIZE;
        let mut manager = Manager::new(paged((WRITERS + 2) * rows, PAGE_SIZE).build().map_err(text)?).map_err(text)?;
        let mut sequence = || {
            let seq = manager.create();
            step(&mut manager, &[Append::count(seq, rows - PAGE_SIZE + LAST_ROWS)])?;
            Ok::<_, String>(seq)
        };
        let writers = (0..WRITERS).map(|_| sequence()).collect::<Result<_, _>>()?;
        Ok(Self { pages, manager, writers, others: vec![1; OTHERS / 8] })
    }

    /// A sequence takes new pages, and is freed.
    fn take(&mut self, meter: &mut Meter) -> Result<(), String> {
        let seq = self.manager.create();
        let append = [Append::count(seq, self.pages * PAGE_SIZE)];
        meter.run(self.pages, || step(&mut self.manager, &append))?;
        self.manager.free(seq).map_err(text)
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
        let (_, copies) = self.copy_on_write()?;
        let lens = (0..WRITES).flat_map(|i| [LAST_ROWS + 1 + i; WRITERS]);
        if !copies.iter().map(|copy| copy.len).eq(lens) {
            return Err(format!("sequences that are forked have made the copies {copies:?}"));
        }
        self.take(&mut Meter::default())?;
        if self.manager.stats().free != free {
            return Err(format!("{} slots are free, {free} were", self.manager.stats().free));
        }
        self.manager.check().map_err(text)
    }

    fn measure(&mut self, contender: &str) -> Result<Meter, String> {
        match contender {
            "page taken" => {
                let mut meter = Meter::default();
                self.take(&mut meter)?;
                Ok(meter)
            }
            "copy on write" => Ok(self.copy_on_write()?.0),
            _ => case::unknown(contender),
        }
    }
}
