//! Sequences that are saved, and loaded into the same cache or into another.

use kvcache_manager::schema::CacheLayout;
use kvcache_manager::{Manager, Mode};
use tempfile::TempDir;

use crate::manager::memory::Memory;
use crate::manager::run::{Run, operator};
use crate::manager::script::{Cache, LoadFault};
use crate::manager::sequences::Model;

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

    pub fn reload(&mut self, mode: Mode, layout: CacheLayout, fault: LoadFault) {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("session");
        self.drained(&directory);
        self.memory = self.fresh_memory();
        self.memory.faults.fails_at = fault;
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
        let larger =
            Cache { mode, layout, max_t: rows.max(page_size), max_pages: None, prefix_sharing, ..self.cache.clone() };
        if rows > page_size {
            // One page is missing, unless sequences share some.
            let smaller = Cache { max_t: rows - 1, ..larger.clone() };
            let mut manager = Manager::new(smaller.spec()).unwrap();
            let mut memory = Memory::new(manager.spec());
            if let Err(error) = manager.load(&path, &mut memory) {
                assert!(["no_slot", "no_room"].contains(&error.kind()), "{error}");
                assert!(manager == Manager::new(smaller.spec()).unwrap() && memory == Memory::new(manager.spec()));
            }
        }
        let mut manager = Manager::new(larger.spec()).unwrap();
        let mut memory = Memory::new(manager.spec());
        memory.faults.fails_at = fault;
        let mut loaded = manager.load(&path, &mut memory);
        if let Err(error) = &loaded {
            assert!(error.kind() == "memory" && fault.is_some(), "{error}");
            assert!(manager == Manager::new(larger.spec()).unwrap(), "a load that failed has changed the manager");
            memory = Memory::new(manager.spec());
            loaded = manager.load(&path, &mut memory);
        }
        let ids = loaded.unwrap();
        (memory.faults, memory.calls) = Default::default();
        let seqs = self.model.seqs.iter().map(Model::saved).collect();
        let model = Model { seqs, ..Run::new(&larger).model };
        assert_eq!(ids.len(), model.seqs.len());
        assert_eq!(memory.log.rotations, []);
        let op = operator(manager.spec());
        *self = Self { cache: larger, manager, memory, op, model, ids, tags: self.tags, ..Run::new(&self.cache) };
    }

    pub fn copy(&mut self, seq: usize, delta: i64, fault: LoadFault) {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("session");
        self.drained(&directory);
        self.manager.save_seq(&path, &self.memory, self.ids[seq]).unwrap();
        let saved = Model::saved(&self.model.seqs[seq]);
        // Loading does what is queued.
        self.add(seq, 0, -1, delta);
        let (before, rows) = (self.manager.clone(), saved.rows.len());
        let stats = before.stats();
        let (mut drained, mut drained_memory) = (before.clone(), self.fresh_memory());
        drained.update(&mut drained_memory).unwrap();
        let calls_of_update = drained_memory.calls.get();
        self.memory = self.fresh_memory();
        self.memory.faults.fails_at = fault;
        self.all_sealed &= rows < stats.free;
        match self.manager.load_seq(&path, &mut self.memory, 0) {
            Ok(id) => {
                self.model.drain();
                self.model.seqs.push(saved);
                self.ids.push(id);
                self.memory = self.fresh_memory();
            }
            Err(error) if error.kind() == "memory" => {
                let call = fault.unwrap();
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
            Err(error) => {
                self.memory = self.fresh_memory();
                assert!(["no_slot", "no_room"].contains(&error.kind()), "{error}");
                let room = if self.cache.paged() { stats.free + stats.cached } else { stats.largest_free_run };
                assert!(rows.next_multiple_of(self.cache.page_size()) > room, "there was room for {rows}: {error}");
                assert!(self.manager == before, "a refused load has changed the manager");
            }
        }
    }
}
