//! The kernels multiply by a reciprocal, correct the quotient, and do not clamp: the result is that of division and
//! clamping. The attention kernels' exponential is accurate, and so are ALiBi's slopes.

use kvcache_attention::alibi_slopes;
use kvcache_emulation_kernels::{alibi_slope, exponential, wrong_of_float16, wrong_of_float32};
use proptest::prelude::*;

const LARGEST_FLOAT16: u16 = 0x7bff;

#[test]
fn float16_samples() {
    let all = (0..=LARGEST_FLOAT16).step_by(211).chain(LARGEST_FLOAT16 - 40..=LARGEST_FLOAT16);
    assert_eq!(all.map(wrong_of_float16).sum::<u64>(), 0);
}

/// Every scale and every value: a billion codes of either sign, for each of three reciprocals.
#[test]
#[ignore = "takes a minute; run it when quantize.cuh changes"]
fn float16_all() {
    assert_eq!((0..=LARGEST_FLOAT16).map(wrong_of_float16).sum::<u64>(), 0);
}

/// Bits of finite magnitudes: any, those near the floor of the scale, and those near powers of two.
fn magnitudes() -> impl Strategy<Value = u32> {
    prop_oneof![
        0..0x7f80_0000u32,
        0x3700_0000..0x4700_0000u32,
        (0..255u32, 0..16u32).prop_map(|(exponent, units)| (exponent << 23) + units),
        (1..256u32, 1..16u32).prop_map(|(exponent, units)| (exponent << 23) - units),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Values anywhere, and near the ties between two codes, where one unit in the last place decides.
    #[test]
    fn float32(
        amax in magnitudes(),
        anywhere in prop::collection::vec(any::<u32>(), 32),
        near in prop::collection::vec((-127..127i32, -4..4i32, prop_oneof![Just(127.0f32), Just(7.0)]), 64),
    ) {
        let near_ties = near.iter().map(|&(code, units, qmax)| {
            let scale = (f32::from_bits(amax) / qmax).max(1e-5);
            ((code as f32 + 0.5) * scale).to_bits().wrapping_add_signed(units)
        });
        let values: Vec<u32> = anywhere.iter().copied().chain(near_ties).collect();
        prop_assert_eq!(wrong_of_float32(amax, &values), 0);
    }
}

/// The distance from the exact value in units in the last place of the exact value.
fn ulps(got: f32, exact: f64) -> f64 {
    let unit = 2f64.powi(exact.log2().floor() as i32 - 23);
    (f64::from(got) - exact).abs() / unit
}

/// The largest error for some x, given by the bits of -x.
fn largest_error(bits: impl Iterator<Item = u32>) -> f64 {
    bits.map(|bits| -f32::from_bits(bits)).map(|x| ulps(exponential(x), f64::from(x).exp())).fold(0.0, f64::max)
}

/// The bits of the largest -x whose exponential is a normal number.
fn last() -> u32 {
    87.336_54f32.to_bits()
}

#[test]
fn two_units_in_the_last_place() {
    let error = largest_error((0..=last()).step_by(257).chain(last() - 100_000..=last()));
    println!("{error} units in the last place");
    assert!(error <= 2.0, "{error}");
}

#[test]
#[ignore = "takes a minute; run it when exponential.cuh changes"]
fn two_units_in_the_last_place_for_every_number() {
    let error = largest_error(0..=last());
    println!("{error} units in the last place");
    assert!(error <= 2.0, "{error}");
}

#[test]
fn edges_of_the_exponential() {
    assert_eq!(exponential(0.0).to_bits(), 1f32.to_bits());
    assert_eq!(exponential(-0.0).to_bits(), 1f32.to_bits());
    assert_eq!(exponential(f32::NEG_INFINITY), 0.0);
    assert_eq!(exponential(-87.34), 0.0);
    assert_eq!(exponential(f32::MIN), 0.0);
    assert!(exponential(f32::NAN).is_nan());
}

#[test]
fn slopes() {
    for num_heads in (1..130).chain([256, 1000]) {
        let c = 1 << usize::ilog2(num_heads);
        for (h, expected) in alibi_slopes(num_heads).into_iter().enumerate() {
            let error = ulps(alibi_slope(h as u32, c), expected.into());
            assert!(error <= 2.0, "slope {h} of {num_heads}: {error}");
        }
    }
}
