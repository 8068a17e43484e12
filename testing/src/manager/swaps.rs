//! Sequences that leave the cache for a store and come back.

use std::sync::Arc;

use kvcache_manager::{Error, Manager};

use crate::manager::run::Run;
use crate::manager::script::Cache;
use crate::manager::sequences::Sequence;
use crate::manager::store::Store;

impl Run {
    pub fn with_store(cache: &Cache, store: Arc<Store>) -> Self {
        let may_miss = store.is_faulty;
        let manager = Manager::with_store(cache.spec(), store).unwrap();
        Self { manager, may_miss, has_store: true, ..Self::new(cache) }
    }

    pub fn swap_out(&mut self, seq: usize) {
        let id = self.ids[seq];
        if !self.has_store {
            return assert_eq!(self.manager.swap_out(id).unwrap_err().kind(), "no_tiers");
        }
        self.manager.swap_out(id).unwrap();
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
        let mut drained = self.manager.clone();
        drained.update(&mut self.fresh_memory()).unwrap();
        self.memory = self.fresh_memory();
        self.model.drain();
        match self.manager.swap_in(id, &mut self.memory) {
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
                assert!(missing > 0 && rows == sequence.rows.len());
                assert!(self.manager == drained, "a sequence that was not swapped in has changed the manager");
                self.manager.free(id).unwrap();
                self.freed.push(id);
            }
            Err(error) => {
                self.refused_for_room(&error, &drained, sequence.rows.len() + self.cache.page_size());
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
