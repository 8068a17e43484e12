//! The roofline for a call's access pattern: the operator's reads and writes without its arithmetic.
//!
//! It reads each line of each row that the operator must read, in token order, and writes as many lines as the operator
//! must write, to the same places. What it writes is what it has just read, so it converts, quantizes and checks
//! nothing.

use std::ops::Range;

use kvcache_kernels::{CacheBytes, Indices, Problem, TensorBytes};
use kvcache_op::Workers;

use crate::line::{self, LINE};
use crate::moved::Moved;
use crate::row_loop::{ANY, RowLoop};

/// The order in which a call's rows are moved; which is fastest depends on layout and machine, so there are several.
#[derive(Debug, Clone, Copy)]
struct Order {
    /// How many tokens of a run are taken together, first their keys and then their values.
    block: usize,
    /// Where heads lie apart: whether all heads of a token come first, or all of a block's tokens of a head.
    by_token: bool,
    /// The prefetch distance in tokens, for reads out of cache.
    ahead: usize,
}

/// All orders, as the driver numbers them: row by row, in blocks, by pages.
const ORDERS: [Order; 3] = [
    Order { block: 1, by_token: true, ahead: 2 },
    Order { block: 16, by_token: false, ahead: 16 },
    Order { block: 128, by_token: true, ahead: 4 },
];

/// What of a call is moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Current tokens to cache and scale.
    Store,
    /// Cache and scale to `key` and `value`.
    Load,
}

/// Moves a phase's bytes on the workers' threads, an equal part of the tokens for each; `stream` is whether whole lines
/// are written with non-temporal stores.
///
/// # Errors
/// If a row is not whole lines, or there is no such order.
pub(crate) fn run(
    problem: &mut Problem<'_>,
    direction: Direction,
    order: usize,
    stream: bool,
    workers: &dyn Workers,
) -> Result<Moved, String> {
    let order = ORDERS.get(order).ok_or_else(|| format!("order: expected 0 to {}, got {order}", ORDERS.len() - 1))?;
    let plan = Plan::new(problem, direction, *order).ok_or("rows of the call are not whole, aligned cache lines")?;
    let tokens = match direction {
        Direction::Store => problem.stores().total_seqlen(),
        Direction::Load => problem.stores().total_kvlen(),
    };
    let threads = workers.threads();
    Ok(Moved::by_threads(workers, |thread| {
        let part = tokens * thread / threads..tokens * (thread + 1) / threads;
        // SAFETY: `&mut Problem` gives this loop its memory; each thread has tokens of its own.
        unsafe { move_tokens(&plan, part, stream) }
    }))
}

/// Moves some tokens with the widest lines that the processor has.
///
/// # Safety
/// The plan's problem is borrowed for as long, and nobody else moves these tokens.
unsafe fn move_tokens(plan: &Plan<'_>, tokens: Range<usize>, stream: bool) -> Moved {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx512bw") {
        // SAFETY: AVX-512BW was detected (AVX-512F is part of it); the tokens are this thread's.
        return unsafe { move_avx512(plan, tokens, stream) };
    }
    // SAFETY: nothing beyond the target's baseline is needed; the tokens are this thread's.
    unsafe { specialized::<false>(plan, tokens, stream) }
}

/// # Safety
/// As for [`move_tokens`], on a processor with AVX-512BW.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn move_avx512(plan: &Plan<'_>, tokens: Range<usize>, stream: bool) -> Moved {
    // SAFETY: the processor has AVX-512BW, and the tokens are this thread's: both this function's conditions.
    unsafe { specialized::<true>(plan, tokens, stream) }
}

/// Chooses the loop that is compiled for the plan's direction, stores and lines in turn.
///
/// # Safety
/// The conditions of [`move_tokens`], and: the processor has AVX-512F if `AVX512`.
#[inline(always)]
unsafe fn specialized<const AVX512: bool>(plan: &Plan<'_>, tokens: Range<usize>, stream: bool) -> Moved {
    // SAFETY: this function's conditions are those of `Plan::move_tokens`.
    unsafe {
        match (plan.direction, plan.turns) {
            (Direction::Load, [1, 1]) => plan.stored::<AVX512, true, 1>(tokens, stream),
            (Direction::Load, [1, 2]) => plan.stored::<AVX512, true, 2>(tokens, stream),
            (Direction::Load, [1, 4]) => plan.stored::<AVX512, true, 4>(tokens, stream),
            (Direction::Load, _) => plan.stored::<AVX512, true, ANY>(tokens, stream),
            (Direction::Store, [1, 1]) => plan.stored::<AVX512, false, 1>(tokens, stream),
            (Direction::Store, _) => plan.stored::<AVX512, false, ANY>(tokens, stream),
        }
    }
}

