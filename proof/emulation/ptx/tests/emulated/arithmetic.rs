//! The attention kernels' exponential is accurate, and so are ALiBi's slopes.

use kvcache_attention::alibi_slopes;
use kvcache_emulation_ptx::{Access, DeviceMemory, Memory, Order, Shape, kernels, run};
use kvcache_kernels::cuda::{BLOCK, Module};
use kvcache_kernels::modules;

/// Functions of the kernels' sources by themselves.
static ARITHMETIC: [Module; 1] = include!("../../arithmetic/ptx/modules.rs");

/// A function of the kernels' sources, of each number.
fn function(kernel: &str, argument: u32, numbers: &[f32]) -> Vec<f32> {
    let memory = DeviceMemory::of(&numbers.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>());
    let count = numbers.len() as u32;
    let parameters = [&memory.address().to_le_bytes()[..], &count.to_le_bytes(), &argument.to_le_bytes()].concat();
    let grid = count.div_ceil(BLOCK);
    let shape = Shape { grid, block: BLOCK, parameters: &parameters, order: Order::Forward, counts: false };
    let kernels = kernels(&ARITHMETIC[0].ptx().unwrap(), false).unwrap();
    // SAFETY: the region lives, and nobody else uses it.
    unsafe { run(&kernels[kernel], &Memory::new([memory.region(Access::Write)]), shape) }.unwrap();
    memory.bytes().as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect()
}

fn exponential(numbers: &[f32]) -> Vec<f32> {
    function("kvcache_exponential_arithmetic", 0, numbers)
}

/// The distance from the exact value in units in the last place of the exact value.
fn ulps(got: f32, exact: f64) -> f64 {
    let unit = 2f64.powi(exact.log2().floor() as i32 - 23);
    (f64::from(got) - exact).abs() / unit
}

/// The numbers -x of these bits have exponentials within two units in the last place.
fn two_units(bits: impl Iterator<Item = u32>) {
    let numbers: Vec<_> = bits.map(|bits| -f32::from_bits(bits)).collect();
    for (got, x) in exponential(&numbers).into_iter().zip(numbers) {
        assert!(ulps(got, f64::from(x).exp()) <= 2.0, "{x}: {got}");
    }
}

/// The bits of the largest -x whose exponential is a normal number.
fn last() -> u32 {
    87.336_54f32.to_bits()
}

#[test]
fn two_units_in_the_last_place() {
    two_units((0..=last()).step_by(1021).chain(last() - 100_000..=last()));
}

#[test]
#[ignore = "takes minutes; run it when exponential.cuh changes"]
fn two_units_in_the_last_place_for_every_number() {
    (0..=last()).step_by(1 << 20).for_each(|first| two_units(first..last().min(first + (1 << 20))));
}

#[test]
fn edges_of_the_exponential() {
    let edges = [0.0, -0.0, f32::NEG_INFINITY, -87.34, f32::MIN, f32::NAN];
    let [got @ .., nan] = exponential(&edges).try_into().unwrap_or([1.0; 6]);
    assert!(got == [1.0, 1.0, 0.0, 0.0, 0.0] && nan.is_nan(), "{got:?} {nan}");
}

#[test]
fn slopes() {
    for num_heads in (1..130).chain([256, 1000]) {
        let got = function("kvcache_alibi_slope_arithmetic", 1 << usize::ilog2(num_heads), &vec![0.0; num_heads]);
        for (h, (got, expected)) in got.into_iter().zip(alibi_slopes(num_heads)).enumerate() {
            let error = ulps(got, expected.into());
            assert!(error <= 2.0, "slope {h} of {num_heads}: {error}");
        }
    }
}
