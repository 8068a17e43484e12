//! The arithmetic of a quantized group, one element at a time.
//!
//! Written from the specification: with T1 the type of the values and T3 the type of the scale,
//! `s = max(amax / qmax, 1e-5)` and `x / s` are rounded to T1 at each step, `T3(q) * scale` is rounded to T3.
//! A float16 operation is a float32 operation whose result is rounded to float16; for division and multiplication the
//! second rounding changes nothing, since float32 has more than twice the precision and two bits.

use half::f16;
use kvcache_schema::{QuantBit, SCALE_FLOOR};
use num_traits::AsPrimitive;

/// A float type of values or scales: float32 or float16.
pub(crate) trait Real: AsPrimitive<f32> {
    /// `x`, rounded to this type: to nearest, ties to even.
    fn round(x: f32) -> Self;
}

impl Real for f32 {
    fn round(x: f32) -> Self {
        x
    }
}

impl Real for f16 {
    fn round(x: f32) -> Self {
        f16::from_f32(x)
    }
}

/// The scale of a group, in the values' type, before its conversion to T3. NaN if the group holds a NaN.
pub(crate) fn scale<T1: Real>(group: &[T1], bits: QuantBit) -> T1 {
    // In total order a NaN is above infinity, and of several the one of the largest payload counts: the order of the
    // elements does not matter, so kernels may take maxima in any.
    let amax = group.iter().map(|x| x.as_().abs()).max_by(f32::total_cmp).unwrap_or(0.0);
    let quotient = T1::round(amax / f32::from(bits.qmax()));
    let floor = T1::round(SCALE_FLOOR);
    if quotient.as_() < floor.as_() { floor } else { quotient }
}

/// The code of `x` in a group with scale `s`, in `-qmax..=qmax`; 0 if `x / s` is NaN.
pub(crate) fn code<T1: Real>(x: T1, s: T1, bits: QuantBit) -> i8 {
    let quotient: f32 = T1::round(x.as_() / s.as_()).as_();
    let qmax = f32::from(bits.qmax());
    quotient.round_ties_even().clamp(-qmax, qmax) as i8
}

/// The value of code `q` in a group with scale `scale`.
pub(crate) fn value<T1: Real, T3: Real>(q: i8, scale: T3) -> T1 {
    T1::round(T3::round(f32::from(q) * scale.as_()).as_())
}

/// Element `i` (its parity decides) of the byte it is packed into.
pub(crate) fn nibble(byte: u8, i: usize) -> i8 {
    let high = if i.is_multiple_of(2) { byte << 4 } else { byte };
    high as i8 >> 4
}

/// `byte` with `q` as element `i` (its parity decides).
pub(crate) fn with_nibble(byte: u8, i: usize, q: i8) -> u8 {
    let q = q as u8 & 0x0f;
    if i.is_multiple_of(2) { byte & 0xf0 | q } else { byte & 0x0f | q << 4 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_all_zero_group_has_the_floor_as_scale() {
        assert_eq!(scale(&[0.0f32; 8], QuantBit::Eight), 1e-5);
        assert_eq!(scale(&[f16::ZERO; 8], QuantBit::Four), f16::from_f32(168.0 * 2f32.powi(-24)));
        assert_eq!(code(0.0f32, 1e-5, QuantBit::Eight), 0);
    }

    #[test]
    fn ties_go_to_even_and_codes_are_clamped() {
        let codes = |x: f32| code(x, 1.0, QuantBit::Eight);
        assert_eq!([0.5, 1.5, 2.5, -0.5, -1.5, 500.0, -500.0].map(codes), [0, 2, 2, 0, -2, 127, -127]);
        assert_eq!(code(-9.0f32, 1.0, QuantBit::Four), -7);
    }

    #[test]
    fn the_float16_quotient_is_rounded_before_it_becomes_an_integer() {
        // The quotient is 33.4985...: 33. Rounded to float16 it is 33.5, a tie, and goes to 34.
        let (x, s) = (33.53125, 1.0 + 2f32.powi(-10));
        assert_eq!(code(x, s, QuantBit::Eight), 33);
        assert_eq!(code(f16::from_f32(x), f16::from_f32(s), QuantBit::Eight), 34);
    }

    #[test]
    fn poison_shows() {
        for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let group = [1.0, poison, 2.0, 3.0];
            let s = scale(&group, QuantBit::Eight);
            assert!(!s.is_finite());
            for x in group {
                let q = code(x, s, QuantBit::Eight);
                assert_eq!(q, 0, "{x} in {group:?}");
                assert!(value::<f32, f32>(q, s).is_nan());
            }
        }
    }

    #[test]
    fn nibbles_are_signed_and_low_first() {
        for low in -8i8..8 {
            for high in -8i8..8 {
                let byte = with_nibble(with_nibble(0xa5, 0, low), 1, high);
                assert_eq!((nibble(byte, 0), nibble(byte, 1)), (low, high));
                assert_eq!(byte & 0x0f, low as u8 & 0x0f);
            }
        }
    }
}
