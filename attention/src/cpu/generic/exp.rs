//! The exponential function.

use super::tiles::Tiles;

/// The smallest x with `exp(x)` at least 2^-126, below which [`exp`] is 0.
pub(crate) const UNDERFLOW: f32 = -87.336_54;

/// 1.5 * 2^23: a sum with it has no bits behind the point.
const INTEGER: f32 = 12_582_912.0;

/// ln 2 in two parts; the first is 355 / 512, whose products with integers below 2^15 are exact.
const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];

/// `(e^r - 1 - r) / r^2` within 2^-26 / r^2 for |r| <= ln 2 / 2 (minimax), the highest power first.
const POLYNOMIAL: [f32; 5] = [0.001_392_625, 0.008_363_233, 0.041_666_552, 0.166_665_76, 0.5];

/// `e^x` for x <= 0, within 2 units in the last place; 1 for 0, 0 below [`UNDERFLOW`], NaN for NaN.
///
/// x is `n * ln 2 + r`, and `e^x` is `2^n * e^r`.
///
/// # Safety
/// The instruction set is enabled.
#[inline(always)]
pub(crate) unsafe fn exp<S: Tiles>(x: S::F32) -> S::F32 {
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
        let power = S::power_of_two(integer);
        S::if_less(x, S::splat(UNDERFLOW), S::splat(0.0), S::mul_add(p, power, power))
    }
}

#[cfg(test)]
mod tests {
    use kvcache_simd::{Portable, Simd};

    use super::*;

    fn exp_of(x: f32) -> f32 {
        // SAFETY: plain Rust runs on every machine.
        unsafe { exp::<Portable>(Portable::splat(x))[0] }
    }

    /// One number of 1009 from -0 down to the smallest that does not underflow, on plain Rust, which rounds most.
    #[test]
    fn the_error_is_within_two_units_in_the_last_place() {
        let mut worst = 0f64;
        for bits in (0x8000_0000u32..=UNDERFLOW.to_bits()).step_by(1009) {
            let x = f32::from_bits(bits);
            let expected = f64::from(x).exp();
            let unit = f64::from(f32::from_bits((expected as f32).to_bits() + 1)) - f64::from(expected as f32);
            worst = worst.max((f64::from(exp_of(x)) - expected).abs() / unit);
        }
        assert!(worst < 2.0, "{worst} units");
    }

    #[test]
    fn one_zero_and_nan() {
        assert_eq!([0.0, -0.0].map(exp_of), [1.0, 1.0]);
        assert_eq!(exp_of(f32::NEG_INFINITY).to_bits(), 0);
        assert_eq!(exp_of(-1e30).to_bits(), 0);
        assert_eq!(exp_of(f32::from_bits(UNDERFLOW.to_bits() + 1)).to_bits(), 0);
        assert!(exp_of(UNDERFLOW) >= f32::MIN_POSITIVE);
        assert!(exp_of(f32::NAN).is_nan());
    }
}
