//! Cuts a call into tasks for threads: queries of one sequence, key heads, and pieces of keys.
//!
//! How it is cut decides nothing but who computes what: the sums of a query row are those of whole pieces, in order.

use std::cmp::Reverse;
use std::ops::Range;

/// Keys in a piece, the first of which is key 0 of a sequence; whole blocks.
pub(super) const PIECE: usize = 1024;

/// Query rows of one key head that are computed together, at most, unless one query has more.
const MOST_ROWS: usize = 512;

/// Query rows of all key heads that are computed together, at most, unless one key head has more.
const MOST_ROWS_OF_HEADS: usize = 256;

/// Tasks for each thread, so that they end at about the same time.
const TASKS_PER_THREAD: usize = 8;

/// Query rows of a unit from which on states of pieces, kept by themselves, are much memory.
const MANY_ROWS: usize = 64;

/// Tasks of such units for each thread.
const LARGE_TASKS_PER_THREAD: usize = 4;

/// What reading a key and a value costs, in query rows.
const READING: usize = 4;

/// Queries of one sequence, for some key heads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unit {
    /// The sequence.
    pub(super) b: usize,
    /// Its queries, counted in the sequence.
    pub(super) queries: Range<usize>,
    /// The key heads.
    pub(super) heads: Range<usize>,
    /// So many keys are seen, the first ones.
    pub(super) keys: usize,
    /// All queries of the sequence, times its keys.
    pub(super) work: usize,
    /// If it is several tasks: what they share.
    pub(super) split: Option<Split>,
}

/// What the tasks of a unit share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Split {
    /// Its number among the split units.
    pub(super) index: usize,
    /// How many tasks it is.
    pub(super) tasks: usize,
    /// Where the states of its pieces begin, in query rows.
    pub(super) first_row: usize,
}

/// Some pieces of a unit, or all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Task {
    pub(super) unit: usize,
    pub(super) pieces: Range<usize>,
}

/// A call, cut.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    pub(super) units: Vec<Unit>,
    /// The largest first.
    pub(super) tasks: Vec<Task>,
    /// How many units are several tasks.
    pub(super) splits: usize,
    /// Query rows of which states of pieces are kept.
    pub(super) split_rows: usize,
    /// Whether it is worth more than one thread.
    pub(super) parallel: bool,
}

/// What there is to cut.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub(super) num_kv_heads: usize,
    /// Query heads that share a key head.
    pub(super) group: usize,
    pub(super) head_dim: usize,
    /// Whether the rows of all heads of a token are next to each other, so that one task had better read them all.
    pub(super) heads_are_adjacent: bool,
    /// How many threads there are.
    pub(super) threads: usize,
    /// What a call costs from which on it is split among them.
    pub(super) parallel_cost: usize,
}

impl Unit {
    /// Query rows of one key head.
    pub(super) fn rows(&self, group: usize) -> usize {
        self.queries.len() * group
    }

    /// How many pieces its keys are.
    pub(super) fn pieces(&self) -> usize {
        self.keys.div_ceil(PIECE)
    }

    fn cost(&self, size: &Size, keys: usize) -> usize {
        keys * size.head_dim * self.heads.len() * (self.rows(size.group) + READING)
    }
}

impl Schedule {
    /// Cuts the call of these sequences: of each its queries and, by query, how many keys it sees.
    pub(super) fn new(
        size: Size,
        batch: impl Iterator<Item = (usize, usize)>,
        visible: impl Fn(usize, usize) -> usize,
    ) -> Self {
        let mut schedule = Self::default();
        let Size { num_kv_heads, group, heads_are_adjacent, threads, .. } = size;
        let most_queries = (MOST_ROWS / group).max(1);
        for (b, queries) in batch {
            let work = queries * queries.checked_sub(1).map_or(0, |last| visible(b, last));
            for first in (0..queries).step_by(most_queries) {
                let queries = first..queries.min(first + most_queries);
                let heads = match heads_are_adjacent {
                    true => (MOST_ROWS_OF_HEADS / (queries.len() * group)).clamp(1, num_kv_heads),
                    false => 1,
                };
                let keys = visible(b, queries.end - 1);
                for head in (0..num_kv_heads).step_by(heads) {
                    let heads = head..num_kv_heads.min(head + heads);
                    schedule.units.push(Unit { b, queries: queries.clone(), heads, keys, work, split: None });
                }
            }
        }
        let cost: usize = schedule.units.iter().map(|unit| unit.cost(&size, unit.keys)).sum();
        schedule.parallel = threads > 1 && cost >= size.parallel_cost;
        for (i, unit) in schedule.units.iter_mut().enumerate() {
            let pieces = unit.pieces();
            let per_thread = if unit.rows(group) < MANY_ROWS { TASKS_PER_THREAD } else { LARGE_TASKS_PER_THREAD };
            let most = if schedule.parallel { cost / (threads * per_thread) } else { usize::MAX };
            let at_once = most.div_ceil(unit.cost(&size, PIECE).max(1)).clamp(1, pieces.max(1));
            if at_once < pieces {
                let tasks = pieces.div_ceil(at_once);
                let rows = pieces * unit.rows(group) * unit.heads.len();
                unit.split = Some(Split { index: schedule.splits, tasks, first_row: schedule.split_rows });
                schedule.splits += 1;
                schedule.split_rows += rows;
            }
            let firsts = (0..pieces.max(1)).step_by(at_once);
            schedule.tasks.extend(firsts.map(|first| Task { unit: i, pieces: first..pieces.min(first + at_once) }));
        }
        if cost >= size.parallel_cost {
            // Sequences with more work first, so that what is left at the end is little; key head by key head, whose
            // keys and values may then still be in a cache; the queries that see most first.
            let units = &schedule.units;
            schedule.tasks.sort_by_key(|task| {
                let Unit { b, ref queries, ref heads, work, .. } = units[task.unit];
                (Reverse(work), b, heads.start, Reverse(queries.start), task.pieces.start)
            });
        }
        schedule
    }
}
