//! Sequences that are saved, and loaded into the same cache or into another one; and sequences that leave the cache for
//! a store and come back.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use kvcache_manager::{Error, Manager, Mode};
use tempfile::TempDir;

use crate::manager::cache::Cache;
use crate::manager::memory::{Faults, Memory};
use crate::manager::model::{Model, Sequence};
use crate::manager::run::Run;
use crate::manager::script::LoadFault;
use crate::manager::store::Store;

fn faults(fault: LoadFault) -> Faults {
    fault.map_or_else(Faults::default, |(call, panics)| Faults { fails_at: Some(call), panics })
}

/// What a load gives, or its error: none where the memory has panicked.
fn load<T>(load: impl FnOnce() -> Result<T, Error>) -> Result<T, Option<Error>> {
    catch_unwind(AssertUnwindSafe(load)).map_or(Err(None), |loaded| loaded.map_err(Some))
}

fn is_of_memory(error: Option<&Error>) -> bool {
    error.is_none_or(|error| error.kind() == "memory")
}

impl Run {
    /// Saving is refused while something is queued; nothing is written then.
    fn drained(&mut self, directory: &TempDir) {
        if self.calls_of_update() > 0 {
            let (path, before) = (directory.path().join("pending"), self.manager.clone());
            let expected = if self.swapped.is_empty() { "update_pending" } else { "swapped" };
            assert_eq!(self.manager.save(&path, &self.memory).unwrap_err().kind(), expected);
            assert!(!path.exists() && self.manager == before);
            self.update();
        }
    }

    /// Whether a session cannot have all sequences, as a window has freed pages of their rows; saving is refused then.
    fn has_passed_rows(&mut self) -> bool {
        let has_passed = self.model.seqs.iter().any(|sequence| sequence.passed > 0);
        if has_passed {
            let expected = if self.swapped.is_empty() { "passed_rows" } else { "swapped" };
            assert_eq!(self.manager.save("nowhere", &self.memory).unwrap_err().kind(), expected);
        }
        has_passed
    }

    pub fn reload(&mut self, mode: Mode, fault: LoadFault) {
        if self.has_passed_rows() {
            return;
        }
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("session");
        self.drained(&directory);
        self.memory = self.fresh_memory();
        self.memory.faults = faults(fault);
        let before = self.manager.clone();
        if let Err(error) = self.manager.save(&path, &self.memory) {
            assert!(error.kind() == "memory" && fault.is_some() && !path.exists(), "{error}");
        }
        self.memory = self.fresh_memory();
        self.manager.save(&path, &self.memory).unwrap();
        assert!(self.manager == before);

        let page_size = if let Mode::Paged { page_size } = mode { page_size } else { 1 };
        let rows =
            self.model.seqs.iter().map(|sequence| sequence.rows.len().next_multiple_of(page_size)).sum::<usize>();
        let prefix_sharing = matches!(mode, Mode::Paged { .. });
        let max_t = rows.max(page_size);
        let larger = Cache { mode, max_t, max_pages: None, prefix_sharing, keep_rows: false, ..self.cache.clone() };
        if rows > page_size {
            // One page is missing, unless sequences share some.
            let smaller = Cache { max_t: rows - 1, ..larger.clone() };
            let mut manager = Manager::new(smaller.spec()).unwrap();
            let mut memory = Memory::of_tags(manager.spec());
            if let Err(error) = manager.load(&path, &mut memory) {
                assert!(["no_slot", "no_room"].contains(&error.kind()), "{error}");
                assert!(manager == Manager::new(smaller.spec()).unwrap() && memory == Memory::of_tags(manager.spec()));
            }
        }
        let mut manager = Manager::new(larger.spec()).unwrap();
        let mut memory = Memory::of_tags(manager.spec());
        memory.faults = faults(fault);
        let mut loaded = load(|| manager.load(&path, &mut memory));
        if let Err(error) = &loaded {
            assert!(is_of_memory(error.as_ref()) && fault.is_some(), "{error:?}");
            assert!(manager == Manager::new(larger.spec()).unwrap(), "a load that failed has changed the manager");
            memory = Memory::of_tags(manager.spec());
            loaded = load(|| manager.load(&path, &mut memory));
        }
        let ids = loaded.unwrap();
        (memory.faults, memory.calls) = Default::default();
        let seqs = self.model.seqs.iter().map(Model::saved).collect();
        let model = Model { seqs, ..Run::new(&larger).model };
        assert_eq!(ids.len(), model.seqs.len());
        assert_eq!(memory.log.rotations, []);
        let next_row = self.next_row;
        *self = Self { cache: larger, manager, memory, model, ids, next_row, ..Run::new(&self.cache) };
    }

