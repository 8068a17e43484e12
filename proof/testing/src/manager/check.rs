//! The comparison of the manager with the model after every operation, and what a refusal or a memory that fails
//! leaves behind.

use std::collections::{BTreeMap, HashSet};

use kvcache_manager::{Append, ContextShift, Error, MAX_POSITION, Manager, Mode, SeqId};

use crate::manager::memory::Memory;
use crate::manager::run::Run;
use crate::manager::script::{End, Operation};

impl Run {
    /// All that must be equal after an operation.
    pub fn check(&mut self) {
        self.manager.check().unwrap();
        self.check_metadata();
        self.check_stats();
        self.check_tags();
    }

    fn check_metadata(&self) {
        let manager = &self.manager;
        for (seq, sequence) in self.model.seqs.iter().enumerate() {
            let id = self.ids[seq];
            let positions: Vec<i64> = manager.positions(id).unwrap().collect();
            assert!(positions.iter().eq(sequence.rows.iter().map(|row| &row.pos)), "positions of sequence {seq}");
            assert_eq!(manager.seq_len(id).unwrap(), sequence.rows.len());
            assert_eq!(manager.pos_min(id).unwrap(), sequence.rows.first().map(|row| row.pos));
            assert_eq!(manager.pos_max(id).unwrap(), sequence.rows.last().map(|row| row.pos));
            let pending: Vec<i64> = manager.pending(id).unwrap().collect();
            let expected: Vec<i64> = sequence.rows.iter().map(|row| row.pos - row.rot).collect();
            assert_eq!(pending, expected, "pending deltas of sequence {seq}");
        }
    }

    fn check_stats(&self) {
        let (stats, page_size) = (self.manager.stats(), self.cache.page_size());
        let mut owners = BTreeMap::new();
        for seq in 0..self.ids.len() {
            let slots = self.slots(seq).split_off(self.model.seqs[seq].passed);
            assert!(slots.iter().all(|&slot| slot >= self.cache.null_slots()), "the null page has a row");
            let distinct: HashSet<_> = slots.iter().collect();
            assert_eq!(distinct.len(), slots.len(), "rows of sequence {seq} share a slot");
            match self.cache.mode {
                Mode::Runs => assert!(slots.windows(2).all(|pair| pair[0] + 1 == pair[1]), "a run has a hole"),
                _ => assert!((0..).zip(&slots).all(|(row, slot)| slot % page_size == row % page_size)),
            }
            for slot in slots.into_iter().step_by(page_size) {
                assert!(slot + page_size <= self.cache.max_t);
                *owners.entry(slot).or_insert(0) += 1;
            }
        }
        let shared = owners.values().filter(|&&owners| owners > 1).count() * page_size;
        let used = owners.len() * page_size;
        assert_eq!(stats.shared, shared);
        if self.cache.mode == Mode::Runs {
            assert!(stats.used >= used && shared == 0);
        } else {
            assert_eq!(stats.used, used);
        }
        assert_eq!(stats.used + stats.free + stats.cached, stats.slots);
        assert_eq!(stats.slots, self.cache.max_t / page_size * page_size - self.cache.null_slots());
        assert!(stats.largest_free_run <= stats.free);
        assert_eq!(stats.sequences, self.ids.len() + self.swapped.len());
        assert_eq!(stats.swapped, self.swapped.len());
        if self.cache.mode == Mode::Cells {
            let end = owners.keys().last().map_or(0, |last| last + 1);
            let n_kv = end.next_multiple_of(self.cache.pad).max(self.cache.pad).min(self.cache.max_t);
            assert_eq!(stats.n_kv, n_kv);
            assert_eq!(stats.fragmentation, if n_kv < 128 { 0.0 } else { 1.0 - used as f64 / n_kv as f64 });
            assert_eq!(stats.largest_free_run, self.largest_hole());
        }
    }

    /// The tags of all rows, once what is queued has been done; by a copy, so that the queue grows.
    fn check_tags(&mut self) {
        let (mut manager, mut memory) = (self.manager.clone(), self.fresh_memory());
        manager.update(&mut memory).unwrap();
        let mut model = self.model.clone();
        model.drain();
        for (seq, sequence) in model.seqs.iter().enumerate() {
            let slots: Vec<usize> = manager.slots(self.ids[seq]).unwrap().collect();
            assert_eq!(slots, self.slots(seq), "an update has changed slots");
            let expected: Vec<_> = sequence.kept().iter().map(|row| row.tag).collect();
            assert_eq!(memory.tags(&slots[sequence.passed..]), expected, "rows of sequence {seq}");
            assert!(manager.pending(self.ids[seq]).unwrap().all(|pending| pending == 0));
        }
        if memory.calls.get() == 0 && memory.spilled.get() == 0 && !self.cache.prefix_sharing {
            // Nothing is waiting to be copied from slots that no row is in, and no page is cached.
            let live = self.live();
            let free: Vec<usize> = (0..self.cache.max_t).filter(|slot| !live.contains(slot)).collect();
            self.memory.write_nan(&free);
        }
    }
}

