//! One task of a call: some query rows over some KV splits.
//!
//! ```text
//! read the queries as float32
//! for each KV split of the task
//!     for each block of 64 keys
//!         for each key head of the tile: scores, softmax, PV products   (decode, prefill)
//!     merge the split's state, or keep it for the reduction
//! the last task of a reduction merges all kept states, in order
//! add the sinks, divide by the sums of weights and write the output rows
//! ```

use std::mem::swap;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::attention_args::AttentionArgs;
use super::block_rows::{BlockMemory, BlockRows, PREFILL_ROWS, Queries, SoftmaxState};
use super::decode::attend_decode;
use super::generic::merge::OutputRow;
use super::generic::rows::BLOCK;
use super::generic::softmax::QueryRow;
use super::prefill::attend_prefill;
use super::schedule::{KV_SPLIT, Reduction, Task, WorkTile};
use super::scratch;
use super::source::Offsets;

/// What the tasks of a call share.
pub(super) struct Shared<'a> {
    pub(super) tiles: &'a [WorkTile],
    /// For each reduction, how many of its tasks have ended.
    pub(super) ended: &'a [AtomicUsize],
    /// The kept states of splits, one row after the other.
    pub(super) states: *mut f32,
}

// SAFETY: the states of a split are written by its task alone, and read by the last of its tile's tasks, after the
// others have ended.
unsafe impl Sync for Shared<'_> {}

/// Numbers in the state of one query row that is kept by itself.
pub(super) fn state_len(args: &AttentionArgs<'_>) -> usize {
    SoftmaxState::len(1, args.width)
}

/// Runs a task.
///
/// # Safety
/// The instruction set is supported. Each task of a schedule is run once; `shared` belongs to the schedule.
pub(super) unsafe fn run(args: &AttentionArgs<'_>, task: &Task, shared: &Shared<'_>) {
    let tile = &shared.tiles[task.tile];
    let rows = tile.rows(args.group());
    let all_rows = rows * tile.heads.len();
    let (state_len, query_len) = (SoftmaxState::len(all_rows, args.width), all_rows * args.width);
    let len = query_len + 2 * state_len + BlockMemory::len(args, rows);
    // A row of one key head after the other.
    let queries: Vec<QueryRow> = tile
        .heads
        .clone()
        .flat_map(|head| tile.queries.clone().map(move |i| (head, i)))
        .flat_map(|(head, i)| (0..args.group()).map(move |g| args.query_row(tile.b, i, head * args.group() + g)))
        .collect();
    scratch::for_thread(len, |memory| {
        let total = SoftmaxState::new(memory, all_rows, args.width);
        let split_state = SoftmaxState::new(memory.wrapping_add(state_len), all_rows, args.width);
        let query = memory.wrapping_add(2 * state_len);
        // SAFETY: the memory has room for all of these; the rows belong to the problem.
        unsafe {
            let block_memory = BlockMemory::new(query.wrapping_add(query_len), args, rows);
            for (r, row) in queries.iter().enumerate() {
                args.read_query(row, query.add(r * args.width));
            }
            total.clear(all_rows);
            let first = tile.splits().start;
            for split in task.splits.clone() {
                let state = match &tile.reduction {
                    Some(reduction) => reduction_state(args, shared, reduction, (split - first) * all_rows, all_rows),
                    None if split == first => total,
                    None => split_state,
                };
                state.clear(all_rows);
                attend_split(args, tile, &queries, query, state, block_memory, split);
                if tile.reduction.is_none() && split > first {
                    merge(args, total, state, all_rows);
                }
            }
            if let Some(reduction) = &tile.reduction {
                // The states are written before this, and read after the last.
                if shared.ended[reduction.index].fetch_add(1, Ordering::AcqRel) + 1 < reduction.tasks {
                    return;
                }
                for split in 0..tile.splits().len() {
                    merge(args, total, reduction_state(args, shared, reduction, split * all_rows, all_rows), all_rows);
                }
            }
            for (r, row) in queries.iter().enumerate() {
                add_sink(args, row, total.row(r), split_state);
                let sums = total.row(r).accumulator();
                let len = args.geometry.head_dim;
                let weights = (args.functions.finish)(&OutputRow { sums, output: args.output(row), len });
                args.keep_total(row, [*sums.max, weights]);
            }
        }
    });
}

