//! The reference kernel: the specification as code, safe, scalar and single-threaded. Every other kernel must match it
//! bit for bit, so it is never optimized.

use std::mem::MaybeUninit;

use kvcache_schema::ElementType::Int8;
use kvcache_simd::hadamard;

use crate::cache_bytes::CacheBytes;
use crate::problem::{Geometry, Kernel, Pointers, Problem, Quant, Stores};
use crate::quantize::{Float, HeadCodec};
use crate::shared_slice::SharedSlice;
use crate::workers::Workers;
use crate::{float_type, scale_type};

/// The kernel that all others must match bit for bit: head by head, in the order of the specification.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reference;

impl Kernel for Reference {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn store(&self, stores: Stores<'_>, _: &dyn Workers) {
        dispatch(stores, None);
    }

    fn load(&self, problem: &mut Problem<'_>, _: &dyn Workers) {
        let outputs = (problem.num_repeat(), problem.outputs());
        dispatch(problem.reborrow_stores(), Some(outputs));
    }
}

/// `num_repeat`, `key` and `value`, where a call loads.
type Outputs = Option<(usize, [*mut u8; 2])>;

/// Stores, or loads to `outputs`, by the types of the call: `run::<T1, T2, T3>`, with T2 `u8` for codes, and with how a
/// head is kept.
fn dispatch(stores: Stores<'_>, outputs: Outputs) {
    let geometry = stores.geometry();
    let (t1, t2, quant) = (geometry.t1, geometry.t2, geometry.quant);
    let orders = [0, 1].map(|kv| geometry.rotation_order(kv));
    // SAFETY: each arm has the types of the call; the outputs belong to a `Problem` with these stores.
    unsafe {
        match quant {
            None if (t1, t2) == (Int8, Int8) => run::<i8, i8, ()>(stores, outputs, &Assigned),
            None if t1 == t2 => float_type!(t1, V => run::<V, V, ()>(stores, outputs, &Assigned)),
            None => float_type!(t1, V => float_type!(t2, C => run::<V, C, ()>(stores, outputs, &Cast))),
            Some(quant @ Quant { bits, group, t3, .. }) if quant.has_static_scales() => {
                let codec = StaticScales(Codes { codec: HeadCodec { bits, group }, orders });
                float_type!(t1, V => scale_type!(t3, S => run::<V, u8, S>(stores, outputs, &codec)))
            }
            Some(Quant { bits, group, t3, .. }) => {
                let codec = Codes { codec: HeadCodec { bits, group }, orders };
                float_type!(t1, V => scale_type!(t3, S => run::<V, u8, S>(stores, outputs, &codec)))
            }
        }
    }
}

