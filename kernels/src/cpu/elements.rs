//! The types of a row's elements: floats, and codes as they lie in a quantized cache.

use half::f16;
use half::slice::HalfFloatSliceExt;
use kvcache_schema::QuantBit;

use crate::quantize::{self, Real};

/// Elements in a buffer on the stack; even, so that a full buffer is whole bytes of int4.
pub(crate) const BUFFER: usize = 128;

/// A float type of which buffers of float32 are read and written: `half` converts whole slices with the machine's own
/// instructions where it has them.
pub(crate) trait Float: Real {
    /// Fills `to` with as many values.
    fn read_all(from: &[Self], to: &mut [f32]);

    /// Rounds each of at most [`BUFFER`] values to this type.
    fn round_all(values: &mut [f32]);

    /// Writes at most [`BUFFER`] values, rounded to this type.
    ///
    /// # Safety
    /// `to` is aligned and valid for writes of as many elements, which may be uninitialized.
    unsafe fn write_all(from: &[f32], to: *mut Self);
}

impl Float for f32 {
    fn read_all(from: &[Self], to: &mut [f32]) {
        to.copy_from_slice(from);
    }

    fn round_all(_: &mut [f32]) {}

    unsafe fn write_all(from: &[f32], to: *mut Self) {
        // SAFETY: `to` is valid for from.len() elements; a buffer on the stack overlaps no operand.
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
        // SAFETY: `to` is valid for from.len() elements; a buffer on the stack overlaps no operand.
        unsafe { to.copy_from_nonoverlapping(rounded.as_ptr(), rounded.len()) }
    }
}

/// How codes lie in the cache.
pub(crate) trait Codes {
    /// The codes' width.
    const BITS: QuantBit;

    /// The bytes that `len` codes take.
    fn bytes(len: usize) -> usize;

    /// Packs the codes `code(0)` to `code(len - 1)` into `bytes(len)` bytes at `to`.
    ///
    /// # Safety
    /// `to` is valid for writes of that many bytes.
    unsafe fn pack(len: usize, code: impl Fn(usize) -> i8, to: *mut u8);

    /// Fills `to` with as many codes from packed bytes.
    fn unpack(from: &[u8], to: &mut [f32]);
}

/// int8: one code a byte.
pub(crate) struct Int8;

/// int4: two codes a byte, the first in the low nibble.
pub(crate) struct Int4;

impl Codes for Int8 {
    const BITS: QuantBit = QuantBit::Eight;

    fn bytes(len: usize) -> usize {
        len
    }

    unsafe fn pack(len: usize, code: impl Fn(usize) -> i8, to: *mut u8) {
        for i in 0..len {
            // SAFETY: i < len = bytes(len).
            unsafe { to.add(i).write(code(i) as u8) }
        }
    }

    fn unpack(from: &[u8], to: &mut [f32]) {
        for (to, &byte) in to.iter_mut().zip(from) {
            *to = f32::from(byte as i8);
        }
    }
}

impl Codes for Int4 {
    const BITS: QuantBit = QuantBit::Four;

    fn bytes(len: usize) -> usize {
        len / 2
    }

    unsafe fn pack(len: usize, code: impl Fn(usize) -> i8, to: *mut u8) {
        for i in 0..len / 2 {
            let byte = quantize::with_nibble(quantize::with_nibble(0, 0, code(2 * i)), 1, code(2 * i + 1));
            // SAFETY: i < len / 2 = bytes(len).
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
