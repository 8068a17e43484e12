//! A manager and the model side by side: steps on both, and all that must be equal.

use std::collections::{HashMap, HashSet};

use kvcache_manager::op::{ElementType, KeyValueCache};
use kvcache_manager::{Error, Manager, SeqId};

use crate::common::Memory;
use crate::naive::{Naive, Planned, bytes, tag};
use crate::operations::{End, NewRows};

pub struct Run {
    pub manager: Manager,
    pub memory: Memory,
    pub op: KeyValueCache,
    pub seqs: Vec<Naive>,
    pub freed: Vec<SeqId>,
    /// Tags of rows whose tokens are not known.
    pub tags: u64,
    /// Whether no page can have been evicted yet.
    pub all_cached: bool,
    /// Whether a sequence may have a part of a sealed page, which leaves the index when it is written.
    pub truncated: bool,
}

impl Run {
    fn page_size(&self) -> usize {
        self.manager.spec().page_size()
    }

    fn slots(&self, seq: usize) -> Vec<usize> {
        self.manager.slots(self.seqs[seq].id).unwrap().collect()
    }

    /// The bytes of all live rows.
    fn live(&self) -> Vec<Vec<u8>> {
        (0..self.seqs.len()).map(|seq| self.memory.read(&self.slots(seq))).collect()
    }

    fn appends(&self, rows: &[NewRows]) -> Vec<Planned> {
        let live = rows.iter().filter(|_| !self.seqs.is_empty());
        live.map(|rows| {
            let seq = rows.seq % self.seqs.len();
            let naive = &self.seqs[seq];
            let n = rows.n.0 * self.page_size() + rows.n.1;
            let first = naive.rows.len();
            let tokens = rows.tokens.map(|seed| (first..first + n).map(|row| seed + (row / 3) as u32).collect());
            let next = naive.next();
            Planned { seq, n, tokens, first_pos: rows.gap.map(|gap| next + gap) }
        })
        .collect()
    }

