//! What sequences must have after each operation: a model of lists, without pages, cells, runs and sharing.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use kvcache_manager::{CacheSpec, Error, KeyForm, Manager, Mode, SeqId, Step};
use xxhash_rust::xxh3::xxh3_64;

use crate::key_oracle::{self, Keys};
use crate::manager::{Content, Slots};

/// A row of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Row {
    tag: u32,
    position: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Sequence {
    seq: SeqId,
    salt: Vec<u8>,
    rows: Vec<Row>,
    /// A memory that has failed may have damaged its rows.
    is_lost: bool,
}

/// The sequences of a manager, in order of their creation.
#[derive(Debug, Clone, Default)]
pub struct Model {
    sequences: Vec<Sequence>,
    /// By tag: a hash of all tokens up to this one, if they are known and follow each other from position 0 on.
    chains: Vec<Option<u64>>,
    /// Rows that steps have found in the prefix index.
    prefix_hits: usize,
}

/// What a step appends to a sequence.
#[derive(Debug)]
pub struct New {
    /// The sequence.
    pub seq: SeqId,
    /// The rows.
    pub len: usize,
    /// Their tokens, if they are known.
    pub tokens: Option<Vec<u32>>,
    /// The position of the first one, where it is not the next.
    pub at: Option<i64>,
}

/// The rows of a step's sequences, and how many of them were found in the prefix index.
pub struct Written {
    rows: Vec<(SeqId, Vec<Row>)>,
    cached: usize,
}

/// What a row holds.
enum Expected {
    Tag(u32),
    /// Any row of these tokens.
    Chain(u64),
}

/// The range of positions that a half-open one stands for.
fn normalized(range: Range<i64>) -> Range<i64> {
    range.start.max(0)..if range.end < 0 { i64::MAX } else { range.end }
}

fn child(chain: u64, token: u32) -> u64 {
    xxh3_64(&[&chain.to_le_bytes()[..], &token.to_le_bytes()].concat())
}

impl Model {
    fn rows(&mut self, seq: SeqId) -> &mut Vec<Row> {
        let found = self.sequences.iter_mut().find(|sequence| sequence.seq == seq);
        &mut found.unwrap_or_else(|| panic!("a sequence that there is not: {seq:?}")).rows
    }

    /// A new sequence.
    pub fn create(&mut self, seq: SeqId, salt: &[u8]) {
        self.sequences.push(Sequence { seq, salt: salt.to_vec(), rows: Vec::new(), is_lost: false });
    }

    /// The sequences that there are.
    pub fn seqs(&self) -> impl ExactSizeIterator<Item = SeqId> {
        self.sequences.iter().map(|sequence| sequence.seq)
    }

    /// Whether this is a sequence, and not lost.
    pub fn is_intact(&self, seq: SeqId) -> bool {
        self.sequences.iter().any(|sequence| sequence.seq == seq && !sequence.is_lost)
    }

    /// How many rows a sequence has, and the position behind the last one.
    pub fn end(&self, seq: SeqId) -> (usize, i64) {
        let found = self.sequences.iter().find(|sequence| sequence.seq == seq);
        found.map_or((0, 0), |Sequence { rows, .. }| (rows.len(), rows.last().map_or(0, |last| last.position + 1)))
    }

    /// The positions of a sequence's rows.
    pub fn positions(&self, seq: SeqId) -> Vec<i64> {
        let found = self.sequences.iter().find(|sequence| sequence.seq == seq);
        found.map_or(Vec::new(), |sequence| sequence.rows.iter().map(|row| row.position).collect())
    }

    /// A memory has failed: sequences with rows where it may have written are lost.
    pub fn lose(&mut self, manager: &Manager, memory: &Slots) {
        for sequence in &mut self.sequences {
            let mut slots = manager.slots(sequence.seq).expect("a sequence");
            sequence.is_lost |= slots.any(|slot| memory.damaged.contains(&slot));
        }
    }