/// Stores, or loads to `outputs`.
///
/// # Safety
/// The elements of T1 are `V`, of T2 `C` (bytes of codes may be `u8`, for int4 must) and of T3 `S` (any type without
/// quantization); the outputs belong to a [`Problem`] with these stores.
unsafe fn run<V, C, S>(stores: Stores<'_>, outputs: Outputs, format: &impl Format<V, C, S>)
where
    V: Copy + Default,
    C: Copy + Default,
    S: Copy + Default,
{
    let &Geometry { num_heads, head_dim, t2, quant, cache_len, .. } = stores.geometry();
    let Pointers { current, cache, scale } = stores.pointers();
    let cache_len = t2.byte_len(cache_len) / size_of::<C>();
    let scale_len = quant.map_or(0, |quant| quant.scale_len);
    // SAFETY: assume_checked: the pointers are aligned and valid for these shapes, and what is written overlaps nothing.
    // `V`, `C` and `S` are the tensors' types: see `# Safety`. The address of an empty tensor is not used.
    unsafe {
        let cache = SharedSlice::from_raw_parts(cache.cast(), cache_len);
        let scale = SharedSlice::from_raw_parts(scale.cast(), scale_len);
        if let Some((num_repeat, outputs)) = outputs {
            let len = stores.total_kvlen() * num_heads * num_repeat * head_dim;
            let outputs = outputs.map(|data| match len {
                0 => &mut [][..],
                len => std::slice::from_raw_parts_mut(data.cast(), len),
            });
            return load(&stores, (cache, scale), num_repeat, outputs, format);
        }
        let len = stores.total_seqlen() * num_heads * head_dim;
        let current = current.map(|data| match len {
            0 => &[][..],
            len => std::slice::from_raw_parts(data.cast(), len),
        });
        store(&stores, current, (cache, scale), format);
    }
}

/// How a head of values `V`, of keys (0) or of values (1), is kept: as cells `C` in `cache` and scales `S` in `scale`.
trait Format<V, C, S> {
    /// Whether a store reads the scales that it would write otherwise.
    const READS_SCALES: bool = false;

    fn store(&self, kv: usize, values: &[V], cells: &mut [C], scales: &mut [S]);

    fn load(&self, kv: usize, cells: &[C], scales: &[S], values: &mut [V]);
}

/// Stores each current token of each sequence into its slot.
fn store<V, C, S, F: Format<V, C, S>>(
    stores: &Stores<'_>,
    current: [&[V]; 2],
    (mut cache, mut scale): (SharedSlice<'_, C>, SharedSlice<'_, S>),
    format: &F,
) where
    V: Copy,
    C: Copy + Default,
    S: Copy + Default,
{
    let (geometry, indices) = (stores.geometry(), stores.indices());
    if current[0].is_empty() {
        return; // and a head need not fit in memory
    }
    let (num_heads, head_dim) = (geometry.num_heads, geometry.head_dim);
    let bytes = CacheBytes::new(geometry);
    let mut cells = vec![C::default(); bytes.cache.head_len / size_of::<C>()];
    let mut scales = vec![S::default(); geometry.quant.map_or(0, |quant| head_dim / quant.group)];
    for (kv, current) in current.into_iter().enumerate() {
        for b in 0..geometry.batch {
            let sequence = indices.sequence(b);
            for (t, token) in sequence.current.enumerate() {
                let slot = indices.addressing.slot(b, sequence.start_pos + t);
                for h in 0..num_heads {
                    let values = &current[(token * num_heads + h) * head_dim..][..head_dim];
                    let (cache_at, scale_at) = bytes.head(slot, kv, h);
                    if F::READS_SCALES {
                        scale.read(scale_at, &mut scales);
                    }
                    format.store(kv, values, &mut cells, &mut scales);
                    cache.write(cache_at, &cells);
                    if !F::READS_SCALES {
                        scale.write(scale_at, &scales);
                    }
                }
            }
        }
    }
}

/// Loads every token of each sequence from its slot, each head `num_repeat` times.
fn load<V, C, S>(
    stores: &Stores<'_>,
    (cache, scale): (SharedSlice<'_, C>, SharedSlice<'_, S>),
    num_repeat: usize,
    outputs: [&mut [MaybeUninit<V>]; 2],
    format: &impl Format<V, C, S>,
) where
    V: Copy + Default,
    C: Copy + Default,
    S: Copy + Default,
{
    let (geometry, indices) = (stores.geometry(), stores.indices());
    if outputs[0].is_empty() {
        return; // and `num_repeat` may be any number
    }
    let (num_heads, head_dim) = (geometry.num_heads, geometry.head_dim);
    let bytes = CacheBytes::new(geometry);
    let mut cells = vec![C::default(); bytes.cache.head_len / size_of::<C>()];
    let mut scales = vec![S::default(); geometry.quant.map_or(0, |quant| head_dim / quant.group)];
    let mut values = vec![V::default(); head_dim];
    for (kv, output) in outputs.into_iter().enumerate() {
        for b in 0..geometry.batch {
            for (t, token) in indices.sequence(b).all.enumerate() {
                let slot = indices.addressing.slot(b, t);
                for h in 0..num_heads {
                    let (cache_at, scale_at) = bytes.head(slot, kv, h);
                    cache.read(cache_at, &mut cells);
                    scale.read(scale_at, &mut scales);
                    format.load(kv, &cells, &scales, &mut values);
                    for r in 0..num_repeat {
                        for d in 0..head_dim {
                            output[((token * num_heads + h) * num_repeat + r) * head_dim + d].write(values[d]);
                        }
                    }
                }
            }
        }
    }
}

/// `quant_bit` 0, in a cache of the values' type: the values themselves.
struct Assigned;

impl<V: Copy> Format<V, V, ()> for Assigned {
    fn store(&self, _: usize, values: &[V], cells: &mut [V], _: &mut [()]) {
        cells.copy_from_slice(values);
    }

    fn load(&self, _: usize, cells: &[V], _: &[()], values: &mut [V]) {
        values.copy_from_slice(cells);
    }
}

/// `quant_bit` 0, in a cache of another float type: each value rounded to the other type, to nearest, ties to even.
struct Cast;

impl<V: Float, C: Float> Format<V, C, ()> for Cast {
    fn store(&self, _: usize, values: &[V], cells: &mut [C], _: &mut [()]) {
        for (cell, &x) in cells.iter_mut().zip(values) {
            *cell = C::from_f32(x.to_f32());
        }
    }

    fn load(&self, _: usize, cells: &[C], _: &[()], values: &mut [V]) {
        for (x, &cell) in values.iter_mut().zip(cells) {
            *x = V::from_f32(cell.to_f32());
        }
    }
}

/// `quant_bit` 8 and 4: codes and scales, of heads that were multiplied by a Hadamard matrix where its order is not 1.
struct Codes {
    codec: HeadCodec,
    orders: [usize; 2],
}

impl Codes {
    /// The head times the matrix, rounded to its type.
    fn rotated<V: Float>(&self, kv: usize, head: &[V]) -> Vec<V> {
        let order = self.orders[kv];
        if order == 1 {
            return head.to_vec();
        }
        let mut rotated: Vec<_> = head.iter().map(|x| x.to_f32()).collect();
        hadamard(&mut rotated, order);
        rotated.into_iter().map(V::from_f32).collect()
    }
}

impl<V: Float, S: Float> Format<V, u8, S> for Codes {
    fn store(&self, kv: usize, values: &[V], codes: &mut [u8], scales: &mut [S]) {
        self.codec.encode(&self.rotated(kv, values), codes, scales);
    }

    fn load(&self, kv: usize, codes: &[u8], scales: &[S], values: &mut [V]) {
        self.codec.decode(codes, scales, values);
        values.copy_from_slice(&self.rotated(kv, values));
    }
}

/// `quant_type` 2: codes, with scales that are given.
struct StaticScales(Codes);

impl<V: Float, S: Float> Format<V, u8, S> for StaticScales {
    const READS_SCALES: bool = true;

    fn store(&self, kv: usize, values: &[V], codes: &mut [u8], scales: &mut [S]) {
        self.0.codec.encode_static(&self.0.rotated(kv, values), codes, scales);
    }

    fn load(&self, kv: usize, codes: &[u8], scales: &[S], values: &mut [V]) {
        self.0.load(kv, codes, scales, values);
    }
}
