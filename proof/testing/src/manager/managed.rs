//! A manager with the memory of its cache, for tests that say themselves what is expected.

use std::sync::Arc;

use kvcache_manager::{Append, BlockStore, CacheSettings, Manager, SeqId, Step};

use crate::manager::memory::Memory;

#[derive(Debug, Clone, PartialEq)]
pub struct Managed {
    pub manager: Manager,
    pub memory: Memory,
}

impl Managed {
    pub fn new(settings: CacheSettings) -> Self {
        let spec = settings.check().unwrap();
        Self { memory: Memory::new(&spec), manager: Manager::new(spec).unwrap() }
    }

    pub fn with_store(settings: CacheSettings, store: Arc<dyn BlockStore>) -> Self {
        let spec = settings.check().unwrap();
        Self { memory: Memory::new(&spec), manager: Manager::with_store(spec, store).unwrap() }
    }

    pub fn step(&mut self, appends: &[Append<'_>]) -> Step<'_> {
        self.manager.begin_step(appends).unwrap().apply(&mut self.memory).unwrap()
    }

    /// Commits a step; returns how many tokens of each entry were found.
    pub fn append(&mut self, appends: &[Append<'_>]) -> Vec<usize> {
        let step = self.step(appends);
        let cached = step.cached().iter().map(|&cached| cached as usize).collect();
        step.commit();
        self.manager.check().unwrap();
        cached
    }

    /// Appends that many rows to each sequence.
    pub fn grow(&mut self, seqs: &[SeqId], n: usize) {
        self.append(&seqs.iter().map(|&seq| Append::count(seq, n)).collect::<Vec<_>>());
    }

    /// A new sequence of that many rows.
    pub fn sequence(&mut self, n: usize) -> SeqId {
        let seq = self.manager.create();
        self.grow(&[seq], n);
        seq
    }

    pub fn update(&mut self) {
        self.manager.update(&mut self.memory).unwrap();
        self.manager.check().unwrap();
    }

    pub fn slots(&self, seq: SeqId) -> Vec<usize> {
        self.manager.slots(seq).unwrap().collect()
    }

    /// The positions and rows of a sequence.
    pub fn contents(&self, seq: SeqId) -> (Vec<i64>, Vec<u8>) {
        (self.manager.positions(seq).unwrap().collect(), self.memory.read(&self.slots(seq)))
    }

    /// The rows that have been copied.
    pub fn copied(&self) -> usize {
        self.memory.log.copies.iter().map(|copy| copy.len).sum()
    }

    /// The next call of the memory fails.
    pub fn fail(&mut self) {
        self.memory.faults.fails_at = Some(self.memory.calls.get());
    }
}
