//! Walks a problem's tokens in rows as long as its layout allows.

use std::ops::Range;

use kvcache_schema::ElementType;

use super::rows::{Block, Row, Rows};
use super::variant::InstructionSet;
use crate::addressing::Run;
use crate::problem::{Geometry, Indices, Pointers, Problem, Quant};

/// A problem in the form that the threads share.
pub(super) struct Walk<'a> {
    geometry: Geometry,
    indices: Indices<'a>,
    pointers: Pointers,
    rows: Rows,
}

// SAFETY: threads read the current tokens, and write disjoint ranges of tokens: in the store phase to slots of which no two
// tokens share one, in the load phase to the outputs while the cache is only read. Problem's conditions keep others away.
unsafe impl Sync for Walk<'_> {}

/// How a run is cut into blocks.
#[derive(Clone, Copy)]
struct Shape {
    /// Tokens of a block.
    tokens: usize,
    /// Strips of a block: heads that lie apart, each with all tokens, or one of everything.
    strips: usize,
    /// Rows of a strip that a token has; none if all tokens are one row.
    rows: Option<usize>,
    /// A row, or a token's part of the one row.
    row: Row,
    /// How many tokens ahead of a block with one strip the prefetched one is.
    ahead: usize,
    /// Whether blocks with one strip follow each other so closely that the processor sees the next one coming.
    neighbours: bool,
    /// Whether what is written goes past the caches.
    stream: bool,
}

/// Bytes of T1 in a row of several tokens that is streamed: few, since keys and values take turns and a row ahead is
/// prefetched with each.
const ROW_BYTES: usize = 4096;

/// Bytes of the cache in a strip that is loaded, if there are several: enough that memory is read in long pieces.
const STRIP_BYTES: usize = 4096;

/// Bytes of T1 in the strips that are quantised together: few, since each goes through all of them again.
const STORED_BYTES: usize = 32 << 10;

/// Bytes of T1 between a block and the one that is prefetched with it, where a layer's tokens are neighbours.
const AHEAD_BYTES: usize = 8192;

/// The same where they lie apart: fewer lines, each from another place, are in flight at once.
const SCATTERED_AHEAD_BYTES: usize = 2048;

/// How many tokens have so many bytes, at least one.
fn tokens_in(block_bytes: usize, token_bytes: usize) -> usize {
    (block_bytes / token_bytes.max(1)).max(1)
}

/// The bytes of `len` elements that are known to fit in memory.
fn bytes(element: ElementType, len: usize) -> usize {
    len * element.bits() / 8
}

impl<'a> Walk<'a> {
    /// The problem with the row functions of an instruction set that this machine has.
    pub(super) fn new(problem: &Problem<'a>, instructions: InstructionSet) -> Self {
        let geometry = *problem.geometry();
        let t3 = geometry.quant.map(|quant| quant.t3);
        Self {
            // SAFETY: a Cpu, the only caller, is made for supported instructions only.
            rows: unsafe { instructions.rows(geometry.t1, geometry.t2, t3) },
            indices: *problem.indices(),
            pointers: problem.pointers(),
            geometry,
        }
    }

    /// Bytes of a token's key and value.
    pub(super) fn value_bytes(&self) -> usize {
        2 * bytes(self.geometry.t1, self.geometry.num_heads * self.geometry.head_dim)
    }

    /// Bytes of a token's key and value in the outputs.
    pub(super) fn output_bytes(&self) -> usize {
        self.value_bytes() * self.geometry.num_repeat
    }

    /// Bytes that a token's key and value take in cache and scale.
    pub(super) fn cache_bytes(&self) -> usize {
        let Geometry { num_heads, head_dim, t2, quant, .. } = self.geometry;
        let len = 2 * num_heads * head_dim;
        bytes(t2, len) + quant.map_or(0, |quant| bytes(quant.t3, len / quant.group))
    }

