//! Steps on both sides.

use std::collections::HashSet;

use kvcache_manager::{Append, Error, MAX_POSITION, Manager, Mode, SeqId, Step, find_slot};

use crate::manager::check::refuses_all_else;
use crate::manager::masks::{Key, Query, check_masks};
use crate::manager::memory::Memory;
use crate::manager::model::Row;
use crate::manager::run::Run;
use crate::manager::script::{End, NewRows};

pub struct Planned {
    pub seq: usize,
    pub n: usize,
    pub tokens: Option<Vec<u32>>,
    pub first_pos: Option<i64>,
    first: i64,
    /// Rows of the sequence before it.
    before: usize,
    rows: Vec<Row>,
    known: bool,
}

impl Planned {
    fn append(&self, id: SeqId) -> Append<'_> {
        let append = match &self.tokens {
            Some(tokens) => Append::tokens(id, tokens),
            None => Append::count(id, self.n),
        };
        self.first_pos.map_or(append, |first_pos| append.at(first_pos))
    }

    fn known(&self) -> Option<&[u32]> {
        self.tokens.as_deref().filter(|_| self.known)
    }
}

impl Run {
    fn planned(&mut self, rows: &[NewRows]) -> Vec<Planned> {
        let live = self.ids.len();
        rows.iter()
            .map(|new| {
                let sequence = &self.model.seqs[new.seq % live];
                let (n, before) = (4 * new.n.0 + new.n.1, sequence.rows.len());
                let tokens: Option<Vec<u32>> =
                    new.tokens.map(|seed| (before..before + n).map(|row| seed + (row / 3) as u32).collect());
                let (seq, first_pos) = (new.seq % live, new.gap.map(|gap| sequence.next().saturating_add(gap)));
                let first = first_pos.unwrap_or_else(|| sequence.next());
                let known = sequence.known(tokens.as_deref(), first).is_some();
                let rows = self.new_rows(seq, n, first, tokens.as_deref().filter(|_| known));
                Planned { seq, n, tokens, first_pos, first, before, rows, known }
            })
            .collect()
    }

