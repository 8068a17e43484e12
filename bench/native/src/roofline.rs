//! The roofline for a call's access pattern: the operator's reads and writes without its arithmetic.
//!
//! It reads each line of each row that the operator must read, in token order, and writes as many lines as the operator
//! must write, to the same places. What it writes is what it has just read, so it converts, quantizes and checks
//! nothing.

use std::ops::Range;

use kvcache_kernels::{Geometry, Indices, Pointers, Problem};
use kvcache_op::{ElementType, Workers};

use crate::line::{LINE, Line};
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
        Direction::Store => problem.total_seqlen(),
        Direction::Load => problem.total_kvlen(),
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
    // SAFETY: `Widest` needs nothing beyond the target's baseline; the tokens are this thread's.
    unsafe { specialized::<crate::line::Widest>(plan, tokens, stream) }
}

/// # Safety
/// As for [`move_tokens`], on a processor with AVX-512BW.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn move_avx512(plan: &Plan<'_>, tokens: Range<usize>, stream: bool) -> Moved {
    // SAFETY: the processor has AVX-512BW, and the tokens are this thread's: both this function's conditions.
    unsafe { specialized::<crate::line::Avx512>(plan, tokens, stream) }
}

/// Chooses the loop that is compiled for the plan's direction, stores and lines in turn.
///
/// # Safety
/// As for [`move_tokens`], on a processor with the line's instructions.
#[inline(always)]
unsafe fn specialized<L: Line>(plan: &Plan<'_>, tokens: Range<usize>, stream: bool) -> Moved {
    // SAFETY: this function's conditions are those of `Plan::move_tokens`.
    unsafe {
        match (plan.direction, stream, plan.turns) {
            (Direction::Load, true, [1, 1]) => plan.move_tokens::<L, true, true, 1>(tokens),
            (Direction::Load, true, [1, 2]) => plan.move_tokens::<L, true, true, 2>(tokens),
            (Direction::Load, true, [1, 4]) => plan.move_tokens::<L, true, true, 4>(tokens),
            (Direction::Load, true, _) => plan.move_tokens::<L, true, true, ANY>(tokens),
            (Direction::Load, false, [1, 1]) => plan.move_tokens::<L, true, false, 1>(tokens),
            (Direction::Load, false, [1, 2]) => plan.move_tokens::<L, true, false, 2>(tokens),
            (Direction::Load, false, [1, 4]) => plan.move_tokens::<L, true, false, 4>(tokens),
            (Direction::Load, false, _) => plan.move_tokens::<L, true, false, ANY>(tokens),
            (Direction::Store, true, [1, 1]) => plan.move_tokens::<L, false, true, 1>(tokens),
            (Direction::Store, true, _) => plan.move_tokens::<L, false, true, ANY>(tokens),
            (Direction::Store, false, [1, 1]) => plan.move_tokens::<L, false, false, 1>(tokens),
            (Direction::Store, false, _) => plan.move_tokens::<L, false, false, ANY>(tokens),
        }
    }
}

/// Where a tensor's heads lie in memory.
#[derive(Debug, Clone, Copy)]
struct Heads {
    data: *mut u8,
    /// Bytes of a head.
    head: usize,
    /// Bytes from token to token, from keys to values and from head to head.
    steps: [usize; 3],
    /// Where the layer begins.
    start: usize,
}

impl Heads {
    fn at(&self, slot: usize, kv: usize, h: usize) -> *mut u8 {
        self.data.wrapping_add(self.start + slot * self.steps[0] + kv * self.steps[1] + h * self.steps[2])
    }

