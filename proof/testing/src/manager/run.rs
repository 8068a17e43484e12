//! A manager and the model side by side: every operation on both, and all that must be equal.

use std::cell::Cell;
use std::collections::HashSet;

use kvcache_manager::{ContextShift, Create, Error, Manager, Mode, SeqId};

use crate::manager::cache::Cache;
use crate::manager::memory::{Faults, Log, Memory, Tag};
use crate::manager::model::{Context, Edit, Model, Row, Sequence, number, range};
use crate::manager::script::{End, NewRows, Operation, Span};

const NO_ROOM: [&str; 2] = ["out_of_pages", "no_slot"];

pub struct Run {
    pub cache: Cache,
    pub manager: Manager,
    pub memory: Memory,
    pub model: Model,
    pub ids: Vec<SeqId>,
    pub freed: Vec<SeqId>,
    /// The number of the next row whose tokens are not known.
    pub next_row: u64,
    /// Whether the index must have every full page of known tokens that a sequence has: none was evicted or edited.
    pub all_sealed: bool,
    /// Whether a sequence may have a part of a sealed page, which leaves the index when it is written.
    pub part_sealed: bool,
    pub no_room: usize,
    /// Whether the last operation was done: neither refused nor undone.
    pub done: bool,
    /// The slots that the last step wrote.
    pub written: Vec<usize>,
    pub has_store: bool,
    /// Whether the store may lack blocks that were written to it.
    pub may_miss: bool,
    pub swapped: Vec<(SeqId, Sequence)>,
}

impl Run {
    pub fn new(cache: &Cache) -> Self {
        let spec = cache.spec();
        Self {
            cache: cache.clone(),
            memory: Memory::of_tags(&spec),
            manager: Manager::new(spec).unwrap(),
            model: Model { rules: cache.rules(), seqs: vec![] },
            ids: vec![],
            freed: vec![],
            next_row: 1 << 63,
            all_sealed: true,
            part_sealed: false,
            no_room: 0,
            done: true,
            written: vec![],
            has_store: false,
            may_miss: false,
            swapped: vec![],
        }
    }

    pub fn slots(&self, seq: usize) -> Vec<usize> {
        self.manager.slots(self.ids[seq]).unwrap().collect()
    }

    pub fn live(&self) -> HashSet<usize> {
        (0..self.ids.len()).flat_map(|seq| self.slots(seq)).collect()
    }

    /// The longest run of slots that no row is in.
    pub fn largest_hole(&self) -> usize {
        let live = self.live();
        let (mut run, mut largest) = (0, 0);
        for slot in 0..self.cache.max_t {
            run = if live.contains(&slot) { 0 } else { run + 1 };
            largest = largest.max(run);
        }
        largest
    }

    pub fn rows(&self, seq: usize, memory: &Memory) -> Vec<u8> {
        memory.read(&self.slots(seq))
    }

    /// An operation on both, and all that must be equal then.
    pub fn apply(&mut self, operation: &Operation) {
        let before = self.before();
        self.done = true;
        self.apply_unchecked(operation);
        self.check_head(operation, &before);
    }