    pub fn copy(&mut self, seq: usize, delta: i64, fault: LoadFault) {
        if self.has_passed_rows() {
            return;
        }
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("session");
        self.drained(&directory);
        // Among all others, whose rows it may share, or alone.
        let index = if self.has_store { 0 } else { seq };
        let saved = match index {
            0 => self.manager.save_seq(&path, &self.memory, self.ids[seq]),
            _ => self.manager.save(&path, &self.memory),
        };
        saved.unwrap();
        let saved = Model::saved(&self.model.seqs[seq]);
        // Loading does what is queued.
        self.add(seq, 0, -1, delta);
        let (before, rows) = (self.manager.clone(), saved.rows.len());
        let stats = before.stats();
        let (mut drained, mut drained_memory) = (before.clone(), self.fresh_memory());
        drained.update(&mut drained_memory).unwrap();
        let calls_of_update = drained_memory.calls.get();
        self.memory = self.fresh_memory();
        self.memory.faults = faults(fault);
        self.all_sealed &= rows < stats.free;
        match load(|| self.manager.load_seq(&path, &mut self.memory, index)) {
            Ok(id) => {
                self.model.drain();
                self.model.seqs.push(saved);
                self.ids.push(id);
                self.memory = self.fresh_memory();
            }
            Err(error) if is_of_memory(error.as_ref()) => {
                let (call, _) = fault.unwrap();
                if call < calls_of_update {
                    return self.lose();
                }
                self.memory = self.fresh_memory();
                self.model.drain();
                self.all_sealed = false;
                for seq in 0..self.ids.len() {
                    assert_eq!(
                        self.rows(seq, &self.memory),
                        self.rows(seq, &drained_memory),
                        "a row of sequence {seq}"
                    );
                }
                let exact = self.cache.page_size() + rows < stats.free;
                assert!(!exact || self.manager == drained, "a load that failed has changed the manager");
            }
            Err(Some(error)) => {
                self.memory = self.fresh_memory();
                assert!(["no_slot", "no_room"].contains(&error.kind()), "{error}");
                let room = if self.cache.paged() { stats.free + stats.cached } else { stats.largest_free_run };
                assert!(rows.next_multiple_of(self.cache.page_size()) > room, "there was room for {rows}: {error}");
                assert!(self.manager == before, "a refused load has changed the manager");
            }
            Err(None) => unreachable!("a panic is the memory's"),
        }
    }
}

impl Run {
    pub fn with_store(cache: &Cache, store: Arc<Store>) -> Self {
        let may_miss = store.is_faulty();
        let manager = Manager::with_store(cache.spec(), store).unwrap();
        Self { manager, may_miss, has_store: true, ..Self::new(cache) }
    }

    pub fn swap_out(&mut self, seq: usize) {
        let id = self.ids[seq];
        if !self.has_store {
            return assert_eq!(self.manager.swap_out(id).unwrap_err().kind(), "no_tiers");
        }
        match self.manager.swap_out(id) {
            Err(Error::TiersFull { .. }) if self.may_miss => return,
            swapped => swapped.unwrap(),
        }
        self.only_free(id, "swapped");
        assert_eq!(self.manager.swap_out(id).unwrap_err().kind(), "swapped");
        assert_eq!(self.manager.slots(id).unwrap().count(), 0);
        self.manager.prefetch(&[id]).unwrap();
        self.ids.remove(seq);
        self.swapped.push((id, self.model.seqs.remove(seq)));
    }

    pub fn swap_in(&mut self, which: usize) {
        if self.swapped.is_empty() {
            return;
        }
        let (id, sequence) = self.swapped.remove(which % self.swapped.len());
        assert_eq!(self.manager.seq_len(id).unwrap(), sequence.rows.len());
        assert!(self.manager.positions(id).unwrap().eq(sequence.rows.iter().map(|row| row.pos)));
        let before = self.manager.clone();
        let mut drained = before.clone();
        drained.update(&mut self.fresh_memory()).unwrap();
        self.memory = self.fresh_memory();
        let swapped_in = self.manager.swap_in(id, &mut self.memory);
        if swapped_in.is_ok() || self.manager != before {
            self.model.drain();
        }
        match swapped_in {
            Ok(rows) => {
                assert!(rows <= sequence.rows.len());
                assert_eq!(self.manager.swap_in(id, &mut self.memory).unwrap(), 0, "it is in the cache");
                self.ids.push(id);
                self.model.seqs.push(sequence);
                // A page that another one replaces in the index is not sealed again.
                self.all_sealed = false;
            }
            Err(Error::RowsMissing { missing, rows, .. }) => {
                assert!(self.may_miss, "a store without faults has lost {missing} of {rows} rows");
                assert!(missing > 0 && rows == sequence.kept().len());
                // Rows that were not stored yet have been stored.
                let is_unchanged = self.manager == before || self.manager == drained;
                assert!(is_unchanged, "a sequence that was not swapped in has changed the manager");
                self.manager.free(id).unwrap();
                self.freed.push(id);
            }
            Err(error) => {
                self.refused_for_room(&error, &before, sequence.rows.len() + self.cache.page_size());
                self.swapped.push((id, sequence));
            }
        }
        self.memory = self.fresh_memory();
    }

    /// What is swapped out when all others are emptied.
    pub fn empty_swapped(&mut self) {
        for (id, Sequence { salt, .. }) in self.swapped.drain(..) {
            self.ids.push(id);
            self.model.seqs.push(Sequence { salt, ..Sequence::default() });
        }
    }
}