    /// Why a step must be refused, apart from a lack of pages.
    fn refusal(&self, appends: &[Planned]) -> Option<&'static str> {
        let mut seen = HashSet::new();
        appends.iter().find_map(|append| {
            let naive = &self.seqs[append.seq];
            let next = naive.next();
            let pages = (naive.rows.len() + append.n).div_ceil(self.page_size());
            if append.n == 0 {
                Some("empty_append")
            } else if !seen.insert(append.seq) {
                Some("duplicate_seq")
            } else if append.first_pos.is_some_and(|first| first < next) {
                Some("position_order")
            } else if self.manager.spec().max_pages().is_some_and(|max| pages > max) {
                Some("too_many_pages")
            } else {
                None
            }
        })
    }

    /// For each append, the tokens that a live sequence or an earlier append stores for it, in full pages.
    fn shared(&self, appends: &[Planned]) -> Vec<usize> {
        let page_size = self.page_size();
        let mut stored: Vec<(u8, Vec<u32>)> =
            self.seqs.iter().map(|naive| (naive.salt, naive.tokens.clone())).collect();
        let mut shared = Vec::new();
        for append in appends {
            let naive = &self.seqs[append.seq];
            let tokens = naive.known(append);
            let common = |(salt, stored): &(u8, Vec<u32>)| match &tokens {
                Some(tokens)
                    if *salt == naive.salt && naive.rows.is_empty() && self.manager.spec().prefix_sharing() =>
                {
                    let equal = tokens.iter().zip(stored).take_while(|(a, b)| a == b).count();
                    equal.min(tokens.len().saturating_sub(1)) / page_size * page_size
                }
                _ => 0,
            };
            shared.push(stored.iter().map(common).max().unwrap_or(0));
            stored.push((naive.salt, [naive.tokens.clone(), tokens.unwrap_or_default()].concat()));
        }
        shared
    }

    /// New rows of the model: position and tag.
    fn new_rows(&mut self, append: &Planned) -> Vec<(i64, u64)> {
        let naive = &self.seqs[append.seq];
        let first = append.first_pos.unwrap_or_else(|| naive.next());
        let tags: Vec<u64> = match naive.known(append) {
            Some(tokens) => {
                let all = [naive.tokens.clone(), tokens].concat();
                (naive.rows.len() + 1..=all.len()).map(|len| tag(naive.salt, &all[..len])).collect()
            }
            None => (0..append.n as u64).map(|i| self.tags + 2 * i).collect(),
        };
        self.tags += 2 * append.n as u64;
        (first..).zip(tags).collect()
    }

    pub fn step(&mut self, rows: &[NewRows], end: End) {
        let planned = self.appends(rows);
        let appends: Vec<_> = planned.iter().map(|append| append.append(self.seqs[append.seq].id)).collect();
        let (before, live, page_size) = (self.manager.clone(), self.live(), self.page_size());
        let (free, cached) = (before.stats().free / page_size, before.stats().cached / page_size);
        // One page more for each than without copy-on-write.
        let pages = |append: &Planned| {
            let len = self.seqs[append.seq].rows.len();
            (len + append.n).div_ceil(page_size) - len.div_ceil(page_size) + 1
        };
        let at_most: usize = planned.iter().map(pages).sum();
        let (refusal, shared) = (self.refusal(&planned), self.shared(&planned));
        let slots: Vec<HashSet<usize>> =
            (0..self.seqs.len()).map(|seq| self.slots(seq).into_iter().collect()).collect();
        let rows: Vec<_> = planned.iter().map(|append| self.new_rows(append)).collect();
        let all_cached = self.all_cached;
        self.all_cached &= at_most <= free;

        // Planned, and dropped at once: by another manager, since this one shall find its tensors as the last step left
        // them.
        let mut rehearsal = before.clone();
        let error = rehearsal.begin_step(&appends).err();
        assert!(rehearsal == before, "a plan that was refused or dropped has changed the manager");
        if error.is_some() || end == End::DropPlanned {
            assert_eq!(
                self.manager.begin_step(&appends).err().map(|error| error.kind()),
                error.as_ref().map(Error::kind)
            );
            assert!(self.manager == before, "a plan that was refused or dropped has changed the manager");
            assert_eq!(self.live(), live);
        }
        match error {
            None => assert_eq!(refusal, None),
            Some(Error::OutOfPages { need, free: got }) => {
                assert!(refusal.is_none() && need > got && got <= free + cached, "{need} {got}");
                assert!(at_most > free + cached, "there was room");
                return;
            }
            Some(error) => return assert_eq!(Some(error.kind()), refusal),
        }
        if end == End::DropPlanned {
            return;
        }
        if let End::FailCopies(n) = end {
            // A step without copies does not fail.
            let mut failing = self.memory.clone();
            failing.faults.fails_after = Some(0);
            if rehearsal.begin_step(&appends).unwrap().apply(&mut failing).is_err() {
                self.memory.faults.fails_after = Some(n);
                let error = self.manager.begin_step(&appends).unwrap().apply(&mut self.memory).err().unwrap();
                self.memory.faults.fails_after = None;
                assert_eq!(error.kind(), "memory");
                return self.check_undone(&before, &live, at_most <= free);
            }
        }
        let step = self.manager.begin_step(&appends).unwrap().apply(&mut self.memory).unwrap();

        // The operator accepts the step.
        let t1 = if self.memory.cache.element() == ElementType::Int8 && self.memory.scale.is_none() {
            ElementType::Int8
        } else {
            ElementType::Float32
        };
        let (cache, scale) = self.memory.tensors();
        self.op.check_layers(t1, &step.layers_inputs(), cache, scale).unwrap();

        // It stores the rows that the step says, where it says.
        let mut positions = Vec::new();
        let mut written = HashSet::new();
        for (b, &i) in step.order().iter().enumerate() {
            let (append, rows) = (&planned[i as usize], &rows[i as usize]);
            let cached = step.cached()[b] as usize;
            assert!(cached.is_multiple_of(page_size) && cached < append.n);
            assert!(!all_cached || cached >= shared[i as usize], "{cached} of {} shared tokens", shared[i as usize]);
            let naive = &self.seqs[append.seq];
            positions.extend(naive.rows.iter().chain(rows).map(|row| row.0));
            let tokens = step.seqstarts()[b] as usize..step.seqstarts()[b + 1] as usize;
            assert!(step.positions()[tokens.clone()].iter().eq(rows[cached..].iter().map(|row| &row.0)));
            let ids = (cached..append.n).map(|i| append.tokens.as_ref().map_or(-1, |tokens| i64::from(tokens[i])));
            assert!(step.token_ids()[tokens.clone()].iter().copied().eq(ids));
            assert_eq!(step.start_pos()[b] as usize, naive.rows.len() + cached);
            let used = (naive.rows.len() + append.n).div_ceil(page_size);
            assert!(
                step.cachestarts().index_axis(ndarray::Axis(0), b).iter().skip(used).all(|&start| start == -1),
                "pages behind the last"
            );
            for (t, row) in rows[cached..].iter().enumerate() {
                let t = naive.rows.len() + cached + t;
                let slot = step.cachestarts()[[b, t / page_size]] as usize + t % page_size;
                assert!(written.insert(slot), "slot {slot} is written twice");
                let others = (0..slots.len()).filter(|&other| other != append.seq);
                assert!(!others.clone().any(|other| slots[other].contains(&slot)), "slot {slot} was another's");
                let tag = if end == End::Commit { row.1 } else { u64::MAX };
                self.memory.write(&[slot], &bytes(tag, self.memory.spec.bytes_per_token()));
            }
        }
        let mut key_positions = Vec::new();
        step.key_positions_into(&mut key_positions);
        assert_eq!(key_positions, positions);
        let decoding = step.seqstarts().windows(2).take_while(|pair| pair[1] - pair[0] == 1).count();
        assert_eq!(step.decoding_batches(), decoding as i64);

        match end {
            End::Commit | End::DropPlanned => step.commit(),
            End::DropStep | End::FailCopies(_) => step.rollback(),
            End::Leak => {
                std::mem::forget(step);
                assert_eq!(self.manager.begin_step(&[]).unwrap_err().kind(), "step_open");
                assert_eq!(self.manager.free(SeqId::default()).unwrap_err().kind(), "step_open");
                assert_eq!(self.manager.fork(SeqId::default()).unwrap_err().kind(), "step_open");
                assert_eq!(self.manager.seq_rm(SeqId::default(), 0..).unwrap_err().kind(), "step_open");
                self.manager.rollback_open_step();
            }
        }
        if end != End::Commit {
            return self.check_undone(&before, &live, at_most <= free && !self.truncated);
        }
        for (append, rows) in planned.iter().zip(rows) {
            let naive = &mut self.seqs[append.seq];
            if let Some(tokens) = naive.known(append) {
                naive.tokens.extend(tokens);
            }
            naive.rows.extend(rows);
        }
    }

    /// After a rollback all is as before; where pages may have been evicted and written, but for cached pages.
    fn check_undone(&self, before: &Manager, live: &[Vec<u8>], exact: bool) {
        assert_eq!(self.live(), live);
        assert!(!exact || self.manager == *before, "a step that was rolled back has changed the manager");
        let (stats, before) = (self.manager.stats(), before.stats());
        assert_eq!((stats.used, stats.shared, stats.sequences), (before.used, before.shared, before.sequences));
        assert!(stats.cached <= before.cached);
    }

    pub fn check(&self) {
        self.manager.check().unwrap();
        let len = self.memory.spec.bytes_per_token();
        let mut pages = HashMap::new();
        for (i, naive) in self.seqs.iter().enumerate() {
            let slots = self.slots(i);
            assert_eq!(self.manager.seq_len(naive.id).unwrap(), naive.rows.len());
            assert!(self.manager.positions(naive.id).unwrap().eq(naive.rows.iter().map(|row| row.0)));
            assert_eq!(self.manager.pos_min(naive.id).unwrap(), naive.rows.first().map(|row| row.0));
            assert_eq!(self.manager.pos_max(naive.id).unwrap(), naive.rows.last().map(|row| row.0));
            let rows: Vec<u8> = naive.rows.iter().flat_map(|row| bytes(row.1, len)).collect();
            assert!(self.memory.read(&slots) == rows, "sequence {i} has other rows");
            for slot in slots.into_iter().step_by(self.page_size()) {
                *pages.entry(slot).or_insert(0) += 1;
            }
        }
        let stats = self.manager.stats();
        assert_eq!(stats.used, pages.len() * self.page_size());
        assert_eq!(stats.shared, pages.values().filter(|&&owners| owners > 1).count() * self.page_size());
        assert_eq!(stats.used + stats.free + stats.cached, stats.slots);
        assert!(stats.largest_free_run <= stats.free);
    }
}
