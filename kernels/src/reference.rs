//! The kernel that reads like the specification and judges all others: safe, scalar, single-threaded, never optimized.

use half::f16;
use kvcache_schema::ElementType::{Float16, Float32, Int4, Int8};
use kvcache_schema::QuantBit;

use crate::problem::{Kernel, Problem, Tensors};
use crate::quantize::{self, Real};
use crate::shared_slice::SharedSlice;
use crate::workers::Workers;

/// The judge: element by element, in the order of the specification.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reference;

impl Kernel for Reference {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn store(&self, problem: &mut Problem<'_>, _: &dyn Workers) {
        dispatch(problem, Phase::Store);
    }

    fn load(&self, problem: &mut Problem<'_>, _: &dyn Workers) {
        dispatch(problem, Phase::Load);
    }
}

enum Phase {
    Store,
    Load,
}

/// Runs a phase on the problem's types.
fn dispatch(problem: &mut Problem<'_>, phase: Phase) {
    let (t1, t2) = (problem.geometry().t1, problem.geometry().t2);
    let t3 = problem.geometry().quant.map(|quant| quant.t3);
    // SAFETY: each row names the types that it matches.
    unsafe {
        match (t1, t2, t3) {
            (Float32, Float32, None) => run::<Plain, f32, f32, ()>(problem.tensors(), phase),
            (Float32, Float16, None) => run::<Plain, f32, f16, ()>(problem.tensors(), phase),
            (Float16, Float32, None) => run::<Plain, f16, f32, ()>(problem.tensors(), phase),
            (Float16, Float16, None) => run::<Plain, f16, f16, ()>(problem.tensors(), phase),
            (Int8, Int8, None) => run::<Plain, i8, i8, ()>(problem.tensors(), phase),
            (Float32, Int8, Some(Float32)) => run::<Eight, f32, i8, f32>(problem.tensors(), phase),
            (Float32, Int8, Some(Float16)) => run::<Eight, f32, i8, f16>(problem.tensors(), phase),
            (Float16, Int8, Some(Float32)) => run::<Eight, f16, i8, f32>(problem.tensors(), phase),
            (Float16, Int8, Some(Float16)) => run::<Eight, f16, i8, f16>(problem.tensors(), phase),
            (Float32, Int4, Some(Float32)) => run::<Four, f32, u8, f32>(problem.tensors(), phase),
            (Float32, Int4, Some(Float16)) => run::<Four, f32, u8, f16>(problem.tensors(), phase),
            (Float16, Int4, Some(Float32)) => run::<Four, f16, u8, f32>(problem.tensors(), phase),
            (Float16, Int4, Some(Float16)) => run::<Four, f16, u8, f16>(problem.tensors(), phase),
            types => unreachable!("a problem has a legal combination of types, not {types:?}"),
        }
    }
}

fn run<Q: Codec<V, C, S>, V: Copy, C: Copy, S: Copy>(tensors: Tensors<'_, V, C, S>, phase: Phase) {
    match phase {
        Phase::Store => store::<Q, V, C, S>(tensors),
        Phase::Load => load::<Q, V, C, S>(tensors),
    }
}

/// How a value is kept in the cache. Offsets are in elements; `at` and `scale_at` are those of a head's first element.
trait Codec<V, C, S> {
    /// Stores the `head_dim` values of one head.
    fn store(
        row: &[V],
        group: usize,
        cache: &mut SharedSlice<C>,
        at: usize,
        scale: &mut SharedSlice<S>,
        scale_at: usize,
    );

    /// Element `d` of one head.
    fn load(d: usize, group: usize, cache: &SharedSlice<C>, at: usize, scale: &SharedSlice<S>, scale_at: usize) -> V;
}

/// Stores each current token of each sequence into its slot.
fn store<Q: Codec<V, C, S>, V: Copy, C: Copy, S: Copy>(tensors: Tensors<'_, V, C, S>) {
    let Tensors { geometry, indices, current, mut cache, mut scale, .. } = tensors;
    let (num_heads, head_dim) = (geometry.num_heads, geometry.head_dim);
    let group = geometry.quant.map_or(head_dim, |quant| quant.group);
    for (kv, current) in current.into_iter().enumerate() {
        for b in 0..geometry.batch {
            let sequence = indices.sequence(b);
            for (t, token) in sequence.current.enumerate() {
                let slot = indices.addressing.slot(b, sequence.start_pos + t);
                for h in 0..num_heads {
                    let row = &current[(token * num_heads + h) * head_dim..][..head_dim];
                    let (at, scale_at) = (geometry.cache_at(slot, kv, h), geometry.scale_at(slot, kv, h));
                    Q::store(row, group, &mut cache, at, &mut scale, scale_at);
                }
            }
        }
    }
}

