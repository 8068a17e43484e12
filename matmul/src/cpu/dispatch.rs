//! The functions of an instruction set.

use kvcache_simd::InstructionSet;

use super::activations::{Quantize, Rows};
use super::dot::{Dot, words};
use super::gather::{Column, Gather};
#[cfg(target_arch = "aarch64")]
use super::neon::{Dotprod, Pairs};
use super::portable::Portable;
use super::tile::{Multiply, Packed, Task, UNPACKED, Unpack};
#[cfg(all(test, target_arch = "x86_64"))]
use super::x86_64::avx2::TWIN;
#[cfg(target_arch = "x86_64")]
use super::x86_64::avx2::{AVX2, Avx2, VNNI};
#[cfg(target_arch = "x86_64")]
use super::x86_64::avx512::Avx512;
use crate::matrix::MatrixShape;
use crate::product::Activations;

/// The functions of a product. They may be called where the instruction set is supported.
#[derive(Clone, Copy)]
pub(super) struct Functions {
    pub(super) quantize: unsafe fn(&Rows),
    pub(super) multiply: for<'a> unsafe fn(&Task<'a>),
    /// Rows of a tile, at most.
    pub(super) rows: usize,
    /// None where panels are not unpacked for many rows.
    pub(super) unpacked: Option<UnpackedFunctions>,
    /// Words of a row's block.
    pub(super) words: usize,
    /// A panel's code less the one that is multiplied.
    pub(super) offset: i32,
}

/// The functions of many rows, for which panels are unpacked.
#[derive(Clone, Copy)]
pub(super) struct UnpackedFunctions {
    pub(super) unpack: unsafe fn(&Packed),
    pub(super) multiply: for<'a> unsafe fn(&Task<'a>),
    /// Rows and panels of a tile, at most.
    pub(super) rows: usize,
    pub(super) panels: usize,
}

/// The functions of an instruction set for a matrix.
pub(super) fn functions(instructions: InstructionSet, shape: &MatrixShape, activations: Activations) -> Functions {
    // Without dot products of int8, sums of products of 8-bit codes do not fit into int16: x is widened to int16.
    #[cfg(target_arch = "x86_64")]
    let as_pairs = activations == Activations::Int16 || shape.bits == 8;
    match (instructions, activations) {
        // AVX-VNNI's instructions have twins in AVX512-VNNI: tests run all else of it where only these are.
        #[cfg(all(test, target_arch = "x86_64"))]
        (InstructionSet::AvxVnni, Activations::Int8) if !instructions.is_supported() => {
            unpacking::<Avx2<TWIN, false>>(shape)
        }
        #[cfg(all(test, target_arch = "x86_64"))]
        (InstructionSet::AvxVnni, Activations::Int16) if !instructions.is_supported() => {
            unpacking::<Avx2<TWIN, true>>(shape)
        }
        #[cfg(target_arch = "x86_64")]
        (InstructionSet::Avx2, _) if as_pairs => unpacking::<Avx2<AVX2, true>>(shape),
        #[cfg(target_arch = "x86_64")]
        (InstructionSet::Avx2, _) => unpacking::<Avx2<AVX2, false>>(shape),
        #[cfg(target_arch = "x86_64")]
        (InstructionSet::AvxVnni, Activations::Int8) => unpacking::<Avx2<VNNI, false>>(shape),
        #[cfg(target_arch = "x86_64")]
        (InstructionSet::AvxVnni, Activations::Int16) => unpacking::<Avx2<VNNI, true>>(shape),
        #[cfg(target_arch = "x86_64")]
        (InstructionSet::Avx512, _) if as_pairs => unpacking::<Avx512<false, true>>(shape),
        #[cfg(target_arch = "x86_64")]
        (InstructionSet::Avx512, _) => unpacking::<Avx512<false, false>>(shape),
        #[cfg(target_arch = "x86_64")]
        (InstructionSet::Avx512Vnni | InstructionSet::Avx512Fp16, Activations::Int8) => {
            unpacking::<Avx512<true, false>>(shape)
        }
        #[cfg(target_arch = "x86_64")]
        (InstructionSet::Avx512Vnni | InstructionSet::Avx512Fp16, Activations::Int16) => {
            unpacking::<Avx512<true, true>>(shape)
        }
        #[cfg(target_arch = "aarch64")]
        (InstructionSet::NeonDotprod, Activations::Int8) => unpacking::<Dotprod>(shape),
        // Without dot products of int8, x is widened to int16.
        #[cfg(target_arch = "aarch64")]
        (InstructionSet::Neon | InstructionSet::NeonDotprod, _) => unpacking::<Pairs>(shape),
        (_, Activations::Int8) => unpacking::<Portable<false>>(shape),
        (_, Activations::Int16) => unpacking::<Portable<true>>(shape),
    }
}

/// What dequantizes a column. It may be called where the instruction set is supported.
pub(super) fn gather(instructions: InstructionSet) -> for<'a> unsafe fn(&Column<'a>) {
    match instructions.of_floats() {
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx2 | InstructionSet::Avx512 | InstructionSet::Avx512Fp16 => {
            Avx2::<AVX2, true>::outlined::<Gather<Avx2<AVX2, true>>>()
        }
        #[cfg(target_arch = "aarch64")]
        InstructionSet::Neon => Pairs::outlined::<Gather<Pairs>>(),
        _ => Portable::<true>::outlined::<Gather<Portable<true>>>(),
    }
}

fn of<S: Dot>(shape: &MatrixShape) -> Functions {
    Functions {
        quantize: S::outlined::<Quantize<S>>(),
        multiply: if shape.bits == 4 { S::outlined::<Multiply<S, 4>>() } else { S::outlined::<Multiply<S, 8>>() },
        rows: S::ROWS,
        unpacked: None,
        words: words::<S>(shape.block_size),
        offset: if shape.bits == 4 { 0 } else { S::OFFSET },
    }
}

fn unpacking<S: Dot>(shape: &MatrixShape) -> Functions {
    let unpacked = UnpackedFunctions {
        unpack: if shape.bits == 4 { S::outlined::<Unpack<S, 4>>() } else { S::outlined::<Unpack<S, 8>>() },
        multiply: S::outlined::<Multiply<S, UNPACKED>>(),
        rows: S::UNPACKED_ROWS,
        panels: S::UNPACKED_PANELS,
    };
    Functions { unpacked: Some(unpacked), ..of::<S>(shape) }
}