/// The pieces without gaps that `tokens` neighboring slots of a tensor consist of.
fn pieces_of(bytes: &TensorBytes, tokens: usize, heads: usize) -> Pieces {
    if bytes.head != bytes.head_len {
        Pieces { tokens, heads, heads_each: 1 }
    } else if bytes.token != heads * bytes.head {
        Pieces { tokens, heads: 1, heads_each: heads }
    } else {
        Pieces { tokens: 1, heads: 1, heads_each: tokens * heads }
    }
}

/// How some tokens are divided: pieces along tokens and along heads, and the heads in each.
#[derive(Debug, Clone, Copy)]
struct Pieces {
    tokens: usize,
    heads: usize,
    heads_each: usize,
}

/// A problem and a direction, as bytes.
struct Plan<'a> {
    indices: Indices<'a>,
    direction: Direction,
    batch: usize,
    heads: usize,
    bytes: CacheBytes,
    /// Cache and scale.
    held: [*mut u8; 2],
    /// Current tokens, or `key` and `value`.
    values: [*mut u8; 2],
    /// Bytes of a head there, in all its copies.
    value_head: usize,
    /// Lines that are read, and lines that are written, in turn.
    turns: [usize; 2],
    /// How many such turns a head takes.
    steps: usize,
    order: Order,
}

// SAFETY: threads move tokens of their own, and the problem is mutably borrowed meanwhile.
unsafe impl Sync for Plan<'_> {}

impl<'a> Plan<'a> {
    fn new(problem: &Problem<'a>, direction: Direction, order: Order) -> Option<Self> {
        let (stores, outputs) = (problem.stores(), problem.outputs());
        let (geometry, pointers) = (stores.geometry(), stores.pointers());
        let bytes = CacheBytes::new(geometry);
        let (values, copies) = match direction {
            Direction::Store => (pointers.current.map(<*const u8>::cast_mut), 1),
            Direction::Load => (outputs.pointers, outputs.num_repeat),
        };
        let value_head = geometry.head_dim * copies * geometry.t1.bits() / 8;
        let lines = |len: usize| len != 0 && len.is_multiple_of(LINE);
        let aligned = [pointers.cache, values[0], values[1]].iter().all(|data| data.align_offset(LINE) == 0);
        let (smaller, larger) = (bytes.cache.head_len.min(value_head), bytes.cache.head_len.max(value_head));
        if !(aligned && lines(smaller) && larger.is_multiple_of(smaller)) {
            return None;
        }
        let turns = match direction {
            Direction::Store => [value_head / smaller, bytes.cache.head_len / smaller],
            Direction::Load => [bytes.cache.head_len / smaller, value_head / smaller],
        };
        Some(Self {
            indices: *stores.indices(),
            direction,
            batch: geometry.batch,
            heads: geometry.num_heads,
            bytes,
            held: [pointers.cache, pointers.scale],
            values,
            value_head,
            turns,
            steps: smaller / LINE,
            order,
        })
    }

    /// Chooses the kind of store.
    ///
    /// # Safety
    /// The conditions of [`move_tokens`](Self::move_tokens).
    #[inline(always)]
    unsafe fn stored<const AVX512: bool, const LOAD: bool, const WRITES: usize>(
        &self,
        tokens: Range<usize>,
        stream: bool,
    ) -> Moved {
        // SAFETY: this function's conditions.
        unsafe {
            match stream {
                true => self.move_tokens::<AVX512, LOAD, true, WRITES>(tokens),
                false => self.move_tokens::<AVX512, LOAD, false, WRITES>(tokens),
            }
        }
    }

    /// The address of a head in the cache (0) or in the scale (1).
    fn at(&self, tensor: usize, slot: usize, kv: usize, h: usize) -> *mut u8 {
        let (cache, scale) = self.bytes.head(slot, kv, h);
        self.held[tensor].wrapping_add([cache, scale][tensor])
    }

