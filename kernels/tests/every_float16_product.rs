//! The value of every code with every float16 as its scale, in groups of several lengths.
//!
//! Kernels may multiply in float32 or, where the processor can, in float16; this shows that no bit can tell, those of
//! infinite and NaN scales included. Kernels whose instruction set this machine lacks are named and left out. A release
//! build tests all lengths, a debug build two, with one of 32 scales.

use half::f16;
use kvcache_kernels::{
    Addressing, Cpu, Geometry, Indices, InstructionSet, Kernel, Pointers, Problem, Quant, Reference, Serial,
};
use kvcache_schema::{CacheDims, CacheLayout, ElementType, QuantBit};

/// Codes in a head: every int8, and every pair of int4 whose bytes are those.
const CODES: usize = 256;

/// Tokens: each has a scale for its key and one for its value, and so all float16 occur.
const TOKENS: usize = if cfg!(debug_assertions) { 1 << 10 } else { 1 << 15 };

/// The bits of the scale with a number: an odd factor spreads a part of them, among which is infinity, over all.
fn scale_bits(number: usize) -> u16 {
    (number * 40_479) as u16
}

/// `key` and `value` of a cache of every code, where all groups of a head have the same scale.
fn load(kernel: &dyn Kernel, bits: QuantBit, group: usize, t1: ElementType) -> Vec<u64> {
    let t2 = bits.element();
    let head_dim = CODES * 8 / t2.bits();
    let head: Vec<u8> = (0..=u8::MAX).collect();
    let mut cache = head.repeat(2 * TOKENS);
    let groups = head_dim / group;
    let mut scale: Vec<f16> =
        (0..2 * TOKENS).flat_map(|number| std::iter::repeat_n(f16::from_bits(scale_bits(number)), groups)).collect();
    let bytes = TOKENS * head_dim * t1.bits() / 8;
    let mut outputs = vec![0u64; 2 * bytes / 8];
    let dims = CacheDims { max_t: TOKENS, num_layer: 1, num_heads: 1, inner: head_dim };
    let layout = CacheLayout::TokenMajor;
    let quant = Quant {
        bits,
        group,
        t3: ElementType::Float16,
        scale_len: scale.len(),
        scale: layout.strides(CacheDims { inner: groups, ..dims }).unwrap(),
    };
    let geometry = Geometry {
        batch: 1,
        num_heads: 1,
        head_dim,
        num_repeat: 1,
        layer_idx: 0,
        t1,
        t2,
        quant: Some(quant),
        cache_len: 2 * TOKENS * head_dim,
        cache: layout.strides(dims).unwrap(),
    };
    let indices = Indices {
        seqstarts: &[0, 0],
        kvstarts: &[0, TOKENS as i64],
        start_pos: &[TOKENS as i64],
        addressing: Addressing::Offset { cachestarts: &[0] },
    };
    let output = outputs.as_mut_ptr().cast::<u8>();
    let pointers = Pointers {
        current: [std::ptr::null(); 2],
        cache: cache.as_mut_ptr(),
        scale: scale.as_mut_ptr().cast(),
        outputs: [output, output.wrapping_add(bytes)],
    };
    // SAFETY: the types are legal, the one sequence's slots are the cache's tokens, and the vectors have the shapes'
    // lengths, the outputs one after the other in one of them, and live as long as the problem.
    let mut problem = unsafe { Problem::assume_checked(geometry, indices, pointers) };
    kernel.load(&mut problem, &Serial);
    outputs
}

#[test]
fn every_product_is_the_references() {
    let (supported, missing): (Vec<_>, Vec<_>) = InstructionSet::ALL.into_iter().partition(|set| set.is_supported());
    println!("not on this machine, left out: {missing:?}");
    // By non-temporal stores and by plain ones.
    let kernels: Vec<Cpu> = supported
        .into_iter()
        .filter_map(Cpu::with_instructions)
        .flat_map(|cpu| [cpu.with_stream_bytes(0), cpu.with_stream_bytes(usize::MAX)])
        .collect();
    for bits in [QuantBit::Eight, QuantBit::Four] {
        for t1 in [ElementType::Float16, ElementType::Float32] {
            let expected = load(&Reference, bits, CODES, t1);
            // Every length that a kernel knows in advance up to a register, and longer ones; int4 has even groups
            // alone.
            let groups: &[usize] = if cfg!(debug_assertions) { &[2, 32] } else { &[1, 2, 4, 8, 16, 32, CODES] };
            for &group in groups.iter().filter(|&group| bits == QuantBit::Eight || group % 2 == 0) {
                for kernel in &kernels {
                    let got = load(kernel, bits, group, t1);
                    assert!(got == expected, "{}, {bits:?}, groups of {group}, {t1}", kernel.name());
                }
            }
        }
    }
}
