//! The rules of the specification on plain vectors: what every operation makes of the sequences, and why it must be
//! refused. Slots, pages and sharing do not exist here.

use kvcache_manager::MAX_POSITION;

use crate::manager::memory::Tag;

/// A row: its position, the position that its key is rotated for, and what a cache has of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row {
    pub pos: i64,
    pub rot: i64,
    pub tag: Tag,
}

#[derive(Debug, Clone, Default)]
pub struct Sequence {
    pub salt: u8,
    pub rows: Vec<Row>,
    /// The tokens of the leading rows, as far as they are known and positions are rows.
    pub tokens: Vec<u32>,
    /// The fewest and the most updates that can count as having turned its rows.
    pub shifts: (u32, u32),
    /// The largest position of a row that the window took.
    pub gone: Option<i64>,
    /// Whether `gone` may be another one: positions were edited since.
    pub gone_unknown: bool,
    /// The first rows, whose pages are gone: a window that keeps rows has passed them.
    pub passed: usize,
}

/// A window: its width, the rows kept in front, and those kept after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    pub width: usize,
    pub sink: usize,
    pub slack: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    /// Rows that a window takes at once: a page's, or one.
    pub page_size: usize,
    pub window: Option<Window>,
    pub keep_rows: bool,
    /// Keys are rotated after the operator.
    pub raw: bool,
    pub has_rope: bool,
    pub shift_limit: Option<u32>,
}

/// All sequences, in order of creation.
#[derive(Debug, Clone)]
pub struct Model {
    pub rules: Rules,
    pub seqs: Vec<Sequence>,
}

pub struct Edit {
    pub after: Model,
    pub result: i64,
    /// If there are any, it must be refused for one of these reasons.
    pub must: Vec<&'static str>,
    pub may: Vec<&'static str>,
}

#[derive(Debug, Clone, Copy)]
pub struct Context {
    pub n_ctx: i64,
    pub n_new: i64,
    pub n_keep: i64,
    pub n_discard: Option<i64>,
}

/// A range of positions as the specification reads it.
pub fn range(p0: i64, p1: i64) -> std::ops::Range<i64> {
    p0.max(0)..if p1 < 0 { i64::MAX } else { p1 }
}

impl Sequence {
    pub fn next(&self) -> i64 {
        self.rows.last().map_or(0, |row| row.pos + 1)
    }

    /// The tokens of an append, if they follow known ones and their positions are rows.
    pub fn known<'a>(&self, tokens: Option<&'a [u32]>, first: i64) -> Option<&'a [u32]> {
        tokens.filter(|_| self.tokens.len() == self.rows.len() && first == self.rows.len() as i64)
    }

    /// The rows that have slots of their own.
    pub fn kept(&self) -> &[Row] {
        &self.rows[self.passed..]
    }

    fn ordered(&self) -> bool {
        self.rows.windows(2).all(|pair| pair[0].pos <= pair[1].pos)
    }

    /// Keeps some rows; tokens are known up to the first that goes.
    fn retain(&mut self, mut keep: impl FnMut(usize, &Row) -> bool) -> usize {
        let len = self.rows.len();
        let mut kept = (0..).zip(&self.rows).map(|(i, row)| keep(i, row)).collect::<Vec<_>>().into_iter();
        let first = kept.clone().position(|keep| !keep).unwrap_or(len);
        self.tokens.truncate(first);
        self.rows.retain(|_| kept.next().unwrap());
        if self.rows.is_empty() {
            self.shifts.0 = 0;
            (self.gone, self.gone_unknown, self.passed) = (None, false, 0);
        }
        len - self.rows.len()
    }
}

impl Model {
    fn edit(&self) -> Edit {
        Edit { after: self.clone(), result: 0, must: vec![], may: vec![] }
    }