    /// Moves some of all packed tokens.
    ///
    /// # Safety
    /// The processor has AVX-512F if `AVX512`, the problem is valid, and nobody else moves these tokens.
    #[inline(always)]
    unsafe fn move_tokens<const AVX512: bool, const LOAD: bool, const STREAM: bool, const WRITES: usize>(
        &self,
        tokens: Range<usize>,
    ) -> Moved {
        let Order { block, ahead: tokens_ahead, .. } = self.order;
        let mut rows = RowLoop::<AVX512, STREAM, WRITES>::new();
        for b in 0..self.batch {
            let sequence = self.indices.sequence(b);
            let (packed, first) = if LOAD { (sequence.all, 0) } else { (sequence.current, sequence.start_pos) };
            let (start, end) = (tokens.start.max(packed.start), tokens.end.min(packed.end));
            if start >= end {
                continue;
            }
            let positions = first + start - packed.start..first + end - packed.start;
            let mut runs = self.indices.addressing.runs(b, positions).peekable();
            while let Some(run) = runs.next() {
                let next = runs.peek().map_or(run.slot, |next| next.slot);
                let values = (packed.start + run.token - first) * self.heads * self.value_head;
                for t in (0..run.len).step_by(block) {
                    let len = block.min(run.len - t);
                    let ahead = if t + tokens_ahead < run.len { run.slot + t + tokens_ahead } else { next };
                    for kv in 0..2 {
                        let values = self.values[kv].wrapping_add(values + t * self.heads * self.value_head);
                        // SAFETY: `t + len <= run.len`, so the block's tokens are among the caller's.
                        unsafe {
                            self.move_block::<AVX512, LOAD, STREAM, WRITES>(
                                &mut rows,
                                run.slot + t,
                                len,
                                kv,
                                ahead,
                                values,
                            )
                        };
                    }
                }
            }
        }
        if STREAM {
            line::fence();
        }
        Moved(rows.read, rows.written, rows.sum.sum())
    }

    /// Moves keys or values of some neighboring tokens, and prefetches those from slot `ahead` on.
    ///
    /// # Safety
    /// As for [`move_tokens`](Self::move_tokens).
    #[inline(always)]
    unsafe fn move_block<const AVX512: bool, const LOAD: bool, const STREAM: bool, const WRITES: usize>(
        &self,
        rows: &mut RowLoop<AVX512, STREAM, WRITES>,
        slot: usize,
        len: usize,
        kv: usize,
        ahead: usize,
        values: *mut u8,
    ) {
        let pieces = pieces_of(&self.bytes.cache, len, self.heads);
        let value_bytes = pieces.heads_each * self.value_head;
        let steps = pieces.heads_each * self.steps;
        let distance = if LOAD {
            self.at(0, ahead, kv, 0) as isize - self.at(0, slot, kv, 0) as isize
        } else {
            (self.order.ahead * self.heads * self.value_head) as isize
        };
        let by_token = self.order.by_token;
        let (outer, inner) = if by_token { (pieces.tokens, pieces.heads) } else { (pieces.heads, pieces.tokens) };
        for i in 0..outer {
            for k in 0..inner {
                let (t, h) = if by_token { (i, k) } else { (k, i) };
                let row = self.at(0, slot + t, kv, h);
                let values = values.wrapping_add((t * pieces.heads + h) * value_bytes);
                let (from, to) = if LOAD { (row, values) } else { (values, row) };
                // SAFETY: `Problem`: slot + t < max_t and h < num_heads; the token is the caller's.
                unsafe { rows.lines(self.turns, steps, from, to, distance) };
            }
        }
        if self.bytes.scale.head_len == 0 {
            return;
        }
        let pieces = pieces_of(&self.bytes.scale, len, self.heads);
        let bytes = pieces.heads_each * self.bytes.scale.head_len;
        let distance = self.at(1, ahead, kv, 0) as isize - self.at(1, slot, kv, 0) as isize;
        for h in 0..pieces.heads {
            for t in 0..pieces.tokens {
                let row = self.at(1, slot + t, kv, h);
                // SAFETY: `Problem`: slot + t < max_t and h < num_heads; the token is the caller's.
                unsafe {
                    if LOAD {
                        rows.read(row, bytes, distance);
                    } else {
                        rows.write(row, bytes);
                    }
                }
            }
        }
    }
}