    /// A new sequence with the rows of another one.
    pub fn fork(&mut self, src: SeqId, seq: SeqId) {
        let sequence = self.sequences.iter().find(|sequence| sequence.seq == src).cloned();
        self.sequences.push(Sequence { seq, ..sequence.expect("a sequence that was forked") });
    }

    /// A sequence with the rows of another one that was saved. Pages of the same tokens that the prefix index had serve
    /// it, too.
    pub fn load(&mut self, src: SeqId, seq: SeqId, manager: &Manager, memory: &Slots) {
        self.fork(src, seq);
        let slots: Vec<usize> = manager.slots(seq).expect("a sequence").collect();
        let chains = std::mem::take(&mut self.chains);
        let chain = |tag: u32| chains.get(tag as usize).copied().flatten();
        for (row, slot) in self.rows(seq).iter_mut().zip(slots) {
            let Content { tag, .. } = memory.contents[slot];
            if chain(tag).is_some() && chain(tag) == chain(row.tag) {
                row.tag = tag;
            }
        }
        self.chains = chains;
    }

    /// Removes a sequence.
    pub fn free(&mut self, seq: SeqId) {
        self.rows(seq);
        self.sequences.retain(|sequence| sequence.seq != seq);
    }

    /// Empties all others.
    pub fn keep(&mut self, seq: SeqId) {
        let others = self.sequences.iter_mut().filter(|sequence| sequence.seq != seq);
        others.for_each(|sequence| sequence.rows.clear());
    }

    /// Removes positions of a sequence, or of all that are not lost; gives how many.
    pub fn remove(&mut self, seq: Option<SeqId>, range: Range<i64>) -> usize {
        let range = normalized(range);
        let mut removed = 0;
        let is_meant = |sequence: &Sequence| seq.map_or(!sequence.is_lost, |seq| sequence.seq == seq);
        for sequence in self.sequences.iter_mut().filter(|sequence| is_meant(sequence)) {
            let before = sequence.rows.len();
            sequence.rows.retain(|row| !range.contains(&row.position));
            removed += before - sequence.rows.len();
        }
        removed
    }

    /// Gives `dst` rows of `src`.
    pub fn copy(&mut self, src: SeqId, dst: SeqId, range: Range<i64>) {
        let range = normalized(range);
        if src != dst && !range.is_empty() {
            let rows = self.rows(src).iter().filter(|row| range.contains(&row.position)).copied().collect();
            *self.rows(dst) = rows;
        }
    }

    /// Adds to positions.
    pub fn add(&mut self, seq: SeqId, range: Range<i64>, delta: i64) {
        let range = normalized(range);
        let rows = self.rows(seq);
        for row in rows.iter_mut().filter(|row| range.contains(&row.position)) {
            row.position = row.position.saturating_add(delta);
        }
        rows.retain(|row| row.position >= 0);
    }

    /// Divides positions.
    pub fn divide(&mut self, seq: SeqId, range: Range<i64>, divisor: i64) {
        let range = normalized(range);
        for row in self.rows(seq).iter_mut().filter(|row| range.contains(&row.position)) {
            row.position /= divisor;
        }
    }

    /// In the mode `cells`: where the rows of all sequences are.
    pub fn cells(&self, manager: &Manager) -> Vec<(SeqId, Keys)> {
        let keys = |seq: SeqId| Keys {
            positions: manager.positions(seq).expect("a sequence").collect(),
            cells: manager.slots(seq).expect("a sequence").collect(),
        };
        let in_cells = manager.spec().mode() == Mode::Cells;
        self.seqs().filter(|_| in_cells).map(|seq| (seq, keys(seq))).collect()
    }