    pub fn rm(&self, seq: Option<usize>, p0: i64, p1: i64) -> Edit {
        let (mut edit, range) = (self.edit(), range(p0, p1));
        for (i, sequence) in edit.after.seqs.iter_mut().enumerate() {
            if seq.is_some_and(|seq| seq != i) {
                continue;
            }
            let tail = range.start > 0 && sequence.rows.last().is_some_and(|row| range.contains(&row.pos));
            let is_last = sequence.rows.last().is_some_and(|row| range.contains(&row.pos));
            if sequence.passed > 0 && !is_last && sequence.rows.iter().any(|row| range.contains(&row.pos)) {
                edit.must.push("not_shiftable");
            }
            if let (true, Some(window)) = (tail, self.rules.window) {
                let gone = sequence.gone.max(sequence.passed.checked_sub(1).map(|row| sequence.rows[row].pos));
                let lost = gone.is_some_and(|gone| gone > range.start - window.width as i64);
                let verdicts = if sequence.gone_unknown { &mut edit.may } else { &mut edit.must };
                if lost || sequence.gone_unknown {
                    verdicts.push("window_lost");
                }
            }
            edit.result += sequence.retain(|_, row| !range.contains(&row.pos)) as i64;
        }
        edit
    }

    pub fn cp(&self, src: usize, dst: usize, p0: i64, p1: i64) -> Edit {
        let (mut edit, range) = (self.edit(), range(p0, p1));
        if src == dst {
            return edit;
        }
        let from = &self.seqs[src];
        let first = from.rows.iter().position(|row| range.contains(&row.pos));
        let rows: Vec<_> = from.rows.iter().filter(|row| range.contains(&row.pos)).copied().collect();
        if !self.seqs[dst].rows.is_empty() {
            if rows.is_empty() { &mut edit.may } else { &mut edit.must }.push("not_empty");
            return edit;
        }
        if from.passed > 0 && rows.len() < from.rows.len() && !range.is_empty() {
            edit.must.push("not_shiftable");
        }
        let to = &mut edit.after.seqs[dst];
        edit.result = rows.len() as i64;
        if first == Some(0) && from.salt == to.salt {
            to.tokens = from.tokens[..rows.len().min(from.tokens.len())].to_vec();
        }
        if !rows.is_empty() {
            to.shifts = (from.shifts.0.min(to.shifts.0), from.shifts.1.max(to.shifts.1));
            (to.gone, to.gone_unknown) = (from.gone, from.gone.is_some() || from.gone_unknown);
            to.passed = from.passed;
        }
        to.rows = rows;
        edit
    }

    /// Changes positions: `moved` gives the new one of each row in the range, none for one that goes.
    fn shift(&self, seq: usize, p0: i64, p1: i64, moved: impl Fn(i64) -> Option<i64>) -> Edit {
        let (mut edit, range) = (self.edit(), range(p0, p1));
        let (raw, limit) = (self.rules.raw, self.rules.shift_limit);
        let sequence = &mut edit.after.seqs[seq];
        let cannot_turn = !raw && !self.rules.has_rope || sequence.passed > 0;
        let new = |row: &Row| if range.contains(&row.pos) { moved(row.pos) } else { Some(row.pos) };
        let known = sequence.rows.iter().position(|row| new(row) != Some(row.pos)).unwrap_or(sequence.rows.len());
        let kept: Vec<Option<i64>> = sequence.rows.iter().map(new).collect();
        let turned = kept.iter().zip(&sequence.rows).any(|(&new, row)| new.is_some_and(|new| new != row.pos));
        if known < sequence.rows.len() && (sequence.gone.is_some() || sequence.gone_unknown) {
            sequence.gone_unknown = true;
        }
        sequence.tokens.truncate(known);
        sequence.retain(|i, _| kept[i].is_some());
        for (row, new) in sequence.rows.iter_mut().zip(kept.into_iter().flatten()) {
            row.pos = new;
            if raw {
                row.rot = new;
            }
        }
        if cannot_turn {
            if turned { &mut edit.must } else { &mut edit.may }.push("not_shiftable");
        }
        if sequence.rows.iter().any(|row| row.pos > MAX_POSITION) {
            edit.must.push("position_overflow");
        }
        if !sequence.ordered() {
            edit.must.push("position_order");
        }
        let pending = sequence.rows.iter().any(|row| row.pos != row.rot);
        if let Some(limit) = limit.filter(|_| !cannot_turn && !raw) {
            if turned && pending && sequence.shifts.0 >= limit {
                edit.must.push("shift_limit");
            } else if sequence.shifts.1 >= limit {
                edit.may.push("shift_limit");
            }
        }
        edit
    }

    pub fn add(&self, seq: usize, p0: i64, p1: i64, delta: i64) -> Edit {
        self.shift(seq, p0, p1, |pos| Some(pos.saturating_add(delta)).filter(|&pos| pos >= 0))
    }