    /// Stores a range of rows of `current_key` and `current_value`.
    pub(super) fn store(&self, tokens: Range<usize>, stream: bool) {
        let heads_len = self.geometry.num_heads * self.geometry.head_dim;
        // Whole tokens are best, unless a token's part of a strip is too short to be quantised by itself.
        let strip = self.geometry.quant.map_or(1, |_| tokens_in(STORED_BYTES, self.value_bytes() / 2));
        let shape = self.shape(1, strip, stream);
        for (b, part) in parts(self.indices.seqstarts, tokens) {
            let sequence = self.indices.sequence(b);
            let positions = sequence.start_pos + part.start..sequence.start_pos + part.end;
            for run in self.indices.addressing.runs(b, positions) {
                let token = sequence.current.start + run.token - sequence.start_pos;
                let at = self.value_bytes_of(token * heads_len);
                let values = self.pointers.current.map(|current| current.cast_mut().wrapping_add(at));
                self.for_each_block(shape, run, None, values, 1, |block| {
                    // SAFETY: the block lies in the run's tokens and heads, for which Problem promises memory.
                    unsafe { (self.rows.store)(&block) }
                });
            }
        }
        self.fence(stream);
    }

    /// Loads a range of rows of `key` and `value`.
    pub(super) fn load(&self, tokens: Range<usize>, stream: bool) {
        let Geometry { head_dim, t2, num_repeat, .. } = self.geometry;
        let shape = self.shape(num_repeat, tokens_in(STRIP_BYTES, bytes(t2, head_dim)), stream);
        for (b, part) in parts(self.indices.kvstarts, tokens) {
            let start = self.indices.sequence(b).all.start;
            let mut runs = self.indices.addressing.runs(b, part).peekable();
            while let Some(run) = runs.next() {
                let at = (start + run.token) * self.output_bytes() / 2;
                let values = self.pointers.outputs.map(|output| output.wrapping_add(at));
                self.for_each_block(shape, run, runs.peek().copied(), values, num_repeat, |block| {
                    // SAFETY: the block lies in the run's tokens and heads, for which Problem promises memory; its copies
                    // are the next num_repeat - 1 heads of the output.
                    unsafe { (self.rows.load)(&block) }
                });
            }
        }
        self.fence(stream);
    }

    /// Ends a part of a phase: after it, what was streamed is as if it had been written plainly.
    fn fence(&self, stream: bool) {
        if stream {
            (self.rows.fence)();
        }
    }

    /// The bytes of `len` elements of T1.
    fn value_bytes_of(&self, len: usize) -> usize {
        bytes(self.geometry.t1, len)
    }

    /// Where a token's first head lies in cache and scale, in bytes.
    fn cache_at(&self, slot: usize, kv: usize) -> (usize, usize) {
        let Geometry { t2, quant, .. } = self.geometry;
        let scale = quant.map_or(0, |quant| bytes(quant.t3, self.geometry.scale_at(slot, kv, 0)));
        (bytes(t2, self.geometry.cache_at(slot, kv, 0)), scale)
    }

    /// Blocks of the longest rows that the layout allows, for heads that have `num_repeat` copies; of `strip` tokens where
    /// heads lie apart.
    fn shape(&self, num_repeat: usize, strip: usize, stream: bool) -> Shape {
        let Geometry { num_heads, head_dim, t1, cache, quant, .. } = self.geometry;
        let row = |len| match quant {
            Some(Quant { group, .. }) => Row { len, group, groups: len / group },
            None => Row { len, group: 1, groups: len },
        };
        let token_len = num_heads * head_dim;
        let token_bytes = bytes(t1, token_len);
        let whole_tokens = num_heads == 1 || cache.head == head_dim;
        let neighbours = whole_tokens && cache.token <= 2 * token_len;
        let ahead = tokens_in(if neighbours { AHEAD_BYTES } else { SCATTERED_AHEAD_BYTES }, token_bytes);
        let one = Shape { tokens: 1, strips: 1, rows: Some(1), row: row(token_len), ahead, neighbours, stream };
        if !whole_tokens {
            Shape {
                tokens: if cache.token == head_dim { strip } else { 1 },
                strips: num_heads,
                row: row(head_dim),
                ..one
            }
        } else if num_repeat > 1 {
            Shape { rows: Some(num_heads), row: row(head_dim), ..one }
        } else if cache.token == token_len {
            // Plain copies of neighbours are best left to the processor, and in one piece.
            Shape { tokens: if stream { tokens_in(ROW_BYTES, token_bytes) } else { usize::MAX }, rows: None, ..one }
        } else {
            one
        }
    }