/// The kept state of `rows` query rows from `row` on, counted from the first row of the tile's first split.
fn reduction_state(
    args: &AttentionArgs<'_>,
    shared: &Shared<'_>,
    reduction: &Reduction,
    row: usize,
    rows: usize,
) -> SoftmaxState {
    let memory = shared.states.wrapping_add((reduction.first_row + row) * state_len(args));
    SoftmaxState::new(memory, rows, args.width)
}

/// Adds the keys of a split to the state of all query rows of a tile.
///
/// # Safety
/// The conditions of [`run`] hold; query, state and memory belong to the query rows.
unsafe fn attend_split(
    args: &AttentionArgs<'_>,
    tile: &WorkTile,
    queries: &[QueryRow],
    query: *const f32,
    state: SoftmaxState,
    memory: BlockMemory,
    split: usize,
) {
    let rows = tile.rows(args.group());
    let block = |first: usize| first..tile.keys.end.min(first + BLOCK);
    let end = tile.keys.end.min((split + 1) * KV_SPLIT);
    let first = tile.keys.start.max(split * KV_SPLIT);
    // Of this block, and of the next block, if there is one.
    let (mut offsets, mut next_offsets) = (&mut Offsets::default(), &mut Offsets::default());
    args.source.offsets(tile.b, block(first), next_offsets);
    for first in (first..end).step_by(BLOCK) {
        swap(&mut offsets, &mut next_offsets);
        let next = first + BLOCK;
        args.source.offsets(tile.b, block(if next < tile.keys.end { next } else { first }), next_offsets);
        for (i, head) in tile.heads.clone().enumerate() {
            let row = i * rows;
            let queries = Queries {
                rows: &queries[row..][..rows],
                query: query.wrapping_add(row * args.width),
                state: state.row(row),
            };
            let here = BlockRows { head, heads: &tile.heads, offsets, next_offsets };
            let next = match head + 1 {
                head if head < tile.heads.end => BlockRows { head, ..here },
                _ => BlockRows { head: tile.heads.start, offsets: next_offsets, ..here },
            };
            let attend = if rows < PREFILL_ROWS { attend_decode } else { attend_prefill };
            // SAFETY: see `# Safety`; the block is one of the split, and the offsets are its own.
            unsafe { attend(args, &queries, block(first), [here, next], memory) }
        }
    }
}

/// Adds the sink of a row, if it has one, to the sums over all keys: one more key, whose value is 0. A row that has
/// seen no key gets none.
///
/// # Safety
/// The conditions of [`run`] hold; the states have room for a row, and `sink` holds nothing that is still needed.
unsafe fn add_sink(args: &AttentionArgs<'_>, row: &QueryRow, total: SoftmaxState, sink: SoftmaxState) {
    // SAFETY: see `# Safety`.
    unsafe {
        if row.sink != f32::NEG_INFINITY && *total.max != f32::NEG_INFINITY {
            sink.clear(1);
            (*sink.max, *sink.weights) = (row.sink, 1.0);
            merge(args, total, sink, 1);
        }
    }
}

/// Merges the state of query rows over one split into that over the splits before.
///
/// # Safety
/// The conditions of [`run`] hold; the states have that many rows.
unsafe fn merge(args: &AttentionArgs<'_>, total: SoftmaxState, split: SoftmaxState, rows: usize) {
    for r in 0..rows {
        // SAFETY: see `# Safety`.
        unsafe { (args.functions.merge)(&[total.row(r).accumulator(), split.row(r).accumulator()]) }
    }
}