    pub fn div(&self, seq: usize, p0: i64, p1: i64, d: i64) -> Edit {
        let mut edit = self.shift(seq, p0, p1, |pos| Some(pos / d.max(1)));
        if d < 1 {
            edit.must.push("range");
        }
        edit
    }

    pub fn context_shift(&self, seq: usize, context: Context) -> Edit {
        let mut edit = self.edit();
        let Context { n_ctx, n_new, n_keep, n_discard } = context;
        let n_past = self.seqs[seq].next();
        if n_past + n_new < n_ctx {
            return edit;
        }
        let n_discard = n_discard.unwrap_or((n_past - n_keep) / 2);
        if n_discard <= 0 || n_keep >= n_past {
            edit.must.extend(["no_progress", "range"]);
            return edit;
        }
        let (from, to) = (n_keep, n_keep + n_discard);
        let removed = self.rm(Some(seq), from, to);
        if removed.result == 0 {
            // Only a gap between positions is there.
            edit.may.push("no_progress");
        }
        // With no position after what goes, -1 as an end would mean all.
        let added = removed.after.add(seq, to, -1, -n_discard);
        Edit {
            after: added.after,
            result: n_discard,
            must: [removed.must, added.must].concat(),
            may: [edit.may, removed.may, added.may].concat(),
        }
    }

    pub fn keep(&mut self, seq: usize) {
        for (i, sequence) in self.seqs.iter_mut().enumerate() {
            if i != seq {
                sequence.retain(|_, _| false);
            }
        }
    }

    /// Appends rows to a sequence; their tokens only if these follow known ones.
    pub fn append(&mut self, seq: usize, rows: impl IntoIterator<Item = Row>, known: Option<&[u32]>) {
        let sequence = &mut self.seqs[seq];
        sequence.tokens.extend(known.unwrap_or_default());
        sequence.rows.extend(rows);
    }

    /// The part of a sequence that a session keeps: all but which rows its window took.
    pub fn saved(sequence: &Sequence) -> Sequence {
        let gone_unknown = sequence.gone_unknown || sequence.gone.is_some();
        Sequence { gone_unknown, ..sequence.clone() }
    }

    /// Removes the rows that a commit takes from a sequence that was appended to.
    pub fn slide(&mut self, seq: usize) {
        let Some(Window { width, sink, slack }) = self.rules.window else {
            return;
        };
        let (sequence, page_size) = (&mut self.seqs[seq], self.rules.page_size);
        let oldest = sequence.next() - (width + slack) as i64;
        let old = |i: usize, row: &Row| i >= sink && row.pos <= oldest;
        if self.rules.keep_rows {
            let passed = sequence.rows.iter().take_while(|row| row.pos <= oldest).count() / page_size * page_size;
            sequence.passed = sequence.passed.max(passed);
            return;
        }
        let len = sequence.rows.len();
        let mut gone: Vec<bool> = (0..len).map(|i| old(i, &sequence.rows[i])).collect();
        for page in gone.chunks_mut(page_size) {
            let whole = page.len() == page_size && page.iter().all(|&gone| gone);
            page.fill(whole);
        }
        let last = (0..len).rfind(|&i| gone[i]).map(|i| sequence.rows[i].pos);
        sequence.retain(|i, _| !gone[i]);
        sequence.gone = sequence.gone.max(last);
    }

    pub fn drain(&mut self) {
        for sequence in &mut self.seqs {
            let pending = sequence.rows.iter().any(|row| row.pos != row.rot);
            if pending {
                sequence.shifts = (sequence.shifts.0 + 1, sequence.shifts.1 + 1);
            }
            for row in sequence.rows.iter_mut().filter(|row| row.pos != row.rot) {
                (row.tag, row.rot) = (row.tag.rotated(row.pos - row.rot), row.pos);
            }
        }
    }
}

/// The number of a row after known tokens: equal prompts give equal rows.
pub fn number(salt: u8, tokens: &[u32]) -> u64 {
    let mix = |hash: u64, x: u32| (hash ^ u64::from(x)).wrapping_mul(0x0100_0000_01b3).rotate_left(17);
    tokens.iter().fold(0xcbf2_9ce4_8422_2325 + u64::from(salt), |hash, &token| mix(hash, token))
}
