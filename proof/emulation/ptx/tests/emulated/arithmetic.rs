//! The kernels multiply by a reciprocal, correct the quotient, and do not clamp: the result is that of division and
//! clamping. The attention kernels' exponential is accurate, and so are ALiBi's slopes.

use kvcache_attention::alibi_slopes;
use kvcache_conformance::Tensor;
use kvcache_emulation_ptx::{
    Access, DeviceMemory, EmulatedAttention, EmulatedCuda, Freedom, Memory, Order, Shape, code, run,
};
use kvcache_kernels::cuda::{BLOCK, Module};
use kvcache_kernels::modules;
use kvcache_schema::ElementType;
use kvcache_testing::random::{Unstructured, one_head, passes};

use crate::golden::Emulated;

/// Elements of a group.
const GROUP: usize = 8;

/// The kernels store these groups as the reference does, in eight bits and in four, whatever the reciprocal's last bit.
fn stored(t1: ElementType, groups: &[u8]) {
    let tokens = groups.len() / t1.byte_len(GROUP);
    let current = Tensor::new(t1, vec![tokens, 1, GROUP], groups).unwrap();
    for t2 in [ElementType::Int8, ElementType::Int4] {
        let cache = Tensor::zeros(t2, vec![tokens, 1, 2, 1, GROUP]).unwrap();
        let scale = Tensor::zeros(t1, vec![tokens, 1, 2, 1, 1]).unwrap();
        let case = one_head([current.clone(), current.clone()], cache, scale, GROUP).case();
        for reciprocal in -1..=1 {
            let freedom = Freedom { reciprocal, ..Freedom::default() };
            let device = EmulatedCuda { freedom, unaligned: reciprocal == 0, ..EmulatedCuda::default() };
            let emulated = Emulated(EmulatedAttention { device, ..EmulatedAttention::default() });
            let passes = passes(&emulated, &case);
            assert!(passes.is_ok(), "{t1} {t2} {freedom:?}: {passes:?}");
        }
    }
}

/// Groups of float16 with each of these largest magnitudes, and in them every value that may be.
fn float16(magnitudes: impl Iterator<Item = u16>) {
    let mut groups = Vec::new();
    for amax in magnitudes {
        for first in (0..=amax).step_by(GROUP - 1) {
            groups.extend((amax | (first & 1) << 15).to_le_bytes());
            let signed = |x: u16| x.min(amax) | (x & 1) << 15;
            groups.extend((first..first + GROUP as u16 - 1).flat_map(|x| signed(x).to_le_bytes()));
        }
    }
    stored(ElementType::Float16, &groups);
}

const LARGEST_FLOAT16: u16 = 0x7bff;

#[test]
fn float16_samples() {
    float16((0..=LARGEST_FLOAT16).step_by(1999).chain(LARGEST_FLOAT16 - 3..=LARGEST_FLOAT16));
}

/// Every scale and every value.
#[test]
#[ignore = "takes an hour; run it when quantize.cuh changes"]
fn float16_all() {
    for first in (0..=LARGEST_FLOAT16).step_by(16) {
        float16(first..first + 16);
    }
}

/// Largest magnitudes anywhere, near the floor of the scale and near powers of two; values anywhere, and near the ties
/// between two codes, where one unit in the last place decides.
#[test]
fn float32_samples() {
    let entropy = &mut Unstructured::seed(1);
    let groups = (0..30_000).flat_map(|_| {
        let amax = match entropy.below(4) {
            0 => entropy.below(0x7f80_0000) as u32,
            1 => entropy.within(0x3700_0000, 0x4700_0000) as u32,
            2 => (entropy.below(255) << 23) as u32 + entropy.below(16) as u32,
            _ => (entropy.within(1, 255) << 23) as u32 - entropy.within(1, 15) as u32,
        };
        let scale = (f32::from_bits(amax) / entropy.pick(&[127.0, 8.0])).max(1e-5);
        let mut group = [amax; GROUP];
        group[0] |= u32::from(entropy.one_in(2)) << 31;
        for value in &mut group[1..] {
            let tie = (entropy.below(254) as f32 - 126.5) * scale;
            let near = tie.to_bits().wrapping_add_signed(entropy.below(8) as i32 - 4);
            let any = if entropy.one_in(4) { entropy.next() as u32 } else { near };
            *value = if any & 0x7fff_ffff > amax { amax | any & 1 << 31 } else { any };
        }
        group.into_iter().flat_map(u32::to_le_bytes)
    });
    stored(ElementType::Float32, &groups.collect::<Vec<_>>());
}

/// Functions of the kernels' sources by themselves.
static ARITHMETIC: [Module; 1] = include!("../../arithmetic/ptx/modules.rs");

/// A function of the kernels' sources, of each number.
fn function(kernel: &'static str, argument: u32, numbers: &[f32]) -> Vec<f32> {
    let memory = DeviceMemory::of(&numbers.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>(), 0);
    let count = numbers.len() as u32;
    let parameters = [&memory.address().to_le_bytes()[..], &count.to_le_bytes(), &argument.to_le_bytes()].concat();
    let grid = count.div_ceil(BLOCK);
    let shape = Shape { grid, block: BLOCK, parameters: &parameters, order: Order::Forward, counts: false };
    let kernel = code(&ARITHMETIC[0], kernel, Freedom::default());
    // SAFETY: the region lives, and nobody else uses it.
    unsafe { run(kernel, &Memory::new([memory.region(Access::Write)]), shape) }.unwrap();
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
