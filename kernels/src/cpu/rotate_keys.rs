//! Rotates the keys of a cache: heads become float32 in a buffer, are rotated there, and go back. Heads of float32
//! are rotated where they are.

use std::marker::PhantomData;
use std::ops::Range;

use kvcache_schema::ElementType;

use super::block::{Blocks, HadamardFunction, Heads, Operand, RotateFunction, Row, Rows, RowsFunction};
use super::dispatch::{self, CacheFormat, Conversion, RowFunctions};
use super::kernel::{Cpu, QUANTIZE_FACTOR};
use crate::cache_rows::CacheRows;
use crate::key_rotation::KeyRotation;
use crate::rotary::{Rope, RopeStyle, Rotation, cos_sin};
use crate::rows_error::RowsError;
use crate::workers::{Workers, run_pieces};

/// Elements in the buffer, unless a head has more: no more than a small part of the first-level cache.
const BUFFER: usize = 4096;

impl CacheRows {
    /// Rotates the keys of slots from one position to another (K-shift), in all layers and heads. Each slot may be in
    /// one rotation at most; the order of rotations does not matter.
    ///
    /// Keys of float32 are rotated as they are, keys of float16 in float32 and then rounded. A quantized head is
    /// dequantized to float32 (T1), rotated, and quantized with new scales: all of it, since elements that are not
    /// rotated share groups with those that are. Where keys were multiplied by a Hadamard matrix before they were
    /// quantized, a head is multiplied before it is rotated, and once more after that, in float32. Values, and keys
    /// that are rotated by 0, keep their bytes.
    ///
    /// # Errors
    /// [`RowsError::KeyType`], [`RowsError::Rope`], [`RowsError::Length`], [`RowsError::Misaligned`],
    /// [`RowsError::Slots`], [`RowsError::RotatedTwice`].
    pub fn rotate_keys(
        &self,
        cache: &mut [u8],
        scale: &mut [u8],
        rotations: &[Rotation],
        rope: &Rope,
        workers: &dyn Workers,
    ) -> Result<(), RowsError> {
        Cpu::default().rotate_keys(self, cache, scale, rotations, rope, workers)
    }
}

impl Cpu {
    /// Rotates the keys of some slots, as [`CacheRows::rotate_keys`] says, by this kernel's instructions.
    ///
    /// # Errors
    /// The errors of [`CacheRows::rotate_keys`].
    pub fn rotate_keys(
        &self,
        rows: &CacheRows,
        cache: &mut [u8],
        scale: &mut [u8],
        rotations: &[Rotation],
        rope: &Rope,
        workers: &dyn Workers,
    ) -> Result<(), RowsError> {
        let keys = Keys::new(KeyRotation::new(rows, cache, scale, rotations, rope)?, self);
        let parallel_bytes = self.parallel_bytes / rows.quant().map_or(1, |_| QUANTIZE_FACTOR);
        run_pieces(keys.slots, keys.slot_bytes(), parallel_bytes, workers, |slots| keys.rotate(slots));
        Ok(())
    }
}

/// A rotation in the form that the threads share.
struct Keys<'a> {
    rows: &'a CacheRows,
    cache: *mut u8,
    scale: *mut u8,
    memory: PhantomData<&'a mut [u8]>,
    /// By ascending deltas, so that a thread computes cosines and sines once for each; neighboring slots of one delta
    /// are in one.
    rotations: Vec<Rotation>,
    /// The slots in the rotations before each.
    starts: Vec<usize>,
    /// The slots in all rotations.
    slots: usize,
    style: RopeStyle,
    frequencies: Vec<f64>,
    /// The elements of a head that pass through the buffer: all if they are quantized, else only the rotated ones.
    head: Row,
    conversion: Option<[RowsFunction; 2]>,
    rotate: RotateFunction,
    hadamard: HadamardFunction,
}

