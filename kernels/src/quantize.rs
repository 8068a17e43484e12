//! The codec of one quantized head, one element at a time: scales, codes, and how codes are packed.
//!
//! A head's values are cut into groups of `quant_group` neighbors along `head_dim`, and each group has a scale. With T1
//! the type of the values, T3 of the scales, and `qmax` 127 for eight bits, 8 for four and 448 for float8:
//!
//! 1. `s = max(amax / qmax, 1e-5)`, `amax` being the largest magnitude of the group; the quotient and the constant are
//!    rounded to T1 (in float16 the constant is 168 * 2^-24). With four bits `-s` where an element is `amax` and none
//!    `-amax`: so the largest element becomes -8;
//! 2. `code = clamp(round(x / s), low, high)`, from -127 to 127 or from -8 to 7; the quotient is rounded to T1 first,
//!    then to an integer, or to a float8, of which a zero has the sign of x;
//! 3. `scale = T3(s)`;
//! 4. `value = T1(T3(code) * scale)`; the product is rounded to T3 first, then to T1.
//!
//! With static scales, which are given, there is no group: `code = round(x / scale)` as float32, see [`static_code`].
//!
//! Every rounding is to nearest, ties to even. Codes are made with `s`, before it is rounded to T3. A float16 operation
//! is a float32 operation whose result is rounded to float16: for division and multiplication the second rounding
//! changes nothing, since float32 has more than twice the precision and two bits.
//!
//! Non-finite values propagate: a NaN in a group makes its scale NaN, else an infinity makes it infinite. The group's
//! codes are then 0, and all its values load as NaN. Finite values can have an infinite scale, too: in
//! float32 groups whose `s` is past the largest float16, where T3 is float16.
//!
//! This is the arithmetic that all kernels share: the reference kernel calls it, every other must match it bit for bit.

use kvcache_schema::{QuantBit, SCALE_FLOOR};
pub use kvcache_simd::Float;
use kvcache_simd::{e4m3_from_f32, e4m3_to_f32};

/// How heads are quantized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadCodec {
    /// The width of a code.
    pub bits: QuantBit,
    /// Neighbors that share a scale (`quant_group`); divides the length of a head, and is even for four bits.
    pub group: usize,
}

impl HeadCodec {
    /// The bytes that the codes of `len` values take.
    pub const fn code_bytes(&self, len: usize) -> usize {
        match self.bits {
            QuantBit::Eight | QuantBit::Float8 => len,
            QuantBit::Four => len / 2,
        }
    }

    /// Quantizes a head: its codes, as `cache` has them, and its scales.
    ///
    /// # Panics
    /// If the group does not divide the head, or is odd with four bits, or `codes` or `scales` have another length than
    /// the head's.
    pub fn encode<T1: Float, T3: Float>(&self, values: &[T1], codes: &mut [u8], scales: &mut [T3]) {
        self.check(values.len(), codes.len(), scales.len());
        for (g, (group, stored)) in values.chunks_exact(self.group).zip(scales).enumerate() {
            let s = scale(group, self.bits);
            *stored = T3::from_f32(s.to_f32());
            for (i, &x) in (g * self.group..).zip(group) {
                let q = code(x, s, self.bits);
                match self.bits {
                    QuantBit::Eight | QuantBit::Float8 => codes[i] = q as u8,
                    QuantBit::Four => codes[i / 2] = with_nibble(codes[i / 2], i, q),
                }
            }
        }
    }

    /// The codes of a head of float8 with its static scales, as `cache` has them.
    ///
    /// # Panics
    /// On the lengths on which [`encode`](Self::encode) panics, and for other codes.
    pub fn encode_static<T1: Float, T3: Float>(&self, values: &[T1], codes: &mut [u8], scales: &[T3]) {
        assert_eq!(self.bits, QuantBit::Float8, "codes with static scales");
        self.check(values.len(), codes.len(), scales.len());
        let groups = values.chunks_exact(self.group).zip(codes.chunks_exact_mut(self.group));
        for ((group, codes), &scale) in groups.zip(scales) {
            for (code, &x) in codes.iter_mut().zip(group) {
                *code = static_code(x.to_f32(), scale.to_f32());
            }
        }
    }

    /// Dequantizes a head.
    ///
    /// # Panics
    /// On the lengths on which [`encode`](Self::encode) panics.
    pub fn decode<T1: Float, T3: Float>(&self, codes: &[u8], scales: &[T3], values: &mut [T1]) {
        self.check(values.len(), codes.len(), scales.len());
        for (g, (group, &scale)) in values.chunks_exact_mut(self.group).zip(scales).enumerate() {
            for (i, x) in (g * self.group..).zip(group) {
                let q = match self.bits {
                    QuantBit::Eight | QuantBit::Float8 => codes[i] as i8,
                    QuantBit::Four => nibble(codes[i / 2], i),
                };
                *x = value(q, scale, self.bits);
            }
        }
    }

