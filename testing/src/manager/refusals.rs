//! Refusals, and memory that fails: what each leaves behind.

use std::collections::HashSet;

use kvcache_manager::{Append, ContextShift, Error, MAX_POSITION, Manager, SeqId};

use crate::manager::memory::Memory;
use crate::manager::run::Run;

impl Run {
    /// A refusal of an operation that needs no more than `most` slots.
    pub fn refused_for_room(&mut self, error: &Error, before: &Manager, most: usize) {
        (self.no_room, self.done) = (self.no_room + 1, false);
        assert!(self.manager == *before, "{error} has changed the manager");
        let stats = before.stats();
        match *error {
            Error::OutOfPages { need, free } => {
                let page_size = self.cache.page_size();
                assert!(need > free && free <= (stats.free + stats.cached) / page_size, "{error}");
                assert!(most > stats.free + stats.cached, "there was room for {most}: {error}");
            }
            Error::NoSlot { need, largest, free } => {
                assert!(need > largest && largest <= free && need <= most, "{error}, expected at most {most}");
                // Earlier appends of the same step may have taken some.
                assert!(largest <= stats.largest_free_run && free <= stats.free, "{error}");
            }
            _ => panic!("not for want of room: {error}"),
        }
    }

    pub fn fail_update(&mut self, call: usize) {
        if call >= self.calls_of_update() {
            return self.update();
        }
        self.memory = self.fresh_memory();
        (self.memory.faults.fails_at, self.done) = (Some(call), false);
        let error = self.manager.update(&mut self.memory).unwrap_err();
        assert_eq!(error.kind(), "memory");
        self.lose();
    }

    /// After an update that failed: exactly the sequences with a row in an overwritten slot are lost, and are freed then.
    pub fn lose(&mut self) {
        let overwritten: HashSet<usize> = self.memory.log.overwritten.iter().copied().collect();
        self.memory = self.fresh_memory();
        // What was to be stored behind the copy that failed is not.
        (self.all_sealed, self.may_miss) = (false, true);
        for seq in (0..self.ids.len()).rev() {
            let (id, touched) = (self.ids[seq], self.slots(seq).iter().any(|slot| overwritten.contains(slot)));
            let error = self.manager.clone().seq_rm(id, 0..0).err();
            let lost = error.is_some_and(|error| error.kind() == "lost");
            // With a store the copies come in several calls: where one fails, those of later ones are not made.
            let expected = touched || lost && self.has_store;
            assert_eq!(lost, expected, "sequence {seq} is lost where a row of it was overwritten");
            if lost {
                self.only_free(id, "lost");
                self.free(seq);
            }
        }
    }

    /// A sequence can be neither changed nor copied.
    pub fn only_free(&mut self, id: SeqId, kind: &str) {
        let before = self.manager.clone();
        let manager = &mut self.manager;
        let errors = [
            manager.clone().fork(id).err(),
            manager.clone().seq_keep(id).err(),
            manager.seq_rm(id, ..).err(),
            manager.seq_cp(id, SeqId::default(), ..).err(),
            manager.seq_add(id, .., 1).err(),
            manager.seq_div(id, .., 2).err(),
            manager.context_shift(id, &ContextShift { n_ctx: 1, n_new: 1, n_keep: 0, n_discard: None }).err(),
            manager.begin_step(&[Append::count(id, 1)]).err(),
        ];
        for (i, error) in errors.iter().enumerate() {
            assert_eq!(error.as_ref().map(Error::kind), Some(kind), "operation {i}");
        }
        assert!(self.manager == before);
    }

    pub fn stale(&mut self, seq: usize) {
        if self.freed.is_empty() {
            return;
        }
        let (id, before) = (self.freed[seq % self.freed.len()], self.manager.clone());
        self.only_free(id, "unknown_seq");
        let manager = &self.manager;
        let errors = [
            manager.seq_len(id).err(),
            manager.pos_min(id).err(),
            manager.pos_max(id).err(),
            manager.positions(id).err(),
            manager.slots(id).err(),
            manager.pending(id).err(),
        ];
        assert!(errors.iter().all(|error| error.as_ref().is_some_and(|error| error.kind() == "unknown_seq")));
        assert_eq!(self.manager.free(id).unwrap_err().kind(), "unknown_seq");
        let mut appends: Vec<_> = self.ids.iter().map(|&id| Append::count(id, 1)).collect();
        appends.push(Append::count(id, 1));
        let is_legal = self.model.seqs.iter().all(|sequence| sequence.next() <= MAX_POSITION);
        if self.cache.max_pages.is_none() && is_legal {
            assert_eq!(self.manager.begin_step(&appends).unwrap_err().kind(), "unknown_seq");
        }
        assert!(self.manager == before);
    }
}

/// All changes but the step's end are refused while it is open.
pub fn refuses_all_else(manager: &mut Manager, ids: &[SeqId], memory: &mut Memory) {
    let (id, calls) = (ids[0], memory.calls.clone());
    let before = manager.clone();
    let shift = ContextShift { n_ctx: 1, n_new: 1, n_keep: 0, n_discard: None };
    let errors = [
        manager.free(id).err(),
        manager.fork(id).err(),
        manager.seq_keep(id).err(),
        manager.seq_rm(id, ..).err(),
        manager.seq_rm(None, ..).err(),
        manager.seq_cp(id, id, ..).err(),
        manager.seq_add(id, .., 1).err(),
        manager.seq_div(id, .., 2).err(),
        manager.context_shift(id, &shift).err(),
        manager.defrag(None).err(),
        manager.compact(1).err(),
        manager.update(memory).err(),
        manager.begin_step(&[]).err(),
    ];
    for (i, error) in errors.iter().enumerate() {
        assert_eq!(error.as_ref().map(Error::kind), Some("step_open"), "operation {i}");
    }
    assert!(*manager == before && memory.calls == calls);
}
