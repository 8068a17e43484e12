//! Rows in plain Rust, for every machine and every combination of types.
//!
//! Loads go through small buffers on the stack: `half` converts whole slices with the machine's own instructions where
//! it has them, and the output may be uninitialized memory, which no slice of floats may refer to.

use std::slice;

use half::f16;
use half::slice::HalfFloatSliceExt;
use kvcache_schema::QuantBit;

use super::block;
use super::format::{Format, Mover};
use super::lanes::{Lanes, PackedLanes};
use super::lines::Copies;
use super::prefetch::prefetch_row;
use super::rows::{Row, Rows};
use super::variant::Variant;
use crate::quantize::{self, Real};

/// Elements in a buffer on the stack; even, so that a full buffer is whole bytes of int4.
const BUFFER: usize = 128;

/// Moves rows on every machine.
pub(super) struct Portable;

impl Variant for Portable {
    fn rows<F: Format>() -> Rows {
        Rows { store: block::store::<Self, F>, load: block::load::<Self, F>, fence: || () }
    }
}

/// A float type of which a buffer of float32 is read or written.
pub(super) trait Float: Real {
    /// Fills `to` with as many values.
    fn read_all(from: &[Self], to: &mut [f32]);

    /// Rounds each of the values, of which there are at most [`BUFFER`], to this type.
    fn round_all(values: &mut [f32]);

    /// Writes at most [`BUFFER`] values, rounded to this type.
    ///
    /// # Safety
    /// `to` is aligned and valid for writes of as many elements.
    unsafe fn write_all(from: &[f32], to: *mut Self);
}

impl Float for f32 {
    fn read_all(from: &[Self], to: &mut [f32]) {
        to.copy_from_slice(from);
    }

    fn round_all(_: &mut [f32]) {}

    unsafe fn write_all(from: &[f32], to: *mut Self) {
        // SAFETY: the caller's promise; a buffer on the stack overlaps no operand.
        unsafe { to.copy_from_nonoverlapping(from.as_ptr(), from.len()) }
    }
}

impl Float for f16 {
    fn read_all(from: &[Self], to: &mut [f32]) {
        from.convert_to_f32_slice(to);
    }

    fn round_all(values: &mut [f32]) {
        let mut rounded = [f16::ZERO; BUFFER];
        let rounded = &mut rounded[..values.len()];
        rounded.convert_from_f32_slice(values);
        rounded.convert_to_f32_slice(values);
    }

    unsafe fn write_all(from: &[f32], to: *mut Self) {
        let mut rounded = [f16::ZERO; BUFFER];
        let rounded = &mut rounded[..from.len()];
        rounded.convert_from_f32_slice(from);
        // SAFETY: the caller's promise; a buffer on the stack overlaps no operand.
        unsafe { to.copy_from_nonoverlapping(rounded.as_ptr(), rounded.len()) }
    }
}

/// How codes lie in the cache.
pub(super) trait Codes {
    /// The codes' width.
    const BITS: QuantBit;

    /// The bytes that `len` codes take.
    fn bytes(len: usize) -> usize;

    /// Packs the codes `code(0)` to `code(len - 1)` into `bytes(len)` bytes at `to`.
    ///
    /// # Safety
    /// `to` is valid for those writes.
    unsafe fn pack(len: usize, code: impl Fn(usize) -> i8, to: *mut u8);

    /// Fills `to` with as many codes from packed bytes.
    fn unpack(from: &[u8], to: &mut [f32]);
}

/// One code a byte.
pub(super) struct Eight;

/// Two codes a byte, the first in the low nibble.
pub(super) struct Four;

impl Codes for Eight {
    const BITS: QuantBit = QuantBit::Eight;

    fn bytes(len: usize) -> usize {
        len
    }

    unsafe fn pack(len: usize, code: impl Fn(usize) -> i8, to: *mut u8) {
        for i in 0..len {
            // SAFETY: i is below bytes(len).
            unsafe { to.add(i).write(code(i) as u8) }
        }
    }

    fn unpack(from: &[u8], to: &mut [f32]) {
        for (to, &byte) in to.iter_mut().zip(from) {
            *to = f32::from(byte as i8);
        }
    }
}

impl Codes for Four {
    const BITS: QuantBit = QuantBit::Four;

    fn bytes(len: usize) -> usize {
        len / 2
    }