    /// Why a step must be refused, apart from want of room.
    fn refusal(&self, planned: &[Planned]) -> Option<&'static str> {
        let mut seen = HashSet::new();
        planned.iter().find_map(|append| {
            let pages = (append.before + append.n).div_ceil(self.cache.page_size());
            if append.n == 0 {
                Some("empty_append")
            } else if !seen.insert(append.seq) {
                Some("duplicate_seq")
            } else if append.first_pos.is_some_and(|first| first < self.model.seqs[append.seq].next()) {
                Some("position_order")
            } else if append.first + append.n as i64 - 1 > MAX_POSITION {
                Some("position_overflow")
            } else if self.cache.max_pages.is_some_and(|max| pages > max) {
                Some("too_many_pages")
            } else {
                None
            }
        })
    }

    /// For each append, how many of its tokens a sequence or an earlier append stores, in full pages.
    fn shared(&self, planned: &[Planned]) -> Vec<usize> {
        let page_size = self.cache.page_size();
        let mut stored: Vec<(u8, Vec<u32>)> =
            self.model.seqs.iter().map(|sequence| (sequence.salt, sequence.tokens.clone())).collect();
        let mut shared = Vec::new();
        for append in planned {
            let sequence = &self.model.seqs[append.seq];
            let common = |(salt, stored): &(u8, Vec<u32>)| match append.known() {
                Some(tokens) if *salt == sequence.salt && append.before == 0 && self.cache.prefix_sharing => {
                    let equal = tokens.iter().zip(stored).take_while(|(a, b)| a == b).count();
                    equal.min(tokens.len() - 1) / page_size * page_size
                }
                _ => 0,
            };
            shared.push(stored.iter().map(common).max().unwrap_or(0));
            stored.push((sequence.salt, [&sequence.tokens[..], append.known().unwrap_or_default()].concat()));
        }
        shared
    }

    pub fn step(&mut self, rows: &[NewRows], end: End) {
        let planned = self.planned(rows);
        let appends: Vec<_> = planned.iter().map(|append| append.append(self.ids[append.seq])).collect();
        let (before, page_size) = (self.manager.clone(), self.cache.page_size());
        let stats = before.stats();
        // One page more for each than without copy-on-write.
        let pages =
            |append: &Planned| (append.before + append.n).div_ceil(page_size) - append.before.div_ceil(page_size) + 1;
        let most: usize = planned.iter().map(pages).sum();
        let exact = most <= stats.free / page_size && !self.part_sealed;
        let refusal = self.refusal(&planned);

        // Planned, and dropped at once: by another manager, since this one shall find its tensors as the last step left
        // them.
        let mut rehearsal = before.clone();
        let error = rehearsal.begin_step(&appends).err();
        assert!(rehearsal == before, "a plan that was refused or dropped has changed the manager");
        if error.is_some() || end == End::DropPlanned {
            let again = self.manager.begin_step(&appends).err();
            assert_eq!(again.as_ref().map(Error::kind), error.as_ref().map(Error::kind));
            assert!(self.manager == before, "a plan that was refused or dropped has changed the manager");
        }
        self.done = false;
        match error {
            None => assert_eq!(refusal, None),
            Some(error) if refusal.is_some() => return assert_eq!(Some(error.kind()), refusal),
            Some(error) => return self.step_without_room(&error, &planned, most * page_size),
        }
        self.must_have_room(&planned);
        if end == End::DropPlanned {
            return;
        }
        self.all_sealed &= most <= stats.free / page_size;

        // What is queued is done first, and stays done.
        let (mut drained, mut drained_bytes) = (before.clone(), self.fresh_memory());
        drained.update(&mut drained_bytes).unwrap();
        let calls_of_update = drained_bytes.calls.get();
        if let End::Fail(call) = end {
            let mut memory = self.fresh_memory();
            drop(rehearsal.begin_step(&appends).unwrap().apply(&mut memory).unwrap());
            if call < memory.calls.get() {
                self.memory = self.fresh_memory();
                self.memory.faults.fails_at = Some(call);
                match self.manager.begin_step(&appends).unwrap().apply(&mut self.memory) {
                    Err(error) => assert_eq!(error.kind(), "memory"),
                    // The rehearsal has found more in the store than there is now: nothing is written for that.
                    Ok(step) => assert!(self.may_miss && step.order().len() == appends.len()),
                }
                return if call < calls_of_update {
                    self.lose()
                } else {
                    self.memory = self.fresh_memory();
                    self.model.drain();
                    self.check_undone(&drained, &drained_bytes, exact);
                };
            }
        }
        self.memory = self.fresh_memory();
        self.model.drain();
        let shared = self.shared(&planned);
        let found = match appends[..] {
            [append] if planned[0].n.is_multiple_of(2) => Some(self.manager.find_prefix(&append).unwrap() as i64),
            _ => None,
        };
        let step = self.manager.begin_step(&appends).unwrap().apply(&mut self.memory).unwrap();
        assert!(found.is_none_or(|found| step.cached() == [found]), "a step finds what was found before it");
        let seqs = &self.model.seqs;

        // Entries: single tokens first, otherwise in order; for each, what was found in the index.
        assert_eq!(step.order().len(), planned.len());
        let entries: Vec<(&Planned, usize)> = step
            .order()
            .iter()
            .zip(step.cached())
            .map(|(&i, &cached)| {
                let (append, cached, shared) = (&planned[i as usize], cached as usize, shared[i as usize]);
                assert!(cached.is_multiple_of(page_size) && cached < append.n);
                assert!(cached == 0 || append.before == 0 && self.cache.prefix_sharing && append.known);
                assert!(!self.all_sealed || cached >= shared, "{cached} of {shared} shared tokens");
                (append, cached)
            })
            .collect();
        let decoding = entries.iter().take_while(|(append, cached)| append.n - cached == 1).count();
        assert_eq!(step.decoding_batches(), decoding as i64);
        assert!(entries[decoding..].iter().all(|(append, cached)| append.n - cached > 1));
        assert!(step.order()[..decoding].is_sorted() && step.order()[decoding..].is_sorted());

        // The tokens of entries, one after the other.
        let new = || entries.iter().flat_map(|&(append, cached)| (cached..append.n).map(move |i| (append, i)));
        let row = |(append, i): (&Planned, usize)| append.rows[i];
        assert!(step.positions().iter().copied().eq(new().map(|new| row(new).pos)));
        let token = |(append, i): (&Planned, usize)| append.tokens.as_ref().map_or(-1, |tokens| i64::from(tokens[i]));
        assert!(step.token_ids().iter().copied().eq(new().map(token)));

        // The slots that are written: each once, and nobody's before.
        let (written, loaded) = slots_of(&step, self.cache.mode);
        let distinct: HashSet<_> = written.iter().collect();
        assert_eq!(distinct.len(), written.len(), "a slot is written twice: {written:?}");
        for (seq, &id) in self.ids.iter().enumerate() {
            let had = before.slots(id).unwrap().find(|slot| distinct.contains(slot));
            assert_eq!(had, None, "a slot that is written was one of sequence {seq}");
        }

        if self.cache.mode == Mode::Cells && !planned.is_empty() {
            let live: HashSet<_> = self.ids.iter().flat_map(|&id| before.slots(id).unwrap()).collect();
            let busy: Vec<_> = (0..self.cache.max_t).map(|cell| live.contains(&cell)).collect();
            let (expected, _) = find_slot(&busy, before.stats().head, live.len(), written.len());
            assert_eq!(Some(written[0]), expected, "cells are found elsewhere");
        }

        // The rows that the operator returns, entry by entry. In cells the view, the second entry, begins at `view`.
        let own = |append: &Planned, i: usize| {
            let (owners, row) = (vec![(append.seq, append.before + i)], &append.rows[i]);
            Key { owners, pos: row.pos, tag: Some(row.tag) }
        };
        let cells = self.cache.mode == Mode::Cells;
        let mut keys = Vec::new();
        let mut lens = Vec::new();
        let mut view = 0;
        if cells && !planned.is_empty() {
            keys.extend(new().map(|(append, i)| own(append, i)));
            view = keys.len();
            let mut cells = vec![Key { pos: -1, ..Key::default() }; self.cache.max_t];
            for (seq, &id) in self.ids.iter().enumerate() {
                for (slot, (i, row)) in before.slots(id).unwrap().zip(seqs[seq].rows.iter().enumerate()) {
                    cells[slot].owners.push((seq, i));
                    (cells[slot].pos, cells[slot].tag) = (row.pos, Some(row.tag));
                }
            }
            for (key, &slot) in keys.iter().zip(&written) {
                cells[slot] = key.clone();
            }
            let end = cells.iter().rposition(|cell| cell.pos >= 0).map_or(0, |last| last + 1);
            cells.truncate(end.next_multiple_of(self.cache.pad).max(self.cache.pad).min(self.cache.max_t));
            lens.extend([(view, 0), (0, cells.len())]);
            keys.append(&mut cells);
        } else {
            for &(append, cached) in &entries {
                lens.push((append.n - cached, append.before + cached));
                let old = seqs[append.seq].rows.iter().enumerate();
                keys.extend(old.map(|(i, row)| Key {
                    owners: vec![(append.seq, i)],
                    pos: row.pos,
                    tag: Some(row.tag),
                }));
                keys.extend((0..append.n).map(|i| own(append, i)));
            }
        }
        let starts = |len: fn(&(usize, usize)) -> usize| -> Vec<i64> {
            let ends = lens.iter().scan(0, |end, lens| {
                *end += len(lens) as i64;
                Some(*end)
            });
            std::iter::once(0).chain(ends).collect()
        };
        assert_eq!(step.seqstarts(), starts(|lens| lens.0));
        assert_eq!(step.kvstarts(), starts(|lens| lens.0 + lens.1));
        assert!(step.start_pos().iter().copied().eq(lens.iter().map(|lens| lens.1 as i64)));
        assert_eq!(step.max_seqlen(), lens.iter().map(|lens| lens.0 as i64).max().unwrap_or(0));
        assert!(step.max_kvlen() >= lens.iter().map(|lens| (lens.0 + lens.1) as i64).max().unwrap_or(0));
        let mut key_positions = Vec::new();
        step.key_positions_into(&mut key_positions);
        assert!(key_positions.iter().eq(keys.iter().map(|key| &key.pos)), "key positions");
        let queries: Vec<Query> = new().map(|new| Query { seq: new.0.seq, pos: row(new).pos }).collect();
        let window = self.cache.window.map(|window| window.width);
        let sink = self.cache.window.map_or(0, |window| window.sink);
        check_masks(&step, &queries, &keys[view..], window, sink, cells);

        // What the operator stores and then loads by these tensors.
        let stored: Vec<u8> = new().flat_map(|new| row(new).tag.bytes()).collect();
        self.memory.write(&written, &stored);
        assert_eq!(loaded.len(), keys.len());
        for (i, (got, key)) in self.memory.tags(&loaded).into_iter().zip(&keys).enumerate() {
            let is_passed = loaded[i] < self.cache.null_slots();
            assert!(is_passed || key.tag.is_none_or(|expected| expected == got), "row {i} of {:?} is {got:?}", keys[i]);
        }

        match end {
            End::Commit | End::DropPlanned | End::Fail(_) => step.commit(),
            End::DropStep => step.rollback(),
            End::Detach => {
                step.detach();
                refuses_all_else(&mut self.manager, &self.ids, &mut self.memory);
                self.manager.open_step().unwrap().commit();
            }
            End::Leak => {
                std::mem::forget(step);
                refuses_all_else(&mut self.manager, &self.ids, &mut self.memory);
                self.manager.open_step().unwrap().rollback();
            }
        }
        assert!(self.manager.open_step().is_none());
        let is_undone = matches!(end, End::DropStep | End::Leak);
        if is_undone {
            return self.check_undone(&drained, &drained_bytes, exact);
        }
        (self.done, self.written) = (true, written);
        for append in &planned {
            self.model.append(append.seq, append.rows.iter().copied(), append.known());
        }
        for append in &planned {
            self.model.slide(append.seq);
            self.check_passed(append);
        }
    }

    /// A window that keeps rows has passed the model's; of a prefix that was found, those that its next token does not
    /// see, which may be more.
    fn check_passed(&mut self, append: &Planned) {
        let passed = self.slots(append.seq).iter().take_while(|&&slot| slot < self.cache.null_slots()).count();
        let (window, sequence) = (self.cache.window.map_or(0, |window| window.width), &mut self.model.seqs[append.seq]);
        let may_pass = if append.before == 0 { (sequence.rows.len() + 1).saturating_sub(window) } else { 0 };
        assert!((sequence.passed..=sequence.passed.max(may_pass)).contains(&passed), "{passed} rows are passed");
        sequence.passed = passed;
        // Their pages are no longer in the index.
        self.all_sealed &= passed == 0;
    }

    /// A step that was refused for want of room, though it needs at most `most` slots.
    fn step_without_room(&mut self, error: &Error, planned: &[Planned], most: usize) {
        let before = self.manager.clone();
        match self.cache.mode {
            Mode::Cells => {
                let n: usize = planned.iter().map(|append| append.n).sum();
                assert!(self.largest_hole() < n, "there was room for {n}: {error}");
                assert!(matches!(*error, Error::NoSlot { need, .. } if need == n), "{error}, expected {n}");
                self.refused_for_room(error, &before, n);
            }
            Mode::Runs => {
                // A run moves to twice what it had, at most; a first one has its reserve.
                self.refused_for_room(error, &before, usize::MAX);
            }
            _ => self.refused_for_room(error, &before, most),
        }
    }

    /// A step in cells that was not refused had a hole.
    fn must_have_room(&self, planned: &[Planned]) {
        if self.cache.mode == Mode::Cells {
            let n: usize = planned.iter().map(|append| append.n).sum();
            assert!(self.largest_hole() >= n);
        }
    }

    /// After a rollback all is as before; only cached pages may have been evicted and written.
    fn check_undone(&self, before: &Manager, bytes: &Memory, exact: bool) {
        for seq in 0..self.ids.len() {
            assert_eq!(self.rows(seq, &self.memory), self.rows(seq, bytes), "a row of sequence {seq}");
        }
        assert!(!exact || self.manager == *before, "a step that was rolled back has changed the manager");
        let (stats, before) = (self.manager.stats(), before.stats());
        assert_eq!((stats.used, stats.shared, stats.sequences), (before.used, before.shared, before.sequences));
        assert!(stats.cached <= before.cached);
    }
}

/// The slots that the operator writes and those that it then reads, by the tensors of a step.
fn slots_of(step: &Step<'_>, mode: Mode) -> (Vec<usize>, Vec<usize>) {
    let (starts, mut written, mut read) = (step.cachestarts(), Vec::new(), Vec::new());
    for (b, (&start_pos, seqlens)) in step.start_pos().iter().zip(step.seqstarts().windows(2)).enumerate() {
        let past = start_pos as usize;
        let slots = (0..past + (seqlens[1] - seqlens[0]) as usize).map(|t| match mode {
            Mode::Paged { page_size } => starts[[b, t / page_size]] as usize + t % page_size,
            _ => starts[[b]] as usize + t,
        });
        let first = read.len();
        read.extend(slots);
        written.extend_from_slice(&read[first + past..]);
    }
    (written, read)
}
