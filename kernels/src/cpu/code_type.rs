//! The types of codes, as they lie in a quantized cache.

use kvcache_schema::QuantBit;
use kvcache_simd::e4m3_to_f32;

use crate::quantize;

/// The type of a cache's codes.
pub(crate) trait CodeType {
    /// The codes' width. It is a constant: what depends on it is compiled for one type.
    const BITS: QuantBit;

    /// The bytes that `len` codes take.
    #[inline(always)]
    fn bytes(len: usize) -> usize {
        match Self::BITS {
            QuantBit::Eight | QuantBit::Float8 => len,
            QuantBit::Four => len / 2,
        }
    }
}

/// int8: one code a byte.
pub(crate) struct Int8;

/// int4: two codes a byte, the first in the low nibble.
pub(crate) struct Int4;

/// float8e4m3fn: one code a byte.
pub(crate) struct Float8;

impl CodeType for Int8 {
    const BITS: QuantBit = QuantBit::Eight;
}

impl CodeType for Int4 {
    const BITS: QuantBit = QuantBit::Four;
}

impl CodeType for Float8 {
    const BITS: QuantBit = QuantBit::Float8;
}

/// Packs the codes `code(0)` to `code(len - 1)` into `Q::bytes(len)` bytes at `to`.
///
/// # Safety
/// `to` is valid for writes of that many bytes.
pub(crate) unsafe fn pack<Q: CodeType>(len: usize, code: impl Fn(usize) -> i8, to: *mut u8) {
    for i in 0..Q::bytes(len) {
        let byte = match Q::BITS {
            QuantBit::Eight | QuantBit::Float8 => code(i) as u8,
            QuantBit::Four => quantize::with_nibble(quantize::with_nibble(0, 0, code(2 * i)), 1, code(2 * i + 1)),
        };
        // SAFETY: i < Q::bytes(len).
        unsafe { to.add(i).write(byte) }
    }
}

/// Fills `to` with as many codes from packed bytes.
pub(crate) fn unpack<Q: CodeType>(from: &[u8], to: &mut [f32]) {
    match Q::BITS {
        QuantBit::Eight => to.iter_mut().zip(from).for_each(|(to, &byte)| *to = f32::from(byte as i8)),
        QuantBit::Float8 => to.iter_mut().zip(from).for_each(|(to, &byte)| *to = e4m3_to_f32(byte)),
        QuantBit::Four => {
            for (to, &byte) in to.chunks_exact_mut(2).zip(from) {
                to[0] = f32::from(quantize::nibble(byte, 0));
                to[1] = f32::from(quantize::nibble(byte, 1));
            }
        }
    }
}
