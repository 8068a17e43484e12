//! Cuts a call into tasks for threads: queries of one sequence, key heads, and KV splits.
//!
//! ```text
//! for each sequence
//!     for some of its queries                            as many as are worth one pass over the keys
//!         for some key heads                             all, if a token's heads are adjacent; else one
//!             work tile: these query rows, over the keys from the first that the first of them sees, at the border of
//!                        a block, to the last that the last of them sees
//! for each work tile
//!     KV splits of 1024 keys, of which one begins at key 0: those that have some of these keys
//!     task: some of its splits in a row, so many that each thread gets several tasks
//!     several tasks share a reduction: each split's state is kept, and the last task to end merges them in order
//! the tasks with most work first
//! ```
//!
//! How a call is cut decides who computes what, and no bits: a query row's sums are the sums of whole splits, merged in
//! order.

use std::cmp::Reverse;
use std::ops::Range;

use super::generic::rows::BLOCK;

/// Keys in a KV split, the first of which begins at key 0 of a sequence; whole blocks.
pub(super) const KV_SPLIT: usize = 1024;

/// Query rows of one key head that are computed together, at most, unless one query has more.
const MOST_ROWS: usize = 512;

/// Query rows of all key heads that are computed together, at most, unless one key head has more.
const MOST_ROWS_OF_HEADS: usize = 256;

/// Tasks for each thread, so that they end at about the same time.
const TASKS_PER_THREAD: usize = 8;

/// Query rows of a tile from which on the kept states of splits are much memory.
const LARGE_TILE_ROWS: usize = 64;

/// Tasks of such tiles for each thread.
const LARGE_TASKS_PER_THREAD: usize = 4;

/// What reading a key and a value costs, in query rows.
const READING: usize = 4;

/// Queries of one sequence, for some key heads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WorkTile {
    /// The sequence.
    pub(super) b: usize,
    /// Its queries, counted in the sequence.
    pub(super) queries: Range<usize>,
    /// The key heads.
    pub(super) heads: Range<usize>,
    /// The keys that are seen, from the beginning of a block on.
    pub(super) keys: Range<usize>,
    /// All queries of the sequence, times its keys.
    pub(super) work: usize,
    /// How the results of its tasks are merged, if it is several tasks.
    pub(super) reduction: Option<Reduction>,
}

/// The merge of the states that the tasks of a tile leave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reduction {
    /// Its number among the reductions of the call.
    pub(super) index: usize,
    /// The number of tasks.
    pub(super) tasks: usize,
    /// Where the states of the tile's splits begin, in query rows.
    pub(super) first_row: usize,
}

/// Some splits of a tile, or all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Task {
    pub(super) tile: usize,
    pub(super) splits: Range<usize>,
}

/// A call, cut into tasks.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    pub(super) tiles: Vec<WorkTile>,
    /// The largest first.
    pub(super) tasks: Vec<Task>,
    /// The number of tiles that are several tasks.
    pub(super) reductions: usize,
    /// Query rows whose states of splits are kept.
    pub(super) reduction_rows: usize,
    /// Whether it is worth more than one thread.
    pub(super) parallel: bool,
}

/// The sizes of a call, and the threads that it is cut for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub(super) num_kv_heads: usize,
    /// Query heads that share a key head.
    pub(super) group: usize,
    pub(super) head_dim: usize,
    /// Whether the rows of all heads of a token are next to each other, so that one task had better read them all.
    pub(super) heads_are_adjacent: bool,
    /// The threads that the call is cut for.
    pub(super) threads: usize,
    /// What a call costs from which on it is split among them.
    pub(super) parallel_cost: usize,
}

impl WorkTile {
    /// Query rows of one key head.
    pub(super) fn rows(&self, group: usize) -> usize {
        self.queries.len() * group
    }

    /// Its KV splits, counted in the sequence.
    pub(super) fn splits(&self) -> Range<usize> {
        self.keys.start / KV_SPLIT..self.keys.end.div_ceil(KV_SPLIT)
    }

    fn cost(&self, size: &Size, keys: usize) -> usize {
        keys * size.head_dim * self.heads.len() * (self.rows(size.group) + READING)
    }
}

impl Schedule {
    /// Cuts the call of these sequences: of each its queries and, by query, the keys that it sees.
    pub(super) fn new(
        size: Size,
        batch: impl Iterator<Item = (usize, usize)>,
        visible: impl Fn(usize, usize) -> Range<usize>,
    ) -> Self {
        let mut schedule = Self::default();
        let Size { num_kv_heads, group, heads_are_adjacent, threads, .. } = size;
        let most_queries = (MOST_ROWS / group).max(1);
        for (b, queries) in batch {
            let work = queries * queries.checked_sub(1).map_or(0, |last| visible(b, last).len());
            for first in (0..queries).step_by(most_queries) {
                let queries = first..queries.min(first + most_queries);
                let heads = match heads_are_adjacent {
                    true => (MOST_ROWS_OF_HEADS / (queries.len() * group)).clamp(1, num_kv_heads),
                    false => 1,
                };
                let keys = visible(b, first).start / BLOCK * BLOCK..visible(b, queries.end - 1).end;
                for head in (0..num_kv_heads).step_by(heads) {
                    let heads = head..num_kv_heads.min(head + heads);
                    let (queries, keys) = (queries.clone(), keys.clone());
                    schedule.tiles.push(WorkTile { b, queries, heads, keys, work, reduction: None });
                }
            }
        }
        let cost: usize = schedule.tiles.iter().map(|tile| tile.cost(&size, tile.keys.len())).sum();
        schedule.parallel = threads > 1 && cost >= size.parallel_cost;
        for (i, tile) in schedule.tiles.iter_mut().enumerate() {
            let splits = tile.splits();
            let per_thread = if tile.rows(group) < LARGE_TILE_ROWS { TASKS_PER_THREAD } else { LARGE_TASKS_PER_THREAD };
            let most = if schedule.parallel { cost / (threads * per_thread) } else { usize::MAX };
            let at_once = most.div_ceil(tile.cost(&size, KV_SPLIT).max(1)).clamp(1, splits.len().max(1));
            if at_once < splits.len() {
                let tasks = splits.len().div_ceil(at_once);
                let rows = splits.len() * tile.rows(group) * tile.heads.len();
                tile.reduction =
                    Some(Reduction { index: schedule.reductions, tasks, first_row: schedule.reduction_rows });
                schedule.reductions += 1;
                schedule.reduction_rows += rows;
            }
            let firsts = (splits.start..splits.end.max(splits.start + 1)).step_by(at_once);
            schedule.tasks.extend(firsts.map(|first| Task { tile: i, splits: first..splits.end.min(first + at_once) }));
        }
        if cost >= size.parallel_cost {
            // Sequences with more work first, so that what is left at the end is little; key head by key head, whose
            // keys and values may then still be in a cache; the queries that see most first.
            let tiles = &schedule.tiles;
            schedule.tasks.sort_by_key(|task| {
                let WorkTile { b, ref queries, ref heads, work, .. } = tiles[task.tile];
                (Reverse(work), b, heads.start, Reverse(queries.start), task.splits.start)
            });
        }
        schedule
    }
}
