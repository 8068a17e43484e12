//! The exponential function, and the hyperbolic tangent.

use super::tiles::Tiles;

/// The smallest x with `exp(x)` at least 2^-126, below which [`exp`] is 0.
pub(crate) const UNDERFLOW: f32 = -87.336_54;

/// 1.5 * 2^23: a sum with it has no bits after the point.
const INTEGER: f32 = 12_582_912.0;

/// ln 2 in two parts; the first is 355 / 512, whose products with integers below 2^15 are exact.
const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];

/// `(e^r - 1 - r) / r^2` within 2^-26 / r^2 for |r| <= ln 2 / 2 (minimax), the highest power first.
const POLYNOMIAL: [f32; 5] = [0.001_392_625, 0.008_363_233, 0.041_666_552, 0.166_665_76, 0.5];

/// The magnitude from which on [`tanh`] is 1.
const ONE: f32 = 10.0;

/// `e^x` for x <= 0, within 2 units in the last place; 1 for 0, 0 below [`UNDERFLOW`], NaN for NaN.
///
/// # Safety
/// The instruction set is enabled.
#[inline(always)]
pub(crate) unsafe fn exp<S: Tiles>(x: S::F32) -> S::F32 {
    // SAFETY: see `# Safety`.
    unsafe {
        let [p, power] = split::<S>(x);
        S::if_less(x, S::splat(UNDERFLOW), S::splat(0.0), S::mul_add(p, power, power))
    }
}

/// `tanh x`, within 3 units in the last place; NaN for NaN.
///
/// It has the sign of x and the magnitude of `m / (m + 2)`, where m is `e^(-2 |x|) - 1`.
///
/// # Safety
/// The instruction set is enabled.
#[inline(always)]
pub(crate) unsafe fn tanh<S: Tiles>(x: S::F32) -> S::F32 {
    // SAFETY: see `# Safety`.
    unsafe {
        let [sign, magnitude] = [1 << 31, (1 << 31) - 1].map(|bits| S::splat_bits(bits));
        let (most, own) = (S::splat(ONE), S::and_bits(x, magnitude));
        let [p, power] = split::<S>(S::mul(S::if_less(most, own, most, own), S::splat(-2.0)));
        let m = S::mul_add(p, power, S::sub(power, S::splat(1.0)));
        let tanh = S::div(m, S::add(m, S::splat(2.0)));
        S::or_bits(S::and_bits(tanh, magnitude), S::and_bits(x, sign))
    }
}

/// `[p, 2^n]`, of which `e^x` is `2^n * (1 + p)`, for x from [`UNDERFLOW`] to 0; NaN and any number for NaN.
///
/// x is `n * ln 2 + r`, and p is `e^r - 1`.
///
/// # Safety
/// The instruction set is enabled.
#[inline(always)]
unsafe fn split<S: Tiles>(x: S::F32) -> [S::F32; 2] {
    // SAFETY: see `# Safety`.
    unsafe {
        let integer = S::mul_add(x, S::splat(std::f32::consts::LOG2_E), S::splat(INTEGER));
        let n = S::sub(integer, S::splat(INTEGER));
        let r = S::mul_add(n, S::splat(-LN_2[0]), x);
        let r = S::mul_add(n, S::splat(-LN_2[1]), r);
        let mut p = S::splat(POLYNOMIAL[0]);
        for c in &POLYNOMIAL[1..] {
            p = S::mul_add(p, r, S::splat(*c));
        }
        let p = S::mul_add(S::mul(p, r), r, r);
        [p, S::power_of_two(integer)]
    }
}

#[cfg(test)]
mod tests {
    use std::ops::RangeInclusive;

    use kvcache_simd::{Portable, Simd};

    use super::*;

    fn exp_of(x: f32) -> f32 {
        // SAFETY: plain Rust runs on every machine.
        unsafe { exp::<Portable>(Portable::splat(x))[0] }
    }

    fn tanh_of(x: f32) -> f32 {
        // SAFETY: plain Rust runs on every machine.
        unsafe { tanh::<Portable>(Portable::splat(x))[0] }
    }

    /// The largest error of `got` in units in the last place of `expected`, over one number of 1009 of these.
    fn worst(bits: RangeInclusive<u32>, got: fn(f32) -> f32, expected: fn(f64) -> f64) -> f64 {
        bits.step_by(1009).map(f32::from_bits).fold(0.0, |worst: f64, x| {
            let expected = expected(f64::from(x));
            let rounded = (expected as f32).abs();
            let unit = f64::from(rounded.next_up()) - f64::from(rounded);
            worst.max((f64::from(got(x)) - expected).abs() / unit)
        })
    }

    /// On plain Rust, which rounds most.
    #[test]
    fn errors_are_within_units_in_the_last_place() {
        let exp = worst(0x8000_0000..=UNDERFLOW.to_bits(), exp_of, f64::exp);
        assert!(exp < 2.0, "{exp} units");
        let tanh = worst(0..=ONE.to_bits(), tanh_of, f64::tanh);
        assert!(tanh < 3.0, "{tanh} units");
    }

    #[test]
    fn one_zero_and_nan() {
        assert_eq!([0.0, -0.0].map(exp_of), [1.0, 1.0]);
        assert_eq!(exp_of(f32::NEG_INFINITY).to_bits(), 0);
        assert_eq!(exp_of(-1e30).to_bits(), 0);
        assert_eq!(exp_of(f32::from_bits(UNDERFLOW.to_bits() + 1)).to_bits(), 0);
        assert!(exp_of(UNDERFLOW) >= f32::MIN_POSITIVE);
        assert!(exp_of(f32::NAN).is_nan());
        assert_eq!([0.0, -0.0].map(|x| tanh_of(x).to_bits()), [0.0f32, -0.0].map(f32::to_bits));
        assert_eq!([10.0, f32::INFINITY, f32::NEG_INFINITY].map(tanh_of), [1.0, 1.0, -1.0]);
        assert_eq!(tanh_of(-0.3), -tanh_of(0.3));
        assert!(tanh_of(f32::NAN).is_nan());
    }
}