    fn apply_unchecked(&mut self, operation: &Operation) {
        if let Operation::Create { salt, reserve } = *operation {
            return self.create(salt, reserve);
        }
        if let Operation::Prompt(n, tokens) = *operation {
            self.create(0, 0);
            let seq = self.ids.len() - 1;
            return self.step(&[NewRows { seq, n: (0, n), tokens, gap: None }], End::Commit);
        }
        if let Operation::SwapIn(which) = *operation {
            return self.swap_in(which);
        }
        let live = self.ids.len();
        if live == 0 {
            return;
        }
        match *operation {
            Operation::Create { .. } | Operation::Prompt(..) | Operation::SwapIn(_) => {}
            Operation::SwapOut(seq) => self.swap_out(seq % live),
            Operation::OffloadPrefix => {
                let offloaded = self.manager.offload_prefix();
                assert_eq!(offloaded.is_ok(), self.has_store);
            }
            Operation::Fork(seq) => self.fork(seq % live),
            Operation::Free(seq) => self.free(seq % live),
            Operation::Rm(which, seq, span) => {
                let (seq, which) = (seq % live, which.map(|seq| seq % live));
                let (p0, p1) = self.span(seq, span);
                self.rm(which, p0, p1);
            }
            Operation::Cut(seq, n) => {
                let p0 = (self.model.seqs[seq % live].next() - n).max(0);
                self.rm(Some(seq % live), p0, -1);
            }
            Operation::Cp(src, dst, span) => {
                let (p0, p1) = self.span(src % live, span);
                let dst = dst.map_or_else(
                    || {
                        self.create(0, 0);
                        live
                    },
                    |dst| dst % live,
                );
                self.cp(src % live, dst, p0, p1);
            }
            Operation::Add(seq, span, delta) => {
                let (p0, p1) = self.span(seq % live, span);
                self.add(seq % live, p0, p1, delta);
            }
            Operation::Div(seq, span, d) => {
                let (p0, p1) = self.span(seq % live, span);
                self.div(seq % live, p0, p1, d);
            }
            Operation::Keep(seq) => {
                let id = self.ids[seq % live];
                self.manager.seq_keep(id).unwrap();
                self.model.keep(seq % live);
                self.empty_swapped();
            }
            Operation::ContextShift { seq, n_keep, n_discard } => {
                let n_ctx = self.model.seqs[seq % live].next() + 1 - n_keep % 2;
                self.context_shift(seq % live, Context { n_ctx: n_ctx.max(1), n_new: n_keep % 3, n_keep, n_discard });
            }
            Operation::Defrag(max_moves) => {
                let moves = self.manager.defrag(max_moves).unwrap();
                assert!(max_moves.is_none_or(|most| moves.len() <= most), "{max_moves:?} {moves:?}");
            }
            Operation::Compact(pages) => {
                if self.cache.paged() {
                    let page_size = self.cache.page_size();
                    let moves = self.manager.compact(pages).unwrap();
                    assert!(moves.iter().map(|copy| copy.len).sum::<usize>() <= pages * page_size);
                    assert!(moves.iter().all(|copy| copy.dst < copy.src), "{moves:?}");
                }
            }
            Operation::Update => self.update(),
            Operation::FailUpdate(call) => self.fail_update(call),
            Operation::Stale(seq) => self.stale(seq),
            Operation::Step(ref rows, end) => self.step(rows, end),
            Operation::Reload(mode, fault) => self.reload(mode, fault),
            Operation::Copy(seq, delta, fault) => self.copy(seq % live, delta, fault),
        }
    }

    fn span(&self, seq: usize, span: Span) -> (i64, i64) {
        let sequence = &self.model.seqs[seq];
        span.of(sequence.rows.first().map_or(0, |row| row.pos), sequence.next())
    }

    pub fn create(&mut self, salt: u8, reserve: usize) {
        let id = self.manager.create_with(&Create { reserve, salt: &[salt] });
        self.ids.push(id);
        self.model.seqs.push(Sequence { salt, ..Sequence::default() });
    }

    pub fn fork(&mut self, seq: usize) {
        let (before, used, src) = (self.manager.clone(), self.manager.stats().used, self.ids[seq]);
        match self.manager.fork(src) {
            Ok(id) => {
                self.ids.push(id);
                let sequence = self.model.seqs[seq].clone();
                self.model.seqs.push(sequence);
                assert!(self.cache.mode == Mode::Runs || self.manager.stats().used == used, "a fork takes no slots");
            }
            Err(error) => {
                assert_eq!(self.cache.mode, Mode::Runs, "{error}");
                self.refused_for_room(&error, &before, self.model.seqs[seq].rows.len());
            }
        }
    }

    pub fn free(&mut self, seq: usize) {
        let id = self.ids.remove(seq);
        self.model.seqs.remove(seq);
        self.manager.free(id).unwrap();
        self.freed.push(id);
    }

    pub fn rm(&mut self, seq: Option<usize>, p0: i64, p1: i64) {
        let id = seq.map(|seq| self.ids[seq]);
        if id.is_none() && !self.swapped.is_empty() {
            // The first sequence that refuses says why.
            let (before, error) = (self.manager.clone(), self.manager.seq_rm(id, p0..p1).unwrap_err());
            assert!(["swapped", "window_lost"].contains(&error.kind()) || NO_ROOM.contains(&error.kind()), "{error}");
            return assert!(self.manager == before, "{error} has changed the manager");
        }
        let edit = self.model.rm(seq, p0, p1);
        self.edit(edit, |manager| {
            let removed = if p1 == -1 { manager.seq_rm(id, p0..)? } else { manager.seq_rm(id, p0..p1)? };
            Ok(removed as i64)
        });
    }

    pub fn cp(&mut self, src: usize, dst: usize, p0: i64, p1: i64) {
        let (from, to, used) = (self.ids[src], self.ids[dst], self.manager.stats().used);
        let edit = self.model.cp(src, dst, p0, p1);
        let first = edit.after.seqs[dst].rows.first() == self.model.seqs[src].rows.first();
        let moves_nothing = self.cache.mode == Mode::Cells || self.cache.paged() && first;
        if self.edit(edit, |manager| Ok(manager.seq_cp(from, to, p0..p1)? as i64)) && moves_nothing {
            assert_eq!(self.manager.stats().used, used, "a copy from row 0 takes no slots");
        }
    }