    /// Panics unless a head of `len` values has that many bytes of codes and that many scales.
    fn check(&self, len: usize, codes: usize, scales: usize) {
        let Self { bits, group } = *self;
        assert!(group > 0 && len.is_multiple_of(group), "groups of {group} in a head of {len}");
        assert!(bits != QuantBit::Four || group.is_multiple_of(2), "groups of {group} share bytes of int4");
        assert_eq!((codes, scales), (self.code_bytes(len), len / group), "codes and scales of a head of {len}");
    }
}

/// The scale of a group, in the values' type, before it is rounded to T3. NaN if the group holds a NaN.
pub fn scale<T1: Float>(group: &[T1], bits: QuantBit) -> T1 {
    // In total order a NaN is above infinity, and of several the one of the largest payload counts: the order of the
    // elements does not matter, so kernels may take maxima in any.
    let amax = group.iter().map(|x| x.to_f32().abs()).max_by(f32::total_cmp).unwrap_or(0.0);
    let quotient = T1::from_f32(amax / f32::from(bits.qmax()));
    let floor = T1::from_f32(SCALE_FLOOR);
    let size = if quotient.to_f32() < floor.to_f32() { floor } else { quotient };
    // Never of a NaN, which equals nothing.
    let has = |value: f32| group.iter().any(|x| x.to_f32() == value);
    if bits.has_signed_scales() && amax > 0.0 && has(amax) && !has(-amax) { T1::from_f32(-size.to_f32()) } else { size }
}

/// The code of `x` in a group with scale `s` (of [`scale`]): of integers -127 to 127 or -8 to 7, of float8 its bits;
/// 0 if `s` is not finite.
pub fn code<T1: Float>(x: T1, s: T1, bits: QuantBit) -> i8 {
    let quotient: f32 = T1::from_f32(x.to_f32() / s.to_f32()).to_f32();
    if bits == QuantBit::Float8 {
        return if s.to_f32().is_finite() { e4m3_from_f32(quotient) as i8 } else { 0 };
    }
    let low = f32::from(-bits.qmax());
    let high = if bits.has_signed_scales() { -low - 1.0 } else { -low };
    quotient.round_ties_even().clamp(low, high) as i8
}

/// The float8 of `x` with a static scale: saturated, or a NaN, which like every code has the sign of `x`, or the other
/// where the scale's is set.
pub fn static_code(x: f32, scale: f32) -> u8 {
    let sign = (x.to_bits() ^ scale.to_bits()) >> 24 & 0x80;
    e4m3_from_f32(x.abs() / scale.abs()) & 0x7f | sign as u8
}

/// The value of code `q` in a group whose stored scale is `scale`.
pub fn value<T1: Float, T3: Float>(q: i8, scale: T3, bits: QuantBit) -> T1 {
    let number = if bits == QuantBit::Float8 { e4m3_to_f32(q as u8) } else { f32::from(q) };
    T1::from_f32(T3::from_f32(number * scale.to_f32()).to_f32())
}

/// Code `i` of packed int4, from the byte that holds it: the low nibble if `i` is even, else the high one.
pub fn nibble(byte: u8, i: usize) -> i8 {
    let high = if i.is_multiple_of(2) { byte << 4 } else { byte };
    high as i8 >> 4
}

/// The byte that holds code `i` of packed int4, with `q` in its place.
pub fn with_nibble(byte: u8, i: usize, q: i8) -> u8 {
    let q = q as u8 & 0x0f;
    if i.is_multiple_of(2) { byte & 0xf0 | q } else { byte & 0x0f | q << 4 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_of_another_shape_are_refused() {
        let panics = |bits, group, len: usize, codes: usize, scales: usize| {
            let codec = HeadCodec { bits, group };
            let (mut codes, mut scales) = (vec![0; codes], vec![0.0f32; scales]);
            let mut values = vec![0.0f32; len];
            let encodes =
                std::panic::catch_unwind(|| codec.encode(&values.clone(), &mut codes.clone(), &mut scales.clone()));
            let decodes = std::panic::catch_unwind(move || {
                codec.decode(&codes, &scales, &mut values);
                (codes.clear(), scales.clear())
            });
            assert_eq!(encodes.is_err(), decodes.is_err());
            encodes.is_err()
        };
        assert!(!panics(QuantBit::Eight, 3, 6, 6, 2));
        assert!(panics(QuantBit::Four, 3, 6, 3, 2));
        assert!(!panics(QuantBit::Four, 2, 6, 3, 3));
        assert!(panics(QuantBit::Eight, 4, 6, 6, 1));
        assert!(panics(QuantBit::Eight, 0, 6, 6, 1));
        assert!(panics(QuantBit::Eight, 3, 6, 5, 2));
        assert!(panics(QuantBit::Eight, 3, 6, 6, 3));
    }
}
