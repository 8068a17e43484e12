//! Quotients and products of float16: kernels may compute them otherwise than the reference does, and no bit may tell.
//!
//! A release build tests all: every largest magnitude of a group with every value up to it, and every scale with every
//! code in groups of several lengths. A debug build takes samples. Kernels whose instruction set this machine lacks are
//! left out.

use half::f16;
use kvcache_kernels::{
    Addressing, Cpu, Geometry, Indices, InstructionSet, Kernel, Outputs, Pointers, Problem, Quant, Reference, Serial,
    Stores,
};
use kvcache_schema::{CacheDims, CacheLayout, ElementType, QuantBit};

/// One sequence of one head, whose cache and scales are float16.
struct Call {
    t1: ElementType,
    bits: QuantBit,
    group: usize,
    head_dim: usize,
    /// Past tokens, which are loaded, or new ones, which are stored.
    past: bool,
    current: [Vec<f16>; 2],
    cache: Vec<u8>,
    scale: Vec<f16>,
    /// `key` and `value`, in memory that is aligned for both types.
    outputs: Vec<u64>,
}

impl Call {
    fn with_problem(&mut self, run: impl FnOnce(&mut Problem<'_>)) {
        let Self { t1, bits, group, head_dim, .. } = *self;
        let tokens = self.scale.len() / (2 * head_dim / group);
        let dims = CacheDims { max_t: tokens, num_layer: 1, num_heads: 1, inner: head_dim };
        let layout = CacheLayout::TokenMajor;
        let quant = Quant {
            bits,
            group,
            rotated: false,
            t3: ElementType::Float16,
            scale_len: self.scale.len(),
            scale: layout.strides(CacheDims { inner: head_dim / group, ..dims }).unwrap(),
        };
        let geometry = Geometry {
            batch: 1,
            num_heads: 1,
            head_dim,
            layer_idx: 0,
            t1,
            t2: bits.element(),
            quant: Some(quant),
            cache_len: 2 * tokens * head_dim,
            cache: layout.strides(dims).unwrap(),
        };
        let tokens = tokens as i64;
        let indices = Indices {
            seqstarts: &[0, if self.past { 0 } else { tokens }],
            kvstarts: &[0, tokens],
            start_pos: &[if self.past { tokens } else { 0 }],
            addressing: Addressing::Offset { cachestarts: &[0] },
        };
        let output = self.outputs.as_mut_ptr().cast::<u8>();
        let pointers = Pointers {
            current: self.current.each_ref().map(|current| current.as_ptr().cast()),
            cache: self.cache.as_mut_ptr(),
            scale: self.scale.as_mut_ptr().cast(),
        };
        let outputs = Outputs { num_repeat: 1, pointers: [output, output.wrapping_add(self.outputs.len() * 4)] };
        // SAFETY: the types are legal, the one sequence's slots are the cache's tokens, and the vectors have the
        // shapes' lengths, the outputs one after the other in one of them, and live as long as the problem.
        run(&mut unsafe { Problem::assume_checked(Stores::assume_checked(geometry, indices, pointers), outputs) });
    }
}

/// Finite float16 that are not negative: their bits count from 0.
const FINITE: usize = 0x7c00;

/// The cache and the scales after storing a group for each of the largest magnitudes.
fn store(kernel: &dyn Kernel, current: &[Vec<f16>; 2], bits: QuantBit) -> (Vec<u8>, Vec<f16>) {
    let tokens = current[0].len() / FINITE;
    let mut call = Call {
        t1: ElementType::Float16,
        bits,
        group: FINITE,
        head_dim: FINITE,
        past: false,
        current: current.clone(),
        cache: vec![0; 2 * tokens * FINITE],
        scale: vec![f16::ZERO; 2 * tokens],
        outputs: vec![0; tokens * FINITE / 2],
    };
    call.with_problem(|problem| kernel.store(problem.reborrow_stores(), &Serial));
    (call.cache, call.scale)
}

#[test]
fn every_quotient_is_the_references() {
    let step = if cfg!(debug_assertions) { 1301 } else { 1 };
    let magnitudes: Vec<usize> = (0..FINITE).rev().step_by(step).collect();
    let kernels: Vec<Cpu> = InstructionSet::ALL.into_iter().filter_map(Cpu::with_instructions).collect();
    for (bits, some) in QuantBit::ALL.into_iter().flat_map(|bits| {
        // Half of the magnitudes of a call are keys'.
        magnitudes.chunks(64).map(move |some| (bits, some))
    }) {
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

/// Codes in a head: every int8, and every pair of int4 whose bytes are those.
const CODES: usize = 256;

/// Tokens: each has a scale for its key and one for its value, and so all float16 occur.
const TOKENS: usize = if cfg!(debug_assertions) { 1 << 9 } else { 1 << 15 };

/// `key` and `value` of a cache of every code, where all groups of a head have the same scale.
fn load(kernel: &dyn Kernel, bits: QuantBit, group: usize, t1: ElementType) -> Vec<u64> {
    let head_dim = CODES * 8 / bits.element().bits();
    // Of the NaN of a float8 and that of a scale the product is either.
    let is_nan = |code: u8| bits == QuantBit::Float8 && code & 0x7f == 0x7f;
    let head: Vec<u8> = (0..=u8::MAX).map(|code| if is_nan(code) { 0 } else { code }).collect();
    // An odd factor spreads a part of the float16, among which is infinity, over all.
    let scale = |number: usize| std::iter::repeat_n(f16::from_bits((number * 40_479) as u16), head_dim / group);
    let mut call = Call {
        t1,
        bits,
        group,
        head_dim,
        past: true,
        current: [Vec::new(), Vec::new()],
        cache: head.repeat(2 * TOKENS),
        scale: (0..2 * TOKENS).flat_map(scale).collect(),
        outputs: vec![0; t1.byte_len(2 * TOKENS * head_dim) / 8],
    };
    call.with_problem(|problem| kernel.load(problem, &Serial));
    call.outputs
}

#[test]
fn every_product_is_the_references() {
    // By non-temporal stores and by plain ones.
    let kernels = InstructionSet::ALL.into_iter().filter_map(Cpu::with_instructions);
    let kernels: Vec<Cpu> =
        kernels.flat_map(|cpu| [cpu.with_stream_bytes(0), cpu.with_stream_bytes(usize::MAX)]).collect();
    for bits in QuantBit::ALL {
        for t1 in [ElementType::Float16, ElementType::Float32] {
            let expected = load(&Reference, bits, CODES, t1);
            // Every length that a kernel knows in advance up to a register, and longer ones; int4 has even groups
            // alone.
            let groups: &[usize] = if cfg!(debug_assertions) { &[2, 32] } else { &[1, 2, 4, 8, 16, 32, CODES] };
            for &group in groups.iter().filter(|&group| bits != QuantBit::Four || group % 2 == 0) {
                for kernel in &kernels {
                    let got = load(kernel, bits, group, t1);
                    assert!(got == expected, "{}, {bits:?}, groups of {group}, {t1}", kernel.name());
                }
            }
        }
    }
}