    /// Writes the rows of an applied step where its tensors say, as the operator does, then reads all rows of its
    /// sequences there. Gives the rows that these have once it is committed.
    pub fn write(
        &mut self,
        step: &Step<'_>,
        spec: &CacheSpec,
        appends: &[New],
        cells: &[(SeqId, Keys)],
        memory: &mut Slots,
    ) -> Written {
        let in_cells = spec.mode() == Mode::Cells;
        let cachestarts = step.cachestarts();
        let slot = |entry: usize, row: usize| match spec.mode() {
            Mode::Paged { page_size } => cachestarts[[entry, row / page_size]] as usize + row % page_size,
            _ => cachestarts[[entry]] as usize + row,
        };
        check_order(step, appends);
        let mut written = Vec::new();
        let mut keys = Vec::new();
        let mut first = 0;
        for (entry, &append) in step.order().iter().enumerate() {
            let New { seq, len, tokens, at } = &appends[append as usize];
            let (salt, mut rows) = self.sequence(*seq);
            let cached = step.cached()[entry] as usize;
            let next = at.unwrap_or_else(|| rows.last().map_or(0, |last| last.position + 1));
            let start = rows.len() + cached;
            assert!(cached < *len, "all rows of entry {entry} are cached: none is computed");
            let before = cells.iter().find(|(other, _)| other == seq);
            let mut cells = before.map(|(_, keys)| keys.cells.clone()).unwrap_or_default();
            assert!(
                in_cells || step.start_pos()[entry] as usize == start,
                "rows that the sequence has, and cached ones"
            );
            // The chain of all rows before, if there is one.
            let mut chain = match rows.last() {
                None => Some(xxh3_64(&salt)),
                Some(last) if last.position + 1 == rows.len() as i64 => self.chains[last.tag as usize],
                Some(_) => None,
            };
            let mut expected: Vec<Expected> = rows.iter().map(|row| Expected::Tag(row.tag)).collect();
            for row in start - cached..start {
                chain = chain.zip(tokens.as_ref()).map(|(chain, tokens)| child(chain, tokens[row]));
                expected.push(Expected::Chain(chain.expect("tokens that are known from the first on")));
                rows.push(Row { tag: u32::MAX, position: row as i64 });
            }
            for i in cached..*len {
                let (row, position) = (start - cached + i, step.positions()[first + i - cached]);
                assert_eq!(position, next + i as i64, "the position of new row {i} of entry {entry}");
                let id = step.token_ids()[first + i - cached];
                assert_eq!(id, tokens.as_ref().map_or(-1, |tokens| tokens[i].into()), "a token of entry {entry}");
                let token = tokens.as_ref().map(|tokens| tokens[i]);
                chain = chain.zip(token).filter(|_| position == row as i64).map(|(chain, token)| child(chain, token));
                let tag = self.chains.len() as u32;
                self.chains.push(chain);
                let at = if in_cells { cachestarts[[0]] as usize + first + i } else { slot(entry, row) };
                memory.contents[at] = Content { tag, rotated: position as i32 };
                cells.extend(in_cells.then_some(at));
                expected.push(Expected::Tag(tag));
                rows.push(Row { tag, position });
            }
            first += len - cached;
            let positions = rows.iter().map(|row| row.position).collect();
            keys.push((len - cached, Keys { positions, cells }));
            written.push((*seq, rows, expected));
        }
        let others = cells.iter().filter(|(seq, _)| !appends.iter().any(|append| append.seq == *seq));
        let others: Vec<Keys> = others.map(|(_, keys)| keys.clone()).collect();
        key_oracle::check(step, spec, &keys, &others, self.chains.len() as u64);
        // Only now: cached rows may be those of another entry.
        for (entry, (_, rows, expected)) in written.iter_mut().enumerate().filter(|_| !in_cells) {
            for (at, (row, expected)) in rows.iter_mut().zip(expected).enumerate() {
                let content = memory.contents[slot(entry, at)];
                match *expected {
                    Expected::Tag(tag) => assert_eq!(content.tag, tag, "entry {entry} reads another row {at}"),
                    Expected::Chain(chain) => {
                        let got = self.chains.get(content.tag as usize).copied().flatten();
                        assert_eq!(got, Some(chain), "entry {entry} has a cached row {at} of other tokens");
                        row.tag = content.tag;
                    }
                }
                let is_rotated = spec.key_form() == KeyForm::Raw || i64::from(content.rotated) == row.position;
                assert!(
                    is_rotated,
                    "entry {entry} reads row {at} rotated for {}, expected {}",
                    content.rotated, row.position
                );
            }
        }
        let lengths: Vec<[usize; 2]> = written
            .iter()
            .zip(step.cached())
            .zip(step.order())
            .map(|(of, append)| {
                let ((_, rows, _), cached) = of;
                [appends[*append as usize].len - *cached as usize, rows.len()]
            })
            .collect();
        check_lengths(step, spec, &lengths, memory.contents.len());
        let cached = step.cached().iter().sum::<i64>() as usize;
        Written { rows: written.into_iter().map(|(seq, rows, _)| (seq, rows)).collect(), cached }
    }

