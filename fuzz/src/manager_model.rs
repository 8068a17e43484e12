//! What sequences must have after each operation: a model of lists, without pages, cells, runs and sharing.

use std::ops::Range;

use kvcache_manager::{CacheSpec, KeyForm, Manager, Mode, SeqId, Step};
use xxhash_rust::xxh3::xxh3_64;

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
}

/// The sequences of a manager, in order of their creation.
#[derive(Debug, Clone, Default)]
pub struct Model {
    sequences: Vec<Sequence>,
    /// By tag: a hash of all tokens up to this one, if they are known and follow each other from position 0 on.
    chains: Vec<Option<u64>>,
    /// After a memory has failed, rows are not known.
    pub is_lost: bool,
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
}

/// The rows of a step's sequences.
pub struct Written(Vec<(SeqId, Vec<Row>)>);

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
        self.sequences.push(Sequence { seq, salt: salt.to_vec(), rows: Vec::new() });
    }

    /// A new sequence with the rows of another one.
    pub fn fork(&mut self, src: SeqId, seq: SeqId) {
        let sequence = self.sequences.iter().find(|sequence| sequence.seq == src).cloned();
        self.sequences.push(Sequence { seq, ..sequence.expect("a sequence that was forked") });
    }

    /// The sequence that was loaded from the `index`-th of those that there are.
    pub fn load(&mut self, index: usize, seq: SeqId) {
        self.fork(self.sequences[index].seq, seq);
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

    /// Removes positions of a sequence, or of all; gives how many.
    pub fn remove(&mut self, seq: Option<SeqId>, range: Range<i64>) -> usize {
        let range = normalized(range);
        let mut removed = 0;
        for sequence in self.sequences.iter_mut().filter(|sequence| seq.is_none_or(|seq| sequence.seq == seq)) {
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

    /// Writes the rows of an applied step where its tensors say, as the operator does, then reads all rows of its
    /// sequences there. Gives the rows that these have once it is committed.
    pub fn write(&mut self, step: &Step<'_>, spec: &CacheSpec, appends: &[New], memory: &mut Slots) -> Written {
        let in_cells = spec.mode() == Mode::Cells;
        let cachestarts = step.cachestarts();
        let slot = |entry: usize, row: usize| match spec.mode() {
            Mode::Paged { page_size } => cachestarts[[entry, row / page_size]] as usize + row % page_size,
            _ => cachestarts[[entry]] as usize + row,
        };
        let mut written = Vec::new();
        let mut first = 0;
        for (entry, &append) in step.order().iter().enumerate() {
            let New { seq, len, tokens } = &appends[append as usize];
            let (salt, mut rows) = self.sequence(*seq);
            let cached = if in_cells { 0 } else { step.cached()[entry] as usize };
            let start = rows.len() + cached;
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
                let token = tokens.as_ref().map(|tokens| tokens[i]);
                chain = chain.zip(token).filter(|_| position == row as i64).map(|(chain, token)| child(chain, token));
                let tag = self.chains.len() as u32;
                self.chains.push(chain);
                let at = if in_cells { cachestarts[[0]] as usize + first + i } else { slot(entry, row) };
                memory.contents[at] = Content { tag, rotated: position as i32 };
                expected.push(Expected::Tag(tag));
                rows.push(Row { tag, position });
            }
            first += len - cached;
            written.push((*seq, rows, expected));
        }
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
        Written(written.into_iter().map(|(seq, rows, _)| (seq, rows)).collect())
    }

    /// Sequences have the rows that a step has written, but for those that a window has left behind.
    pub fn commit(&mut self, written: Written, spec: &CacheSpec) {
        for (seq, mut rows) in written.0 {
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
        if !self.is_lost {
            let seqs: Vec<_> = self.sequences.iter().map(|sequence| sequence.seq).collect();
            self.check_as(&seqs, manager.clone(), memory.clone());
        }
    }

    /// The same of a manager with other ids.
    pub fn check_as(&self, seqs: &[SeqId], mut manager: Manager, mut memory: Slots) {
        assert_eq!((manager.stats().sequences, seqs.len()), (self.sequences.len(), self.sequences.len()));
        manager.update(&mut memory).expect("an update in memory that does not fail");
        for (&seq, sequence) in seqs.iter().zip(&self.sequences) {
            let positions: Vec<i64> = manager.positions(seq).expect("a sequence").collect();
            let expected: Vec<i64> = sequence.rows.iter().map(|row| row.position).collect();
            assert_eq!(positions, expected, "positions of {seq:?}");
            for (slot, row) in manager.slots(seq).expect("a sequence").zip(&sequence.rows) {
                let content = memory.contents[slot];
                assert_eq!(content.tag, row.tag, "slot {slot} holds another row");
                let is_rotated =
                    manager.spec().key_form() == KeyForm::Raw || i64::from(content.rotated) == row.position;
                assert!(is_rotated, "slot {slot} is rotated for {}, expected {}", content.rotated, row.position);
            }
        }
    }

    fn sequence(&self, seq: SeqId) -> (Vec<u8>, Vec<Row>) {
        let found = self.sequences.iter().find(|sequence| sequence.seq == seq);
        found.map(|sequence| (sequence.salt.clone(), sequence.rows.clone())).expect("a sequence that is appended to")
    }
}