    unsafe fn pack(len: usize, code: impl Fn(usize) -> i8, to: *mut u8) {
        for i in 0..len / 2 {
            let byte = quantize::with_nibble(quantize::with_nibble(0, 0, code(2 * i)), 1, code(2 * i + 1));
            // SAFETY: i is below bytes(len).
            unsafe { to.add(i).write(byte) }
        }
    }

    fn unpack(from: &[u8], to: &mut [f32]) {
        for (to, &byte) in to.chunks_exact_mut(2).zip(from) {
            to[0] = f32::from(quantize::nibble(byte, 0));
            to[1] = f32::from(quantize::nibble(byte, 1));
        }
    }
}

impl Mover for Portable {
    const STREAMS: bool = false;

    unsafe fn copy(all: &Copies) {
        for r in 0..all.rows {
            // SAFETY: the caller's promise; a copy begins where the one before it ends.
            unsafe {
                let (from, to, ahead) = all.row(r);
                if let Some(ahead) = ahead {
                    prefetch_row(ahead, all.len);
                }
                for copy in 0..all.copies {
                    to.add(copy * all.len).copy_from_nonoverlapping(from, all.len);
                }
            }
        }
    }

    unsafe fn stream(all: &Copies) {
        // SAFETY: the caller's promise.
        unsafe { Self::copy(all) }
    }

    unsafe fn convert<A: Lanes, B: Lanes, const STREAM: bool>(from: *const A, to: *mut B, len: usize) {
        let mut buffer = [0.0; BUFFER];
        // SAFETY: the caller's promise.
        let from = unsafe { slice::from_raw_parts(from, len) };
        for (i, chunk) in from.chunks(BUFFER).enumerate() {
            let buffer = &mut buffer[..chunk.len()];
            A::read_all(chunk, buffer);
            // SAFETY: the chunk begins at i * BUFFER and ends inside `len`.
            unsafe { B::write_all(buffer, to.add(i * BUFFER)) }
        }
    }

    unsafe fn quantize<Q: PackedLanes, V: Lanes, T: Lanes>(
        values: *const V,
        cache: *mut u8,
        scales: *mut T,
        Row { len, group, .. }: Row,
        _: *const V,
    ) {
        // SAFETY: the caller promises `len` values to read.
        let values = unsafe { slice::from_raw_parts(values, len) };
        for (g, values) in values.chunks_exact(group).enumerate() {
            let s = quantize::scale(values, Q::BITS);
            // SAFETY: the caller promises room for the scales and for the codes of `len` values, of whose groups g
            // is one; a group is whole bytes.
            unsafe {
                scales.add(g).write(T::round(s.as_()));
                let code = |i: usize| quantize::code(values[i], s, Q::BITS);
                Q::pack(group, code, cache.add(Q::bytes(g * group)));
            }
        }
    }

    unsafe fn dequantize<Q: PackedLanes, V: Lanes, T: Lanes, const STREAM: bool>(
        cache: *const u8,
        scales: *const T,
        values: *mut V,
        Row { len, group, groups }: Row,
    ) {
        // SAFETY: the caller promises the codes of `len` values, and the scales of their groups, to read.
        let (cache, scales) =
            unsafe { (slice::from_raw_parts(cache, Q::bytes(len)), slice::from_raw_parts(scales, groups)) };
        let mut buffer = [0.0; BUFFER];
        for at in (0..len).step_by(BUFFER) {
            let buffer = &mut buffer[..BUFFER.min(len - at)];
            Q::unpack(&cache[Q::bytes(at)..], buffer);
            multiply(buffer, scales, at, group);
            T::round_all(buffer);
            // SAFETY: the buffer begins at `at` and ends inside `len`, for which the caller promises room.
            unsafe { V::write_all(buffer, values.add(at)) }
        }
    }
}

/// Multiplies the values from `at` on, counted in the row, each by the scale of its group.
fn multiply<S: Float>(values: &mut [f32], scale: &[S], at: usize, group: usize) {
    let mut rest = values;
    let mut at = at;
    while !rest.is_empty() {
        let s: f32 = scale[at / group].as_();
        let (of_group, others) = rest.split_at_mut((group - at % group).min(rest.len()));
        of_group.iter_mut().for_each(|x| *x *= s);
        at += of_group.len();
        rest = others;
    }
}