    /// Sequences have the rows that a step has written, but for those that a window has left behind.
    pub fn commit(&mut self, written: Written, spec: &CacheSpec) {
        self.prefix_hits += written.cached;
        for (seq, mut rows) in written.rows {
            if let (Some(window), Some(last)) = (spec.window(), rows.last()) {
                let seen = last.position + 1 - (window + spec.slack()) as i64;
                let (start, end) = (spec.sink(), rows.iter().filter(|row| row.position <= seen).count());
                let (start, end) = match spec.mode() {
                    Mode::Paged { page_size } => (start.next_multiple_of(page_size), end / page_size * page_size),
                    _ => (start, end),
                };
                if start < end {
                    rows.drain(start..end);
                }
            }
            *self.rows(seq) = rows;
        }
    }

    /// Whether a manager has these sequences with these rows, and a memory what they hold, once all updates are made.
    pub fn check(&self, manager: &Manager, memory: &Slots) {
        self.check_stats(manager);
        let mut probe = manager.clone();
        for &Sequence { seq, is_lost, .. } in &self.sequences {
            let got = matches!(probe.seq_rm(seq, 0..0), Err(Error::Lost { .. }));
            assert_eq!(got, is_lost, "whether {seq:?} is lost");
        }
        let seqs: Vec<_> = self.seqs().collect();
        self.check_as(&seqs, probe, memory.clone());
    }

    /// The same of a manager with other ids, where no sequence has been lost.
    pub fn check_as(&self, seqs: &[SeqId], mut manager: Manager, mut memory: Slots) {
        assert_eq!((manager.stats().sequences, seqs.len()), (self.sequences.len(), self.sequences.len()));
        manager.update(&mut memory).expect("an update in memory that does not fail");
        for (&seq, sequence) in seqs.iter().zip(&self.sequences).filter(|(_, sequence)| !sequence.is_lost) {
            let positions: Vec<i64> = manager.positions(seq).expect("a sequence").collect();
            let expected: Vec<i64> = sequence.rows.iter().map(|row| row.position).collect();
            assert_eq!(positions, expected, "positions of {seq:?}");
            assert!(manager.pending(seq).expect("a sequence").all(|delta| delta == 0), "keys wait after an update");
            assert_eq!(manager.slots(seq).expect("a sequence").count(), sequence.rows.len(), "slots of {seq:?}");
            for (slot, row) in manager.slots(seq).expect("a sequence").zip(&sequence.rows) {
                let content = memory.contents[slot];
                assert_eq!(content.tag, row.tag, "slot {slot} holds another row");
                let is_rotated =
                    manager.spec().key_form() == KeyForm::Raw || i64::from(content.rotated) == row.position;
                assert!(is_rotated, "slot {slot} is rotated for {}, expected {}", content.rotated, row.position);
            }
        }
    }