// SAFETY: threads rotate disjoint ranges of slots, which KeyRotation holds to be in one rotation at most; `cache` and
// `scale` are borrowed mutably for 'a.
unsafe impl Sync for Keys<'_> {}

/// One of the two axes, slots and heads, over which the keys of a layer lie: its length, and its strides in bytes.
#[derive(Clone, Copy)]
struct Axis {
    len: usize,
    cache: usize,
    scale: usize,
}

/// What a thread works with.
struct Room {
    /// Positions that `cos` and `sin` are for.
    delta: i64,
    cos: Vec<f32>,
    sin: Vec<f32>,
    buffer: Vec<f32>,
}

impl<'a> Keys<'a> {
    fn new(rotation: KeyRotation<'a>, kernel: &Cpu) -> Self {
        let KeyRotation { rows, cache, scale, mut rotations, rope } = rotation;
        // Slots remain in order, so that neighbors meet.
        rotations.sort_by_key(|rotation| rotation.delta);
        rotations.dedup_by(|next, rotation| {
            let follows = next.delta == rotation.delta && next.slot == rotation.slot + rotation.len;
            rotation.len += if follows { next.len } else { 0 };
            follows
        });
        let mut slots = 0;
        let starts = rotations.iter().map(|rotation| (slots, slots += rotation.len).0).collect();
        let ((t2, t3), head_dim) = (rows.types(), rows.dims().inner);
        let group = rows.quant().map_or(1, |quant| quant.group);
        let RowFunctions { conversion, rotate, hadamard, .. } =
            dispatch::row_functions(kernel.instructions, (ElementType::Float32, t2, t3), group);
        let (conversion, len) = match conversion {
            Some(Conversion { format, store, load, .. }) => {
                let len = if format == CacheFormat::Float { rope.n_rot() } else { head_dim };
                (Some([load.plain, store.plain]), len)
            }
            None => (None, rope.n_rot()),
        };
        Self {
            rows,
            cache: cache.as_mut_ptr(),
            scale: scale.as_mut_ptr(),
            memory: PhantomData,
            rotations,
            starts,
            slots,
            style: rope.style(),
            frequencies: rope.frequencies().collect(),
            head: Row::new(len, group),
            conversion,
            rotate,
            hadamard,
        }
    }

    /// Bytes that are read and written of a slot.
    fn slot_bytes(&self) -> usize {
        // Half of a row are keys.
        self.rows.row_len()
    }

    /// Rotates a range of the slots of all rotations.
    fn rotate(&self, slots: Range<usize>) {
        let pairs = self.frequencies.len();
        let at_once = (BUFFER / self.head.len).max(1);
        let len = if self.conversion.is_some() { at_once * self.head.len } else { 0 };
        let mut room = Room { delta: 0, cos: vec![1.0; pairs], sin: vec![0.0; pairs], buffer: vec![0.0; len] };
        let first = self.starts.partition_point(|&start| start <= slots.start).saturating_sub(1);
        for (rotation, &start) in self.rotations[first..].iter().zip(&self.starts[first..]) {
            if start >= slots.end {
                break;
            }
            room.rotate_to(rotation.delta, &self.frequencies);
            let part = slots.start.max(start) - start..rotation.len.min(slots.end - start);
            for layer in 0..self.rows.dims().num_layer {
                self.rotate_layer(rotation.slot + part.start, part.len(), layer, at_once, &mut room);
            }
        }
    }