    /// Calls `visit` with each block of a run, of which `values` are the first of `copies` copies; `next` follows the run.
    #[inline(always)]
    fn for_each_block(
        &self,
        shape: Shape,
        run: Run,
        next: Option<Run>,
        values: [*mut u8; 2],
        copies: usize,
        visit: impl Fn(Block),
    ) {
        let Geometry { num_heads, head_dim, t2, cache, quant, .. } = self.geometry;
        let head_bytes = self.value_bytes_of(head_dim * copies);
        let token_bytes = num_heads * head_bytes;
        let cache_strip = bytes(t2, cache.head);
        let scale_strip = quant.map_or(0, |quant| bytes(quant.t3, quant.scale.head));
        for t in (0..run.len).step_by(shape.tokens) {
            let tokens = shape.tokens.min(run.len - t);
            let at = [0, 1].map(|kv| self.cache_at(run.slot + t, kv));
            let ahead = if shape.strips > 1 {
                let following = match (t + tokens < run.len, next) {
                    (true, _) => Some(run.slot + t + tokens),
                    (false, next) => next.map(|next| next.slot),
                };
                // The values come after the keys, and keys after the values.
                [Some(at[1]), following.map(|slot| self.cache_at(slot, 0))]
            } else {
                let slot = match (t + shape.ahead, next) {
                    (ahead, _) if ahead < run.len => (shape.stream || !shape.neighbours).then_some(run.slot + ahead),
                    (ahead, Some(next)) => Some(next.slot + (ahead - run.len).min(next.len - 1)),
                    _ => None,
                };
                [0, 1].map(|kv| slot.map(|slot| self.cache_at(slot, kv)))
            };
            for (kv, values) in values.into_iter().enumerate() {
                let (cache_at, scale_at) = at[kv];
                let last = (cache_at + (shape.strips - 1) * cache_strip, scale_at + (shape.strips - 1) * scale_strip);
                visit(Block {
                    strips: shape.strips,
                    rows: shape.rows.map_or(1, |rows| tokens * rows),
                    row: if shape.rows.is_none() { shape.row.times(tokens) } else { shape.row },
                    values: values.wrapping_add(t * token_bytes),
                    values_strip: head_bytes,
                    values_row: if shape.strips > 1 { token_bytes } else { head_bytes },
                    copies,
                    cache: self.pointers.cache.wrapping_add(cache_at),
                    cache_strip,
                    scale: self.pointers.scale.wrapping_add(scale_at),
                    scale_strip,
                    ahead: ahead[kv].map(|to| (to.0 as isize - last.0 as isize, to.1 as isize - last.1 as isize)),
                    stream: shape.stream,
                });
            }
        }
    }
}

/// The sequences that packed tokens belong to, each with its part of them, counted in the sequence.
fn parts(starts: &[i64], tokens: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> {
    let first = starts.partition_point(|&start| start as usize <= tokens.start).saturating_sub(1);
    (first..starts.len() - 1)
        .take_while(move |&b| (starts[b] as usize) < tokens.end)
        .map(move |b| {
            let (start, end) = (starts[b] as usize, starts[b + 1] as usize);
            (b, tokens.start.max(start) - start..tokens.end.min(end).saturating_sub(start))
        })
        .filter(|(_, part)| !part.is_empty())
}