    /// Whether a manager counts its slots as its sequences have them.
    fn check_stats(&self, manager: &Manager) {
        let stats = manager.stats();
        assert_eq!(stats.used + stats.free + stats.cached, stats.slots, "{stats:?}");
        assert_eq!((stats.prefix_hits, manager.prefix_hits()), (self.prefix_hits, self.prefix_hits));
        let page_size = match manager.spec().mode() {
            Mode::Paged { page_size } => page_size,
            Mode::Cells => 1,
            // Rows are a sequence's own, and runs longer than they are.
            _ => return assert_eq!(stats.shared, 0),
        };
        let mut entries = BTreeMap::new();
        for seq in self.seqs() {
            let slots = manager.slots(seq).expect("a sequence");
            let pages: BTreeSet<usize> = slots.map(|slot| slot / page_size).collect();
            pages.into_iter().for_each(|page| *entries.entry(page).or_insert(0) += 1);
        }
        let shared = entries.values().filter(|&&entries| entries > 1).count();
        assert_eq!([stats.used, stats.shared], [entries.len() * page_size, shared * page_size], "{stats:?}");
    }

    fn sequence(&self, seq: SeqId) -> (Vec<u8>, Vec<Row>) {
        let found = self.sequences.iter().find(|sequence| sequence.seq == seq);
        found.map(|sequence| (sequence.salt.clone(), sequence.rows.clone())).expect("a sequence that is appended to")
    }
}

/// Every append has an entry: those of one token first, each kind in the order of the appends.
fn check_order(step: &Step<'_>, appends: &[New]) {
    assert_eq!((step.order().len(), step.cached().len()), (appends.len(), appends.len()));
    let mut seen: Vec<_> = step.order().to_vec();
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..appends.len() as i64), "an append has one entry: {:?}", step.order());
    let key = |(&append, &cached): (&i64, &i64)| (appends[append as usize].len as i64 - cached != 1, append);
    let keys: Vec<_> = step.order().iter().zip(step.cached()).map(key).collect();
    assert!(keys.is_sorted(), "entries of one token come first: {:?}", step.order());
    assert_eq!(step.decoding_batches(), keys.iter().filter(|(is_longer, _)| !is_longer).count() as i64);
}

/// Starts, bounds and the pages behind the last follow from the new rows of each entry and from all of its rows.
fn check_lengths(step: &Step<'_>, spec: &CacheSpec, lengths: &[[usize; 2]], slots: usize) {
    let ends = |starts: &[i64]| -> Vec<usize> { starts.windows(2).map(|pair| (pair[1] - pair[0]) as usize).collect() };
    assert_eq!([step.seqstarts()[0], step.kvstarts()[0]], [0, 0]);
    let (seqlens, kvlens) = (ends(step.seqstarts()), ends(step.kvstarts()));
    let expected: Vec<[usize; 2]> = match (spec.mode(), lengths) {
        (Mode::Cells, []) => Vec::new(),
        (Mode::Cells, _) => {
            // One entry writes all new rows, and one sees all cells up to the last busy one.
            let new = lengths.iter().map(|[new, _]| new).sum();
            let seen = kvlens.get(1).copied().unwrap_or_default();
            let last = step.cachestarts()[[0]] as usize + new;
            assert!((last..=slots).contains(&seen), "{seen} cells are seen, of {slots}, the last new one is {last}");
            vec![[new, new], [0, seen]]
        }
        _ => lengths.to_vec(),
    };
    let got: Vec<[usize; 2]> = seqlens.iter().zip(&kvlens).map(|(&new, &all)| [new, all]).collect();
    assert_eq!(got, expected, "new rows and all rows by entry");
    let most = |of: &[usize]| of.iter().max().map_or(0, |&most| most as i64);
    assert_eq!([step.max_seqlen(), step.max_kvlen()], [most(&seqlens), most(&kvlens)]);
    if let Mode::Paged { page_size } = spec.mode() {
        let starts = step.cachestarts();
        let width = starts.shape()[1];
        assert!(spec.max_pages().is_none_or(|max_pages| max_pages == width), "{width} columns");
        for (entry, [_, rows]) in lengths.iter().enumerate() {
            let behind = (rows.div_ceil(page_size)..width).all(|page| starts[[entry, page]] == -1);
            assert!(behind, "entry {entry} has pages behind its last row: {starts}");
        }
    }
}
