//! The kernels multiply by a reciprocal, correct the quotient, and do not clamp: the result is that of division and
//! clamping.

use kvcache_emulation_kernels::{wrong_of_float16, wrong_of_float32};
use proptest::prelude::*;

const LARGEST_FLOAT16: u16 = 0x7bff;

#[test]
fn float16_samples() {
    let all = (0..=LARGEST_FLOAT16).step_by(97).chain(LARGEST_FLOAT16 - 40..=LARGEST_FLOAT16);
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
