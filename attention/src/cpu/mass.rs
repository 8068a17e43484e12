//! The attention's mass: how much of all queries' weights each key has.
//!
//! Scores are computed a second time, once maxima and sums of weights are final: only calls that ask for mass pay for
//! it. A key's number for a query head is a sum over the queries of its sequence, in their order, which one task adds
//! up.

use std::slice::{from_raw_parts, from_raw_parts_mut};

use super::attention_args::AttentionArgs;
use super::block_rows::{BlockMemory, BlockRows, Queries, SoftmaxState};
use super::decode::qk_packed;
use super::generic::rows::BLOCK;
use super::generic::softmax::QueryRow;
use super::generic::softmax::{MASKED, SUMS, ScoreBlock};
use super::schedule::KV_SPLIT;
use super::scratch;
use super::source::Offsets;
use crate::problem::RaggedRows;

/// Query rows that are computed together, at most, unless one query has more.
const MOST_ROWS: usize = 64;

/// What `attention_mass` is written through: float32, shape (Hq, `kvstarts[B]`), all zeros at first.
pub(super) struct Mass {
    pub(super) data: *mut f32,
    pub(super) total_kvlen: usize,
}

// SAFETY: each element is written by the one task that has its key head and its split of keys.
unsafe impl Sync for Mass {}

/// The mass of a split of the keys of a sequence, of the query heads of a key head.
pub(super) struct MassTask {
    b: usize,
    head: usize,
    split: usize,
}

/// The tasks of a call.
pub(super) fn tasks(args: &AttentionArgs<'_>) -> Vec<MassTask> {
    let splits = |b: usize| 0..args.indices.sequence(b).keys.len().div_ceil(KV_SPLIT);
    let heads = (0..args.geometry.batch).flat_map(|b| (0..args.geometry.num_kv_heads).map(move |head| (b, head)));
    heads.flat_map(|(b, head)| splits(b).map(move |split| MassTask { b, head, split })).collect()
}

/// Runs a task.
///
/// # Safety
/// The instruction set is supported, and the call has all its [totals](AttentionArgs::total). Each task of the call is
/// run once.
pub(super) unsafe fn run(args: &AttentionArgs<'_>, &MassTask { b, head, split }: &MassTask, mass: &Mass) {
    let RaggedRows { queries, keys } = args.indices.sequence(b);
    let (group, width) = (args.group(), args.width);
    let at_once = (MOST_ROWS / group).max(1);
    let most = at_once * group;
    let split = split * KV_SPLIT..keys.len().min((split + 1) * KV_SPLIT);
    let of_head = |g: usize| mass.data.wrapping_add((head * group + g) * mass.total_kvlen + keys.start);
    let mut offsets = Offsets::default();
    scratch::for_thread(SoftmaxState::len(most, 0) + most * width + BlockMemory::len(args, most), |numbers| {
        let state = SoftmaxState::new(numbers, most, 0);
        let query = numbers.wrapping_add(SoftmaxState::len(most, 0));
        // SAFETY: the memory has room for all of these; the rows belong to the problem; the keys of the split have
        // elements of the mass in each query head, which this task alone writes.
        unsafe {
            let memory = BlockMemory::new(query.wrapping_add(most * width), args, most);
            for first in (0..queries.len()).step_by(at_once) {
                let some = first..queries.len().min(first + at_once);
                let rows = some.flat_map(|i| (0..group).map(move |g| (i, head * group + g)));
                let rows: Vec<QueryRow> = rows.map(|(i, h)| args.query_row(b, i, h)).collect();
                for (r, row) in rows.iter().enumerate() {
                    args.read_query(row, query.add(r * width));
                    *state.max.add(r) = args.total(row)[0];
                }
                let seen = rows.last().map_or(0, |row| row.visible).min(split.end);
                let hidden = rows.first().map_or(0, |row| row.hidden) / BLOCK * BLOCK;
                for start in (split.start.max(hidden)..seen).step_by(BLOCK) {
                    let keys = start..split.end.min(start + BLOCK);
                    args.source.offsets(b, keys.clone(), &mut offsets);
                    let (heads, offsets) = (&(head..head + 1), &offsets);
                    let here = BlockRows { head, heads, offsets, next_offsets: offsets };
                    let queries = Queries { rows: &rows, query, state };
                    qk_packed(args, &queries, keys.len().next_multiple_of(SUMS), [here, here], memory);
                    let (scores, rescale) = (memory.weights, memory.rescale);
                    let factor = args.soft_cap(scores, rows.len(), keys.len().next_multiple_of(SUMS));
                    let (max, sums) = (state.max, state.weights);
                    // The maximum is final: weights need no rescaling.
                    (args.functions.softmax)(&ScoreBlock {
                        rows: &rows,
                        keys: keys.clone(),
                        scores,
                        factor,
                        max,
                        sums,
                        rescale,
                    });
                    for (r, row) in rows.iter().enumerate() {
                        let total = args.total(row)[1];
                        let weights = from_raw_parts(scores.add(r * BLOCK), keys.len());
                        let sums = from_raw_parts_mut(of_head(r % group).add(start), keys.len());
                        for (sum, weight) in sums.iter_mut().zip(weights) {
                            *sum += if weight.to_bits() == MASKED.to_bits() { 0.0 } else { weight / total };
                        }
                    }
                }
            }
            for g in 0..group {
                let sums = from_raw_parts_mut(of_head(g).add(split.start), split.len());
                // As in attn_output, what is not a number has one representation.
                sums.iter_mut().filter(|sum| sum.is_nan()).for_each(|sum| *sum = f32::NAN);
            }
        }
    });
}