    pub fn add(&mut self, seq: usize, p0: i64, p1: i64, delta: i64) {
        let id = self.ids[seq];
        let edit = self.model.add(seq, p0, p1, delta);
        self.edit(edit, |manager| manager.seq_add(id, p0..p1, delta).map(|()| 0));
        self.done &= !range(p0, p1).is_empty();
    }

    pub fn div(&mut self, seq: usize, p0: i64, p1: i64, d: i64) {
        let id = self.ids[seq];
        let edit = self.model.div(seq, p0, p1, d);
        self.edit(edit, |manager| manager.seq_div(id, p0..p1, d).map(|()| 0));
    }

    pub fn context_shift(&mut self, seq: usize, context: Context) {
        let id = self.ids[seq];
        let Context { n_ctx, n_new, n_keep, n_discard } = context;
        let edit = self.model.context_shift(seq, context);
        let shift = ContextShift { n_ctx, n_new, n_keep, n_discard };
        self.edit(edit, |manager| manager.context_shift(id, &shift));
    }

    fn edit(&mut self, edit: Edit, act: impl FnOnce(&mut Manager) -> Result<i64, Error>) -> bool {
        let (before, page_size) = (self.manager.clone(), self.cache.page_size());
        // What the sequences that change have in all, which no edit needs more than once.
        let changed = self.model.seqs.iter().zip(&edit.after.seqs).filter(|(a, b)| a.rows != b.rows);
        let most: usize = changed.map(|(a, b)| a.rows.len().max(b.rows.len()).div_ceil(page_size) + 1).sum();
        let stats = before.stats();
        match act(&mut self.manager) {
            Ok(result) => {
                assert!(edit.must.is_empty(), "must be refused: {:?}", edit.must);
                assert_eq!(result, edit.result);
                // A page that another sequence has, too, leaves the index when it is edited, and a cached one when
                // pages are taken.
                let edits_full_page = self.model.seqs.iter().zip(&edit.after.seqs).any(|(before, after)| {
                    let full = before.tokens.len() / page_size * page_size;
                    after.tokens.len() < full
                });
                self.all_sealed &= !edits_full_page && most <= stats.free / page_size;
                self.part_sealed |= self.model.seqs.iter().zip(&edit.after.seqs).any(|(a, b)| a.rows != b.rows);
                self.model = edit.after;
                true
            }
            Err(error) if NO_ROOM.contains(&error.kind()) => {
                assert!(stats.shared > 0 || self.cache.mode == Mode::Runs || self.cache.paged() && edit.result > 0);
                self.refused_for_room(&error, &before, most * page_size);
                false
            }
            Err(error) => {
                let kind = error.kind();
                assert!(edit.must.contains(&kind) || edit.may.contains(&kind), "{error}, expected {:?}", edit.must);
                assert!(self.manager == before, "{kind} has changed the manager");
                self.done = false;
                false
            }
        }
    }

    pub fn update(&mut self) {
        self.memory = self.fresh_memory();
        self.manager.update(&mut self.memory).unwrap();
        self.model.drain();
        let before = self.memory.clone();
        self.manager.update(&mut self.memory).unwrap();
        assert_eq!(
            (&self.memory.calls, &self.memory.spilled),
            (&before.calls, &before.spilled),
            "an update of nothing asks for nothing"
        );
    }

    /// The memory with nothing asked for yet.
    pub fn fresh_memory(&self) -> Memory {
        Memory {
            faults: Faults::default(),
            calls: Cell::default(),
            spilled: Cell::default(),
            spills: self.has_store,
            log: Log::default(),
            ..self.memory.clone()
        }
    }

    pub fn calls_of_update(&self) -> usize {
        let mut memory = self.fresh_memory();
        self.manager.clone().update(&mut memory).unwrap();
        memory.calls.get()
    }

    pub fn new_rows(&mut self, seq: usize, n: usize, first: i64, known: Option<&[u32]>) -> Vec<Row> {
        let sequence = &self.model.seqs[seq];
        let numbers: Vec<u64> = match known {
            Some(tokens) => {
                let all = [&sequence.tokens[..], tokens].concat();
                (sequence.tokens.len() + 1..=all.len()).map(|len| number(sequence.salt, &all[..len])).collect()
            }
            None => (self.next_row..).take(n).collect(),
        };
        self.next_row += n as u64;
        (first..).zip(numbers).map(|(pos, row)| Row { pos, rot: pos, tag: Tag::new(row) }).collect()
    }
}