    /// Rotates the keys of neighboring slots in a layer, that many heads at once.
    fn rotate_layer(&self, slot: usize, len: usize, layer: usize, at_once: usize, room: &mut Room) {
        let [cache, scale] = self.rows.strides();
        let at = [cache.offset(slot, layer, 0, 0), scale.offset(slot, layer, 0, 0)];
        let slots = Axis { len, cache: cache.token, scale: scale.token };
        let heads = Axis { len: self.rows.dims().num_heads, cache: cache.head, scale: scale.head };
        // Along the finer axis heads have no gaps: in every layout it is next to the innermost one.
        let (coarse, fine) = if heads.cache <= slots.cache { (slots, heads) } else { (heads, slots) };
        let one = Axis { len: 1, cache: 0, scale: 0 };
        let whole = self.conversion.is_some() && self.head.len == self.rows.dims().inner;
        // Quantizing takes long rows better than many.
        let (outer, inner, heads) =
            if whole && fine.len <= at_once { (one, coarse, fine.len) } else { (coarse, fine, 1) };
        let rows_at_once = at_once / heads;
        for o in 0..outer.len {
            for i in (0..inner.len).step_by(rows_at_once) {
                let at = [at[0] + o * outer.cache + i * inner.cache, at[1] + o * outer.scale + i * inner.scale];
                let mut rows = Axis { len: rows_at_once.min(inner.len - i), ..inner };
                let mut heads = heads;
                if whole && rows.cache == heads * cache.head_len {
                    (heads, rows.len) = (heads * rows.len, 1);
                }
                // SAFETY: o < outer.len and i + rows.len <= inner.len, so these rows are of the layer's keys, in slots
                // that KeyRotation holds to be inside the cache.
                unsafe { self.rotate_rows(at, rows, heads, room) }
            }
        }
    }

    /// Rotates rows of `heads` heads that follow each other, the first one at these offsets.
    ///
    /// # Safety
    /// The rows are inside of `cache` and `scale`, and no other thread accesses them. They are no more than the buffer
    /// has room for.
    unsafe fn rotate_rows(&self, at: [usize; 2], rows: Axis, heads: usize, room: &mut Room) {
        let (cache, scale) = (self.cache.wrapping_add(at[0]), self.scale.wrapping_add(at[1]));
        let in_place = Heads {
            values: cache.cast(),
            step: rows.cache / size_of::<f32>(),
            count: rows.len,
            style: self.style,
            pairs: self.frequencies.len(),
            cos: room.cos.as_ptr(),
            sin: room.sin.as_ptr(),
        };
        let Some([load, store]) = self.conversion else {
            // SAFETY: the rows are heads of float32, aligned by KeyRotation, and `pairs` pairs fit into one; `Cpu` is
            // made for supported instruction sets alone.
            return unsafe { (self.rotate)(&in_place) };
        };
        let row = self.head.times(heads);
        let buffer = room.buffer.as_mut_ptr();
        let moved = Rows {
            count: rows.len,
            row,
            values: Operand { data: buffer.cast(), step: row.len * size_of::<f32>() },
            cache: Operand { data: cache, step: rows.cache },
            scale: Operand { data: scale, step: rows.scale },
            prefetch: None,
        };
        let (order, values) = (self.rows.rotation_order(), moved.values);
        let blocks = Blocks { from: values, to: values, count: 1, len: rows.len * row.len, order, prefetch: None };
        // SAFETY: the rows are of the types that the functions were chosen for, aligned by KeyRotation; the buffer has
        // room for them, which follow each other, and are whole heads where the order is not 1; `Cpu` is made for
        // supported instruction sets alone.
        unsafe {
            load(&moved);
            if order > 1 {
                (self.hadamard)(&blocks);
            }
            (self.rotate)(&Heads { values: buffer, step: self.head.len, count: rows.len * heads, ..in_place });
            if order > 1 {
                (self.hadamard)(&blocks);
            }
            store(&moved);
        }
    }
}

impl Room {
    /// Fills `cos` and `sin` for a rotation by `delta`.
    fn rotate_to(&mut self, delta: i64, frequencies: &[f64]) {
        if delta == self.delta {
            return;
        }
        self.delta = delta;
        for ((cos, sin), &f) in self.cos.iter_mut().zip(&mut self.sin).zip(frequencies) {
            (*cos, *sin) = cos_sin(delta, f);
        }
    }
}