    /// The pieces without gaps that `tokens` neighboring slots consist of.
    fn pieces(&self, tokens: usize, heads: usize) -> Pieces {
        if self.steps[2] != self.head {
            Pieces { tokens, heads, heads_each: 1 }
        } else if self.steps[0] != heads * self.head {
            Pieces { tokens, heads: 1, heads_each: heads }
        } else {
            Pieces { tokens: 1, heads: 1, heads_each: tokens * heads }
        }
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
    cache: Heads,
    scale: Option<Heads>,
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
        let (geometry, pointers) = (problem.geometry(), problem.pointers());
        let Geometry { head_dim, num_repeat, layer_idx, quant, .. } = *geometry;
        let bytes = |element: ElementType, len: usize| len * element.bits() / 8;
        let place = |data, element, len: usize, strides: [usize; 4]| Heads {
            data,
            head: bytes(element, len),
            steps: [strides[0], strides[1], strides[2]].map(|stride| bytes(element, stride)),
            start: bytes(element, strides[3] * layer_idx),
        };
        let cache = place(
            pointers.cache,
            geometry.t2,
            head_dim,
            [geometry.cache.token, geometry.cache.kv, geometry.cache.head, geometry.cache.layer],
        );
        let scale = quant.map(|quant| {
            let strides = [quant.scale.token, quant.scale.kv, quant.scale.head, quant.scale.layer];
            place(pointers.scale, quant.t3, head_dim / quant.group, strides)
        });
        let Pointers { current, outputs, .. } = pointers;
        let (values, copies) = match direction {
            Direction::Store => (current.map(<*const u8>::cast_mut), 1),
            Direction::Load => (outputs, num_repeat),
        };
        let value_head = bytes(geometry.t1, head_dim * copies);
        let lines = |bytes: usize| bytes != 0 && bytes.is_multiple_of(LINE);
        let aligned = [pointers.cache, values[0], values[1]].iter().all(|data| data.align_offset(LINE) == 0);
        let (smaller, larger) = (cache.head.min(value_head), cache.head.max(value_head));
        if !(aligned && lines(smaller) && larger.is_multiple_of(smaller)) {
            return None;
        }
        let turns = match direction {
            Direction::Store => [value_head / smaller, cache.head / smaller],
            Direction::Load => [cache.head / smaller, value_head / smaller],
        };
        Some(Self {
            indices: *problem.indices(),
            direction,
            batch: geometry.batch,
            heads: geometry.num_heads,
            cache,
            scale,
            values,
            value_head,
            turns,
            steps: smaller / LINE,
            order,
        })
    }

    /// Moves some of all packed tokens.
    ///
    /// # Safety
    /// The processor has the line's instructions, the problem is valid, and nobody else moves these tokens.
    #[inline(always)]
    unsafe fn move_tokens<L: Line, const LOAD: bool, const STREAM: bool, const WRITES: usize>(
        &self,
        tokens: Range<usize>,
    ) -> Moved {
        let Order { block, ahead: tokens_ahead, .. } = self.order;
        let mut rows = RowLoop::<L, STREAM, WRITES> { sum: L::zero(), last: L::zero(), read: 0, written: 0 };
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
                            self.move_block::<L, LOAD, STREAM, WRITES>(&mut rows, run.slot + t, len, kv, ahead, values)
                        };
                    }
                }
            }
        }
        if STREAM {
            L::fence();
        }
        Moved { read: rows.read, written: rows.written, sum: rows.sum.sum().into() }
    }

    /// Moves keys or values of some neighboring tokens, and prefetches those from slot `ahead` on.
    ///
    /// # Safety
    /// As for [`move_tokens`](Self::move_tokens).
    #[inline(always)]
    unsafe fn move_block<L: Line, const LOAD: bool, const STREAM: bool, const WRITES: usize>(
        &self,
        rows: &mut RowLoop<L, STREAM, WRITES>,
        slot: usize,
        len: usize,
        kv: usize,
        ahead: usize,
        values: *mut u8,
    ) {
        let pieces = self.cache.pieces(len, self.heads);
        let value_bytes = pieces.heads_each * self.value_head;
        let steps = pieces.heads_each * self.steps;
        let distance = if LOAD {
            self.cache.at(ahead, kv, 0) as isize - self.cache.at(slot, kv, 0) as isize
        } else {
            (self.order.ahead * self.heads * self.value_head) as isize
        };
        let by_token = self.order.by_token;
        let (outer, inner) = if by_token { (pieces.tokens, pieces.heads) } else { (pieces.heads, pieces.tokens) };
        for i in 0..outer {
            for k in 0..inner {
                let (t, h) = if by_token { (i, k) } else { (k, i) };
                let row = self.cache.at(slot + t, kv, h);
                let values = values.wrapping_add((t * pieces.heads + h) * value_bytes);
                let (from, to) = if LOAD { (row, values) } else { (values, row) };
                // SAFETY: `Problem`: slot + t < max_t and h < num_heads; the token is the caller's.
                unsafe { rows.lines(self.turns, steps, from, to, distance) };
            }
        }
        let Some(scale) = &self.scale else { return };
        let pieces = scale.pieces(len, self.heads);
        let bytes = pieces.heads_each * scale.head;
        let distance = scale.at(ahead, kv, 0) as isize - scale.at(slot, kv, 0) as isize;
        for h in 0..pieces.heads {
            for t in 0..pieces.tokens {
                let row = scale.at(slot + t, kv, h);
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
