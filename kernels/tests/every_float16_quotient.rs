//! Codes and scales of all float16 groups: every largest magnitude with every value up to it, on every instruction set.
//!
//! Kernels may compute quotients otherwise than by division; this proves that codes and scales are the reference
//! kernel's all the same. A release build tests all pairs, a debug build every 977th of the largest magnitudes.

use half::f16;
use kvcache_kernels::{
    Addressing, Cpu, Geometry, Indices, InstructionSet, Kernel, Pointers, Problem, Quant, Reference, Serial,
};
use kvcache_schema::{CacheDims, CacheLayout, ElementType, QuantBit};

/// Finite float16 that are not negative: their bits count from 0.
const FINITE: usize = 0x7c00;

/// Largest magnitudes in a call, half of them in keys.
const ROWS: usize = 64;

/// The cache and the scales after storing a group for each of the largest magnitudes.
fn store(kernel: &dyn Kernel, current: &[Vec<f16>; 2], bits: QuantBit) -> (Vec<u8>, Vec<f16>) {
    let tokens = current[0].len() / FINITE;
    let dims = CacheDims { max_t: tokens, num_layer: 1, num_heads: 1, inner: FINITE };
    let scale_dims = CacheDims { inner: 1, ..dims };
    let layout = CacheLayout::TokenMajor;
    let mut cache = vec![0u8; 2 * tokens * FINITE];
    let mut scale = vec![f16::ZERO; 2 * tokens];
    let mut outputs = [vec![f16::ZERO; tokens * FINITE], vec![f16::ZERO; tokens * FINITE]];
    let t2 = match bits {
        QuantBit::Eight => ElementType::Int8,
        QuantBit::Four => ElementType::Int4,
    };
    let geometry = Geometry {
        batch: 1,
        num_heads: 1,
        head_dim: FINITE,
        num_repeat: 1,
        layer_idx: 0,
        t1: ElementType::Float16,
        t2,
        quant: Some(Quant {
            bits,
            group: FINITE,
            t3: ElementType::Float16,
            scale_len: scale.len(),
            scale: layout.strides(scale_dims).unwrap(),
        }),
        cache_len: 2 * tokens * FINITE,
        cache: layout.strides(dims).unwrap(),
    };
    let indices = Indices {
        seqstarts: &[0, tokens as i64],
        kvstarts: &[0, tokens as i64],
        start_pos: &[0],
        addressing: Addressing::Offset { cachestarts: &[0] },
    };
    let pointers = Pointers {
        current: current.each_ref().map(|current| current.as_ptr().cast()),
        cache: cache.as_mut_ptr(),
        scale: scale.as_mut_ptr().cast(),
        outputs: outputs.each_mut().map(|output| output.as_mut_ptr().cast()),
    };
    // SAFETY: the types are legal, the one sequence's slots are the cache's tokens, and the vectors have the shapes'
    // lengths and live as long as the problem.
    let mut problem = unsafe { Problem::assume_checked(geometry, indices, pointers) };
    kernel.store(&mut problem, &Serial);
    (cache, scale)
}

#[test]
fn every_pair_of_int8_has_the_references_code_and_scale() {
    every_pair(QuantBit::Eight);
}

#[test]
fn every_pair_of_int4_has_the_references_code_and_scale() {
    every_pair(QuantBit::Four);
}

fn every_pair(bits: QuantBit) {
    let step = if cfg!(debug_assertions) { 977 } else { 1 };
    let magnitudes: Vec<usize> = (0..FINITE).rev().step_by(step).collect();
    let kernels: Vec<Cpu> = InstructionSet::ALL.into_iter().filter_map(Cpu::with_instructions).collect();
    for some in magnitudes.chunks(ROWS) {
        // Every value up to the largest magnitude, of either sign; then zeros.
        let row = |&amax: &usize| {
            (0..FINITE).map(move |bits| match bits {
                bits if bits > amax => f16::ZERO,
                bits => f16::from_bits((bits | (bits % 2) << 15) as u16),
            })
        };
        let (keys, values) = some.split_at(some.len() / 2);
        // An odd number leaves one more for the values; the keys then repeat one.
        let keys: Vec<f16> = keys.iter().chain(&values[..values.len() - keys.len()]).flat_map(row).collect();
        let current = [keys, values.iter().flat_map(row).collect()];
        let expected = store(&Reference, &current, bits);
        for kernel in &kernels {
            assert!(store(kernel, &current, bits) == expected, "{}, {bits:?}, {some:?}", kernel.name());
        }
    }
}
