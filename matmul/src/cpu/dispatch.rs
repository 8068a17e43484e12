//! The functions of an instruction set.

use kvcache_simd::InstructionSet;

use super::activations::{Quantize, Rows};
use super::dot::Dot;
use super::portable::Portable;
use super::tile::{Multiply, Task};
#[cfg(target_arch = "x86_64")]
use super::x86_64::{avx2::Avx2, avx512::Avx512};
use crate::product::Activations;

/// The functions of a product. They may be called where the instruction set is supported.
#[derive(Clone, Copy)]
pub(super) struct Functions {
    pub(super) quantize: unsafe fn(&Rows),
    pub(super) multiply: for<'a> unsafe fn(&Task<'a>),
    /// Rows of a tile, at most.
    pub(super) rows: usize,
    /// Whether words are of int16.
    pub(super) pairs: bool,
    /// Rows from which on a panel is unpacked.
    pub(super) unpack_from: usize,
    /// What codes of the panel are more than those that are multiplied.
    pub(super) offset: i32,
}

/// The functions of an instruction set for codes of so many bits.
pub(super) fn functions(instructions: InstructionSet, bits: usize, activations: Activations) -> Functions {
    // Without dot products of int8, those with codes of 8 bits do not fit into int16: they are made as those of int16.
    #[cfg(target_arch = "x86_64")]
    let as_pairs = activations == Activations::Int16 || bits == 8;
    match (instructions, activations) {
        #[cfg(target_arch = "x86_64")]
        (InstructionSet::Avx2, _) if as_pairs => of::<Avx2<false, true>>(bits),
        #[cfg(target_arch = "x86_64")]
        (InstructionSet::Avx2, _) => of::<Avx2<false, false>>(bits),
        #[cfg(target_arch = "x86_64")]
        (InstructionSet::AvxVnni, Activations::Int8) => of::<Avx2<true, false>>(bits),
        #[cfg(target_arch = "x86_64")]
        (InstructionSet::AvxVnni, Activations::Int16) => of::<Avx2<true, true>>(bits),
        #[cfg(target_arch = "x86_64")]
        (InstructionSet::Avx512, _) if as_pairs => of::<Avx512<false, true>>(bits),
        #[cfg(target_arch = "x86_64")]
        (InstructionSet::Avx512, _) => of::<Avx512<false, false>>(bits),
        #[cfg(target_arch = "x86_64")]
        (InstructionSet::Avx512Vnni | InstructionSet::Avx512Fp16, Activations::Int8) => of::<Avx512<true, false>>(bits),
        #[cfg(target_arch = "x86_64")]
        (InstructionSet::Avx512Vnni | InstructionSet::Avx512Fp16, Activations::Int16) => of::<Avx512<true, true>>(bits),
        (_, Activations::Int8) => of::<Portable<false>>(bits),
        (_, Activations::Int16) => of::<Portable<true>>(bits),
    }
}

fn of<S: Dot>(bits: usize) -> Functions {
    Functions {
        quantize: S::outlined::<Quantize<S>>(),
        multiply: if bits == 4 { S::outlined::<Multiply<S, 4>>() } else { S::outlined::<Multiply<S, 8>>() },
        rows: S::ROWS,
        pairs: S::PAIRS,
        unpack_from: S::UNPACK_FROM,
        offset: if bits == 4 { 0 } else { S::OFFSET },
    }
}
