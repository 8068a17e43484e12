//! The functions of an instruction set.

use kvcache_simd::InstructionSet;

use super::activations::{Quantize, Rows};
use super::dot::Dot;
use super::portable::Portable;
use super::tile::{Multiply, Task};
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
    /// What codes of the panel are more than those that are multiplied.
    pub(super) offset: i32,
}

/// The functions of an instruction set for codes of so many bits.
pub(super) fn functions(instructions: InstructionSet, bits: usize, activations: Activations) -> Functions {
    let _ = instructions;
    match activations {
        Activations::Int8 => of::<Portable<false>>(bits),
        Activations::Int16 => of::<Portable<true>>(bits),
    }
}

fn of<S: Dot>(bits: usize) -> Functions {
    Functions {
        quantize: S::outlined::<Quantize<S>>(),
        multiply: if bits == 4 { S::outlined::<Multiply<S, 4>>() } else { S::outlined::<Multiply<S, 8>>() },
        rows: S::ROWS,
        pairs: S::PAIRS,
        offset: if bits == 4 { 0 } else { S::OFFSET },
    }
}
