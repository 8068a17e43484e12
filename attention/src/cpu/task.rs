//! One task of a call: some query rows over some pieces of keys.

use std::mem::swap;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::block::attend_block;
use super::block_rows::{BlockMemory, BlockRows, MANY_ROWS, Queries, State};
use super::generic::merge::{Result, Row};
use super::generic::query_row::QueryRow;
use super::generic::rows::BLOCK;
use super::operands::Call;
use super::prompt::attend_many_rows;
use super::schedule::{PIECE, Split, Task, Unit};
use super::scratch;
use super::source::Offsets;

/// What the tasks of a call share.
pub(super) struct Shared<'a> {
    pub(super) units: &'a [Unit],
    /// For each split unit, how many of its tasks have ended.
    pub(super) ended: &'a [AtomicUsize],
    /// The states of pieces of split units, one row after the other.
    pub(super) states: *mut f32,
}

// SAFETY: the states of a piece are written by its task alone, and read by the last of its unit's tasks, after the
// others have ended.
unsafe impl Sync for Shared<'_> {}

/// Numbers in the state of one query row that is kept by itself.
pub(super) fn state_len(call: &Call<'_>) -> usize {
    State::len(1, call.width)
}

/// Runs a task.
///
/// # Safety
/// The instruction set is supported. Each task of a schedule is run once; `shared` is that of the schedule.
pub(super) unsafe fn run(call: &Call<'_>, task: &Task, shared: &Shared<'_>) {
    let unit = &shared.units[task.unit];
    let rows = unit.rows(call.group());
    let all_rows = rows * unit.heads.len();
    let (state_len, query_len) = (State::len(all_rows, call.width), all_rows * call.width);
    let len = query_len + 2 * state_len + BlockMemory::len(call, rows);
    // A row of one key head after the other.
    let queries: Vec<QueryRow> = unit
        .heads
        .clone()
        .flat_map(|head| unit.queries.clone().map(move |i| (head, i)))
        .flat_map(|(head, i)| (0..call.group()).map(move |g| call.query_row(unit.b, i, head * call.group() + g)))
        .collect();
    scratch::of_thread(len, |memory| {
        let total = State::new(memory, all_rows, call.width);
        let piece_state = State::new(memory.wrapping_add(state_len), all_rows, call.width);
        let query = memory.wrapping_add(2 * state_len);
        // SAFETY: the memory has room for all of these; the rows are those of the problem.
        unsafe {
            let block_memory = BlockMemory::new(query.wrapping_add(query_len), call, rows);
            for (r, row) in queries.iter().enumerate() {
                let to = query.add(r * call.width);
                (call.functions.read_query)(&Row { from: call.query(row), len: call.geometry.head_dim, to });
            }
            total.clear(all_rows);
            for piece in task.pieces.clone() {
                let state = match &unit.split {
                    Some(split) => split_state(call, shared, split, piece * all_rows, all_rows),
                    None if piece == 0 => total,
                    None => piece_state,
                };
                state.clear(all_rows);
                attend_piece(call, unit, &queries, query, state, block_memory, piece);
                if unit.split.is_none() && piece > 0 {
                    merge(call, total, state, all_rows);
                }
            }
            if let Some(split) = &unit.split {
                // The states are written before this, and read after the last.
                if shared.ended[split.index].fetch_add(1, Ordering::AcqRel) + 1 < split.tasks {
                    return;
                }
                for piece in 0..unit.pieces() {
                    merge(call, total, split_state(call, shared, split, piece * all_rows, all_rows), all_rows);
                }
            }
            for (r, row) in queries.iter().enumerate() {
                let sums = total.row(r).sums();
                let len = call.geometry.head_dim;
                let weights = (call.functions.finish)(&Result { sums, output: call.output(row), len });
                call.keep_total(row, [*sums.max, weights]);
            }
        }
    });
}

/// The state of `rows` query rows of a split unit from `row` on, counted from its first piece's first.
fn split_state(call: &Call<'_>, shared: &Shared<'_>, split: &Split, row: usize, rows: usize) -> State {
    let memory = shared.states.wrapping_add((split.first_row + row) * state_len(call));
    State::new(memory, rows, call.width)
}

/// Adds the keys of a piece to the state of all query rows of a unit.
///
/// # Safety
/// The conditions of [`run`]; query, state and memory are those of the query rows.
unsafe fn attend_piece(
    call: &Call<'_>,
    unit: &Unit,
    queries: &[QueryRow],
    query: *const f32,
    state: State,
    memory: BlockMemory,
    piece: usize,
) {
    let rows = unit.rows(call.group());
    let block = |first: usize| first..unit.keys.min(first + BLOCK);
    let first = piece * PIECE;
    // Those of the block, and of the next, if there is one.
    let (mut offsets, mut next_offsets) = (&mut Offsets::default(), &mut Offsets::default());
    call.source.offsets(unit.b, block(first), next_offsets);
    for first in (first..unit.keys.min(first + PIECE)).step_by(BLOCK) {
        swap(&mut offsets, &mut next_offsets);
        let next = first + BLOCK;
        call.source.offsets(unit.b, block(if next < unit.keys { next } else { first }), next_offsets);
        for (i, head) in unit.heads.clone().enumerate() {
            let row = i * rows;
            let queries = Queries {
                rows: &queries[row..][..rows],
                query: query.wrapping_add(row * call.width),
                state: state.row(row),
            };
            let here = BlockRows { head, heads: &unit.heads, offsets, next_offsets };
            let next = match head + 1 {
                head if head < unit.heads.end => BlockRows { head, ..here },
                _ => BlockRows { head: unit.heads.start, offsets: next_offsets, ..here },
            };
            let attend = if rows < MANY_ROWS { attend_block } else { attend_many_rows };
            // SAFETY: see `# Safety`; the block is one of the piece, and the offsets are its own.
            unsafe { attend(call, &queries, block(first), [here, next], memory) }
        }
    }
}

/// Merges the state of query rows over one piece into that over the pieces before.
///
/// # Safety
/// The conditions of [`run`]; the states are those of so many rows.
unsafe fn merge(call: &Call<'_>, total: State, piece: State, rows: usize) {
    for r in 0..rows {
        // SAFETY: see `# Safety`.
        unsafe { (call.functions.merge)(&[total.row(r).sums(), piece.row(r).sums()]) }
    }
}