/// Loads every token of each sequence from its slot, each head `num_repeat` times.
fn load<Q: Codec<V, C, S>, V: Copy, C: Copy, S: Copy>(tensors: Tensors<'_, V, C, S>) {
    let Tensors { geometry, indices, cache, scale, outputs, .. } = tensors;
    let (num_heads, head_dim, num_repeat) = (geometry.num_heads, geometry.head_dim, geometry.num_repeat);
    let group = geometry.quant.map_or(head_dim, |quant| quant.group);
    for (kv, output) in outputs.into_iter().enumerate() {
        for b in 0..geometry.batch {
            for (t, token) in indices.sequence(b).all.enumerate() {
                let slot = indices.addressing.slot(b, t);
                for h in 0..num_heads {
                    let (at, scale_at) = (geometry.cache_at(slot, kv, h), geometry.scale_at(slot, kv, h));
                    for r in 0..num_repeat {
                        for d in 0..head_dim {
                            let value = Q::load(d, group, &cache, at, &scale, scale_at);
                            output[((token * num_heads + h) * num_repeat + r) * head_dim + d].write(value);
                        }
                    }
                }
            }
        }
    }
}

/// `quant_bit` 0: the value itself, converted where the cache has another float type.
struct Plain;

/// `quant_bit` 8: one code a byte.
struct Eight;

/// `quant_bit` 4: two codes a byte.
struct Four;

/// An assignment between tensors of these types.
trait Assign<To> {
    fn assign(self) -> To;
}

impl<T> Assign<T> for T {
    fn assign(self) -> T {
        self
    }
}

impl Assign<f16> for f32 {
    fn assign(self) -> f16 {
        f16::from_f32(self)
    }
}

impl Assign<f32> for f16 {
    fn assign(self) -> f32 {
        self.to_f32()
    }
}

impl<V: Assign<C> + Copy, C: Assign<V> + Copy> Codec<V, C, ()> for Plain {
    fn store(row: &[V], _: usize, cache: &mut SharedSlice<C>, at: usize, _: &mut SharedSlice<()>, _: usize) {
        for (d, &x) in row.iter().enumerate() {
            cache.set(at + d, x.assign());
        }
    }

    fn load(d: usize, _: usize, cache: &SharedSlice<C>, at: usize, _: &SharedSlice<()>, _: usize) -> V {
        cache.get(at + d).assign()
    }
}

impl<V: Real, S: Real> Codec<V, i8, S> for Eight {
    fn store(
        row: &[V],
        group: usize,
        cache: &mut SharedSlice<i8>,
        at: usize,
        scale: &mut SharedSlice<S>,
        scale_at: usize,
    ) {
        for (g, values) in row.chunks(group).enumerate() {
            let s = quantize::scale(values, QuantBit::Eight);
            scale.set(scale_at + g, S::round(s.as_()));
            for (d, &x) in values.iter().enumerate() {
                cache.set(at + g * group + d, quantize::code(x, s, QuantBit::Eight));
            }
        }
    }

    fn load(d: usize, group: usize, cache: &SharedSlice<i8>, at: usize, scale: &SharedSlice<S>, scale_at: usize) -> V {
        quantize::value(cache.get(at + d), scale.get(scale_at + d / group))
    }
}

impl<V: Real, S: Real> Codec<V, u8, S> for Four {
    fn store(
        row: &[V],
        group: usize,
        cache: &mut SharedSlice<u8>,
        at: usize,
        scale: &mut SharedSlice<S>,
        scale_at: usize,
    ) {
        for (g, values) in row.chunks(group).enumerate() {
            let s = quantize::scale(values, QuantBit::Four);
            scale.set(scale_at + g, S::round(s.as_()));
            for (d, &x) in values.iter().enumerate() {
                let i = at + g * group + d;
                let byte = quantize::with_nibble(cache.get(i / 2), i, quantize::code(x, s, QuantBit::Four));
                cache.set(i / 2, byte);
            }
        }
    }

    fn load(d: usize, group: usize, cache: &SharedSlice<u8>, at: usize, scale: &SharedSlice<S>, scale_at: usize) -> V {
        let i = at + d;
        quantize::value(quantize::nibble(cache.get(i / 2), i), scale.get(scale_at + d / group))
    }
}
