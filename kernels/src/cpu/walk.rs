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
    /// What its strips are.
    strips: Strips,
    /// Rows of a strip that a token has; none if all tokens are one row.
    rows: Option<usize>,
    /// A row, or a token's part of the one row.
    row: Row,
    /// Whether what is written goes past the caches.
    stream: bool,
}

/// The strips of a block: what lies apart in the cache.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Strips {
    /// Nothing: one strip. The one that is asked for meanwhile is so many tokens further on, if any.
    One(Option<usize>),
    /// The block's tokens, each with all heads.
    Tokens,
    /// Heads, each with all of the block's tokens.
    Heads,
}

/// Bytes of T1 in a row of several tokens that is streamed as it is: enough that keys and values do not take turns too often.
const ROW_BYTES: usize = 16 << 10;

/// The same where it is converted: few, since as much is asked for at once.
const CONVERTED_ROW_BYTES: usize = 2 << 10;

/// Bytes of T1 between what is streamed and what is asked for meanwhile, where a layer's tokens are neighbors; a row if it is
/// longer.
const AHEAD_BYTES: usize = 8 << 10;

/// Bytes of T1 in the strips of a block if they are tokens: enough that keys and values do not take turns too often.
const TOKENS_BYTES: usize = 32 << 10;

/// Bytes of the cache in a strip that is loaded, if strips are heads: enough that memory is read in long pieces.
const STRIP_BYTES: usize = 4096;

/// Bytes of T1 in the strips that are quantized together, if they are heads: few, since each goes through all of them again.
const STORED_BYTES: usize = 32 << 10;

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
        // Whole tokens are best, unless a token's part of a strip is too short to be quantized by itself.
        let quantizes = self.geometry.quant.is_some();
        let strip = if quantizes { tokens_in(STORED_BYTES, self.value_bytes() / 2) } else { 1 };
        // Codes that are streamed are made of several tokens at a time, wherever these go; others in one row, if it can be.
        let apart = quantizes && (stream || self.geometry.cache.token != heads_len);
        let shape = self.shape(1, strip, apart, stream);
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
        let Geometry { num_heads, head_dim, t2, num_repeat, cache, .. } = self.geometry;
        // What is written to the caches asks for nothing, so blocks may be as long as they like.
        let one_row = num_repeat == 1 && cache.token == num_heads * head_dim;
        let shape = self.shape(num_repeat, tokens_in(STRIP_BYTES, bytes(t2, head_dim)), !stream && !one_row, stream);
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
    /// heads lie apart, and else with tokens for strips if they are to count as `apart`, however close they lie.
    fn shape(&self, num_repeat: usize, strip: usize, apart: bool, stream: bool) -> Shape {
        let Geometry { num_heads, head_dim, t1, t2, cache, quant, .. } = self.geometry;
        let row = |len| match quant {
            Some(Quant { group, .. }) => Row { len, group, groups: len / group },
            None => Row { len, group: 1, groups: len },
        };
        let token_len = num_heads * head_dim;
        let token_bytes = bytes(t1, token_len);
        if num_heads > 1 && cache.head != head_dim {
            let tokens = if cache.token == head_dim { strip } else { 1 };
            return Shape { tokens, strips: Strips::Heads, rows: Some(1), row: row(head_dim), stream };
        }
        let one = match num_repeat {
            1 => Shape { tokens: 1, strips: Strips::Tokens, rows: Some(1), row: row(token_len), stream },
            _ => Shape { tokens: 1, strips: Strips::Tokens, rows: Some(num_heads), row: row(head_dim), stream },
        };
        if apart || cache.token > 2 * token_len {
            return Shape { tokens: tokens_in(TOKENS_BYTES, token_bytes), ..one };
        }
        // Where rows follow each other closely the processor sees them coming, unless they are streamed.
        let ahead = tokens_in(AHEAD_BYTES, token_bytes);
        if num_repeat == 1 && cache.token == token_len {
            let row_bytes = if t1 == t2 { ROW_BYTES } else { CONVERTED_ROW_BYTES };
            // Plain copies are best left to the processor, and in one piece.
            let tokens = if stream { tokens_in(row_bytes, token_bytes) } else { usize::MAX };
            Shape { tokens, strips: Strips::One(stream.then(|| ahead.max(tokens))), rows: None, ..one }
        } else {
            Shape { strips: Strips::One(stream.then_some(ahead)), ..one }
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
        let (cache_strip, scale_strip) = match shape.strips {
            Strips::Heads => (bytes(t2, cache.head), quant.map_or(0, |quant| bytes(quant.t3, quant.scale.head))),
            _ => (bytes(t2, cache.token), quant.map_or(0, |quant| bytes(quant.t3, quant.scale.token))),
        };
        for t in (0..run.len).step_by(shape.tokens) {
            let tokens = shape.tokens.min(run.len - t);
            let strips = match shape.strips {
                Strips::One(_) => 1,
                Strips::Tokens => tokens,
                Strips::Heads => num_heads,
            };
            // The slot that is asked for so many tokens after the block's first, if the run ends before it the next one's.
            let after = |tokens: usize| match next {
                _ if t + tokens < run.len => Some(run.slot + t + tokens),
                next => next.map(|next| next.slot),
            };
            for (kv, values) in values.into_iter().enumerate() {
                let at = self.cache_at(run.slot + t, kv);
                let to = |slot: usize, kv: usize| {
                    let to = self.cache_at(slot, kv);
                    (to.0 as isize - at.0 as isize, to.1 as isize - at.1 as isize)
                };
                let ahead = match shape.strips {
                    Strips::One(tokens) => [tokens.and_then(after).map(|slot| to(slot, kv)); 2],
                    Strips::Tokens => [after(tokens).map(|slot| to(slot, kv)); 2],
                    Strips::Heads => {
                        // The values come after the keys, and keys after the values.
                        let following =
                            if kv == 0 { Some(to(run.slot + t, 1)) } else { after(tokens).map(|slot| to(slot, 0)) };
                        let (strip, last) = ((cache_strip as isize, scale_strip as isize), strips as isize - 1);
                        [following.map(|to| (to.0 - last * strip.0, to.1 - last * strip.1)), Some(strip)]
                    }
                };
                visit(Block {
                    strips,
                    rows: shape.rows.map_or(1, |rows| if shape.strips == Strips::Heads { tokens * rows } else { rows }),
                    row: if shape.rows.is_none() { shape.row.times(tokens) } else { shape.row },
                    values: values.wrapping_add(t * token_bytes),
                    values_strip: if shape.strips == Strips::Heads { head_bytes } else { token_bytes },
                    values_row: if shape.strips == Strips::Heads { token_bytes } else { head_bytes },
                    copies,
                    cache: self.pointers.cache.wrapping_add(at.0),
                    cache_strip,
                    scale: self.pointers.scale.wrapping_add(at.1),
                    scale_strip,
                    ahead,
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
