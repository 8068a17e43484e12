//! The attention kernels' exponential is accurate, and so are ALiBi's slopes.

use kvcache_attention::alibi_slopes;
use kvcache_emulation_kernels::{alibi_slope, exponential};

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

/// Every number: a billion.
#[test]
#[ignore = "takes a minute; run it when exponential.cuh changes"]
fn two_units_in_the_last_place_for_every_number() {
    let error = largest_error(0..=last());
    println!("{error} units in the last place");
    assert!(error <= 2.0, "{error}");
}

#[test]
fn edges() {
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