/// What decides where the head of the cells is after an operation.
pub struct HeadInputs {
    live: HashSet<usize>,
    head: usize,
    ids: usize,
}

impl Run {
    pub fn before(&self) -> HeadInputs {
        HeadInputs { live: self.live(), head: self.manager.stats().head, ids: self.ids.len() }
    }

    /// Compares the head of the cells with the specification's, where it says what it is.
    pub fn check_head(&self, operation: &Operation, before: &HeadInputs) {
        if self.cache.mode != Mode::Cells || before.ids == 0 {
            return;
        }
        let (live, head) = (self.live(), self.manager.stats().head);
        let freed = before.live.difference(&live).min().copied();
        let lowered = freed.map_or(before.head, |freed| freed.min(before.head));
        let expected = match operation {
            Operation::Create { .. } | Operation::Update | Operation::Stale(_) | Operation::Compact(_) => before.head,
            Operation::Free(_) | Operation::Keep(_) | Operation::Rm(..) | Operation::Cut(..) => lowered,
            // Where a load finds cells is not said.
            Operation::Copy(..) | Operation::Reload(..) => return,
            // Those that are lost are freed.
            Operation::FailUpdate(_) | Operation::Step(_, End::Fail(_)) if !self.done => lowered,
            _ if !self.done => before.head,
            Operation::FailUpdate(_) => before.head,
            Operation::Fork(_) if self.model.seqs.last().is_some_and(|fork| !fork.rows.is_empty()) => 0,
            Operation::Add(_, _, delta) if *delta != 0 => freed.unwrap_or(0),
            Operation::Defrag(None) => live.len() % self.cache.max_t,
            Operation::Step(rows, _) if !rows.is_empty() && self.cache.defrag_threshold.is_none() => {
                // The window may have taken rows that the step has written.
                let written = self.written.clone();
                let end = written.iter().max().map_or(before.head, |last| (last + 1) % self.cache.max_t);
                let freed = before.live.iter().chain(&written).filter(|cell| !live.contains(cell)).min();
                freed.map_or(end, |&freed| freed.min(end))
            }
            // Not said.
            _ => return,
        };
        assert_eq!(head, expected, "the head after {operation:?}, which was {}", before.head);
    }
}

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

    /// After an update that failed: exactly the sequences with a row in an overwritten slot are lost, and are freed
    /// then.
    pub fn lose(&mut self) {
        let overwritten: HashSet<usize> = self.memory.log.overwritten.iter().copied().collect();
        self.memory = self.fresh_memory();
        // What was to be stored after the copy that failed is not.
        (self.all_sealed, self.may_miss) = (false, true);
        for seq in (0..self.ids.len()).rev() {
            let (id, touched) = (self.ids[seq], self.slots(seq).iter().any(|slot| overwritten.contains(slot)));
            let error = self.manager.clone().seq_rm(id, 0..0).err();
            let lost = error.is_some_and(|error| error.kind() == "lost");
            // With a store the copies come in several calls: after one that fails, later ones are not made.
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
        refuses_changes(&mut self.manager, id, kind);
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

/// Every change of a sequence, and every copy, is refused with this kind and changes nothing.
fn refuses_changes(manager: &mut Manager, id: SeqId, kind: &str) {
    let before = manager.clone();
    let errors = [
        manager.fork(id).err(),
        manager.seq_keep(id).err(),
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
    assert!(*manager == before);
}

/// All changes but the step's end are refused while it is open.
pub fn refuses_all_else(manager: &mut Manager, ids: &[SeqId], memory: &mut Memory) {
    let (id, calls, before) = (ids[0], memory.calls.clone(), manager.clone());
    refuses_changes(manager, id, "step_open");
    let errors = [
        manager.free(id).err(),
        manager.seq_rm(None, ..).err(),
        manager.defrag(None).err(),
        manager.compact(1).err(),
        manager.update(memory).err(),
        manager.load_seq("nowhere", memory, 0).err(),
        manager.save("nowhere", memory).err(),
        manager.save_seq("nowhere", memory, id).err(),
    ];
    assert!(errors.iter().all(|error| error.as_ref().is_some_and(|error| error.kind() == "step_open")), "{errors:?}");
    assert!(*manager == before && memory.calls == calls);
}
