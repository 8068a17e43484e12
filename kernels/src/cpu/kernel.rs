//! Walks a problem in rows as long as its layout allows.

use std::ops::Range;

use kvcache_schema::ElementType;

use super::phase;
use super::rows::Rows;
use crate::problem::{Geometry, Indices, Kernel, Pointers, Problem};
use crate::workers::Workers;

/// The fast CPU kernel.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cpu;

impl Kernel for Cpu {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn store(&self, problem: &mut Problem<'_>, workers: &dyn Workers) {
        let call = Call::new(problem);
        phase::run(workers, problem.total_seqlen(), call.store_bytes(), |tokens| call.store(tokens));
    }

    fn load(&self, problem: &mut Problem<'_>, workers: &dyn Workers) {
        let call = Call::new(problem);
        phase::run(workers, problem.total_kvlen(), call.load_bytes(), |tokens| call.load(tokens));
    }
}

/// The bytes of `len` elements that are known to fit in memory.
fn bytes(element: ElementType, len: usize) -> usize {
    len * element.bits() / 8
}

/// A problem in the form that the threads share.
struct Call<'a> {
    geometry: Geometry,
    indices: Indices<'a>,
    pointers: Pointers,
    rows: Rows,
}

// SAFETY: threads read the current tokens, and write disjoint ranges of tokens: in the store phase to slots of which no two
// tokens share one, in the load phase to the outputs while the cache is only read. Problem's conditions keep others away.
unsafe impl Sync for Call<'_> {}

/// The rows that the tokens of a run make.
struct RowShape {
    /// Steps along the run's tokens.
    steps: usize,
    /// Rows in a step.
    heads: usize,
    /// Elements in a row.
    len: usize,
}

impl<'a> Call<'a> {
    fn new(problem: &Problem<'a>) -> Self {
        let geometry = *problem.geometry();
        Self {
            rows: Rows::choose(geometry.t1, geometry.t2, geometry.quant.map(|quant| quant.t3)),
            indices: *problem.indices(),
            pointers: problem.pointers(),
            geometry,
        }
    }

    /// What storing a token reads and writes, in bytes.
    fn store_bytes(&self) -> usize {
        self.value_bytes() + self.cache_bytes()
    }

    /// What loading a token reads and writes, in bytes.
    fn load_bytes(&self) -> usize {
        self.value_bytes() * self.geometry.num_repeat + self.cache_bytes()
    }

    /// Bytes of a token's key and value.
    fn value_bytes(&self) -> usize {
        2 * bytes(self.geometry.t1, self.geometry.num_heads * self.geometry.head_dim)
    }

    /// Bytes that a token's key and value take in cache and scale.
    fn cache_bytes(&self) -> usize {
        let Geometry { num_heads, head_dim, t2, quant, .. } = self.geometry;
        let len = 2 * num_heads * head_dim;
        bytes(t2, len) + quant.map_or(0, |quant| bytes(quant.t3, len / quant.group))
    }

    /// The longest rows that `tokens` tokens in neighbouring slots make: those of a head, a token or the whole run.
    fn row_shape(&self, tokens: usize, repeat: usize) -> RowShape {
        let Geometry { num_heads, head_dim, cache, .. } = self.geometry;
        let token_len = num_heads * head_dim;
        if repeat > 1 || (num_heads > 1 && cache.head != head_dim) {
            RowShape { steps: tokens, heads: num_heads, len: head_dim }
        } else if cache.token == token_len {
            RowShape { steps: 1, heads: 1, len: tokens * token_len }
        } else {
            RowShape { steps: tokens, heads: 1, len: token_len }
        }
    }

    /// The addresses of a head's codes and scales.
    fn cache_at(&self, slot: usize, kv: usize, h: usize) -> (*mut u8, *mut u8) {
        let Geometry { t2, quant, .. } = self.geometry;
        let cache = bytes(t2, self.geometry.cache_at(slot, kv, h));
        let scale = quant.map_or(0, |quant| bytes(quant.t3, self.geometry.scale_at(slot, kv, h)));
        (self.pointers.cache.wrapping_add(cache), self.pointers.scale.wrapping_add(scale))
    }

    /// Stores a range of rows of `current_key` and `current_value`.
    fn store(&self, tokens: Range<usize>) {
        let Geometry { num_heads, head_dim, t1, quant, .. } = self.geometry;
        let group = quant.map_or(1, |quant| quant.group);
        for (b, part) in parts(self.indices.seqstarts, tokens) {
            let sequence = self.indices.sequence(b);
            let positions = sequence.start_pos + part.start..sequence.start_pos + part.end;
            for run in self.indices.addressing.runs(b, positions) {
                let token = sequence.current.start + run.token - sequence.start_pos;
                let row = self.row_shape(run.len, 1);
                for (kv, current) in self.pointers.current.into_iter().enumerate() {
                    for t in 0..row.steps {
                        for h in 0..row.heads {
                            let (cache, scale) = self.cache_at(run.slot + t, kv, h);
                            let values = current.wrapping_add(bytes(t1, ((token + t) * num_heads + h) * head_dim));
                            // SAFETY: the row lies in the run's tokens and heads, for which Problem promises memory.
                            unsafe { (self.rows.store)(values, cache, scale, row.len, group) }
                        }
                    }
                }
            }
        }
    }

    /// Loads a range of rows of `key` and `value`.
    fn load(&self, tokens: Range<usize>) {
        let Geometry { num_heads, head_dim, num_repeat, t1, quant, .. } = self.geometry;
        let group = quant.map_or(1, |quant| quant.group);
        for (b, part) in parts(self.indices.kvstarts, tokens) {
            let start = self.indices.sequence(b).all.start;
            for run in self.indices.addressing.runs(b, part) {
                let token = start + run.token;
                let row = self.row_shape(run.len, num_repeat);
                let row_bytes = bytes(t1, row.len);
                for (kv, output) in self.pointers.outputs.into_iter().enumerate() {
                    for t in 0..row.steps {
                        for h in 0..row.heads {
                            let (cache, scale) = self.cache_at(run.slot + t, kv, h);
                            let head = ((token + t) * num_heads + h) * num_repeat;
                            let values = output.wrapping_add(bytes(t1, head * head_dim));
                            // SAFETY: the row lies in the run's tokens and heads, for which Problem promises memory; its
                            // repeats are the next num_repeat - 1 heads of the output.
                            unsafe {
                                (self.rows.load)(cache, scale, values, row.len, group);
                                for r in 1..num_repeat {
                                    values.add(r * row_bytes).copy_from_nonoverlapping(values, row_bytes);
                                }
                            }
                        }
                    }
                }
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
