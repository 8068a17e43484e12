//! The types of codes, as they lie in a quantized cache.

use kvcache_schema::QuantBit;
use kvcache_simd::e4m3_to_f32;

use crate::quantize;

/// How codes lie in the cache.
pub(crate) trait CodeType {
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

/// float8e4m3fn: one code a byte.
pub(crate) struct Float8;

impl CodeType for Float8 {
    const BITS: QuantBit = QuantBit::Float8;

    fn bytes(len: usize) -> usize {
        len
    }

    unsafe fn pack(len: usize, code: impl Fn(usize) -> i8, to: *mut u8) {
        // SAFETY: this function's own condition: as many bytes.
        unsafe { Int8::pack(len, code, to) }
    }

    fn unpack(from: &[u8], to: &mut [f32]) {
        for (to, &byte) in to.iter_mut().zip(from) {
            *to = e4m3_to_f32(byte);
        }
    }
}

impl CodeType for Int8 {
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

impl CodeType for Int4 {
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
