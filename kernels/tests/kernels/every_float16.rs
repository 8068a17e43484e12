//! Quotients and products of float16: kernels may compute them otherwise than the reference does, and no bit may tell.
//!
//! A release build tests all: every largest magnitude of a group with every value up to it, and every scale with every
//! code in groups of several lengths. A debug build takes samples. Kernels whose instruction set this machine lacks are
//! left out.

use half::f16;
use kvcache_conformance::backends::Backends;
use kvcache_conformance::{Call, Tensor};
use kvcache_kernels::{Cpu, InstructionSet, Serial};
use kvcache_op::{AttentionBackend, Backend};
use kvcache_schema::{ElementType, QuantBit};
use kvcache_testing::random::{case, one_head, passes};

fn kernels() -> impl Iterator<Item = Cpu> {
    InstructionSet::all_of_floats().filter_map(Cpu::with_instructions)
}

/// These kernels give the reference's bits.
fn agree(kernels: &[Cpu], call: Call, about: &str) {
    let case = case(call);
    for &cpu in kernels {
        let (backend, attention) = (Backend::Cpu(cpu), AttentionBackend::default());
        let passes = passes(&Backends { backend, attention, workers: Serial }, &case);
        assert!(passes.is_ok(), "{}, {about}: {passes:?}", backend.name());
    }
}

fn tensor(shape: &[usize], numbers: impl Iterator<Item = f16>) -> Tensor {
    let bytes: Vec<u8> = numbers.flat_map(f16::to_ne_bytes).collect();
    Tensor::new(ElementType::Float16, shape.to_vec(), &bytes).expect("as many numbers")
}

/// Finite float16 that are not negative: their bits count from 0.
const FINITE: usize = 0x7c00;

#[test]
fn every_quotient_is_the_references() {
    let step = if cfg!(debug_assertions) { 1301 } else { 1 };
    let magnitudes: Vec<usize> = (0..FINITE).rev().step_by(step).collect();
    let kernels: Vec<_> = kernels().collect();
    // Every value up to the largest magnitude, of either sign; then zeros.
    let row = |&amax: &usize| {
        (0..FINITE).map(move |bits| match bits {
            bits if bits > amax => f16::ZERO,
            bits => f16::from_bits((bits | (bits % 2) << 15) as u16),
        })
    };
    for some in magnitudes.chunks(64) {
        // Half of the magnitudes are keys'. An odd number leaves one more for the values; the keys then repeat one.
        let (keys, values) = some.split_at(some.len() / 2);
        let keys = keys.iter().chain(&values[..values.len() - keys.len()]).flat_map(row);
        let shape = [values.len(), 1, FINITE];
        let current = [tensor(&shape, keys), tensor(&shape, values.iter().flat_map(row))];
        for bits in QuantBit::ALL {
            let cache = Tensor::zeros(bits.element(), vec![values.len(), 1, 2, 1, FINITE]).expect("it fits");
            let scale = Tensor::zeros(ElementType::Float16, vec![values.len(), 1, 2, 1, 1]).expect("it fits");
            let call = one_head(current.clone(), cache, scale, FINITE);
            agree(&kernels, call, &format!("{bits:?}, {some:?}"));
        }
    }
}

/// Codes in a head: every int8, and every pair of int4 whose bytes are those.
const CODES: usize = 256;

/// Tokens: each has a scale for its key and one for its value, and so all float16 occur.
const TOKENS: usize = if cfg!(debug_assertions) { 1 << 9 } else { 1 << 15 };

/// A call that loads a cache of every code, where all groups of a head have the same scale.
fn load(bits: QuantBit, group: usize, t1: ElementType) -> Call {
    let head_dim = CODES * 8 / bits.element().bits();
    // The product of a float8's NaN and a scale's NaN is either of them.
    let is_nan = |code: u8| bits == QuantBit::Float8 && code & 0x7f == 0x7f;
    let head: Vec<u8> = (0..=u8::MAX).map(|code| if is_nan(code) { 0 } else { code }).collect();
    let cache = Tensor::new(bits.element(), vec![TOKENS, 1, 2, 1, head_dim], &head.repeat(2 * TOKENS));
    // An odd factor spreads a part of the float16, among which is infinity, over all.
    let scale = |number: usize| std::iter::repeat_n(f16::from_bits((number * 40_479) as u16), head_dim / group);
    let scale = tensor(&[TOKENS, 1, 2, 1, head_dim / group], (0..2 * TOKENS).flat_map(scale));
    let none = Tensor::zeros(t1, vec![0, 1, head_dim]).expect("it has no elements");
    one_head([none.clone(), none], cache.expect("as many codes"), scale, group)
}

#[test]
fn every_product_is_the_references() {
    // By non-temporal stores and by plain ones.
    let kernels: Vec<_> =
        kernels().flat_map(|cpu| [cpu.with_stream_bytes(0), cpu.with_stream_bytes(usize::MAX)]).collect();
    // Every length that a kernel knows in advance up to a register, and longer ones; int4 has even groups alone.
    let groups: &[usize] = if cfg!(debug_assertions) { &[2, 32] } else { &[1, 2, 4, 8, 16, 32, CODES] };
    for bits in QuantBit::ALL {
        for t1 in [ElementType::Float16, ElementType::Float32] {
            for &group in groups.iter().filter(|&group| bits != QuantBit::Four || group % 2 == 0) {
                agree(&kernels, load(bits, group, t1), &format!("{bits:?}, groups of {group}, {t1}"));
            }
        }
    }
}
