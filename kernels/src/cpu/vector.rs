//! What moves rows over vector registers, of every instruction set that is a [`Simd`]: conversions, and the
//! choice of a function for what is quantized, by its groups.
//!
//! Everything here is inlined into functions that enable an instruction set; see `variant.rs`.
//!
//! Rows that do not fill a register go to the portable functions, and so do groups that are neither a divisor of the
//! register's lanes nor at least as long. A longer group that is no multiple of the lanes ends with a register that
//! overlaps the one before it: the same values are computed, and written, twice.

use std::marker::PhantomData;

use super::dequantize::Dequantize;
use super::format::Mover;
use super::lanes::{Lanes, PackedLanes};
use super::lines::{Copies, CopyRows};
use super::portable::Portable;
use super::quantize::Quantize;
use super::rows::Row;
use super::simd::{OTHER, REGISTER, Simd, last_inside};
use super::variant::{Apart, Task};

impl<S: Apart> Mover for S {
    const STREAMS: bool = true;

    #[inline(always)]
    unsafe fn copy(rows: &Copies) {
        // SAFETY: the caller's promise.
        unsafe { S::run(CopyRows::<false>(rows)) }
    }

    #[inline(always)]
    unsafe fn stream(rows: &Copies) {
        // SAFETY: the caller's promise.
        unsafe { S::run(CopyRows::<true>(rows)) }
    }

    #[inline(always)]
    unsafe fn convert<A: Lanes, B: Lanes, const STREAM: bool>(from: *const A, to: *mut B, len: usize) {
        // SAFETY: the caller's promise; every register lies inside the row.
        unsafe {
            if len < S::LANES {
                return Portable::convert::<A, B, STREAM>(from, to, len);
            }
            let mut i = 0;
            while i < len {
                let at = last_inside::<S>(i, len);
                B::write::<S, STREAM>(to.add(at), A::read::<S>(from.add(at)));
                i += S::LANES;
            }
        }
    }

    #[inline(always)]
    unsafe fn quantize<Q: PackedLanes, V: Lanes, T: Lanes>(
        values: *const V,
        cache: *mut u8,
        scales: *mut T,
        row: Row,
        ahead: *const V,
    ) {
        // SAFETY: the caller's promise.
        unsafe { by_group::<S, _>(Quantize { values, cache, scales, row, ahead, codes: PhantomData::<Q> }, row) }
    }

    #[inline(always)]
    unsafe fn dequantize<Q: PackedLanes, V: Lanes, T: Lanes, const STREAM: bool>(
        cache: *const u8,
        scales: *const T,
        values: *mut V,
        row: Row,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let codes = PhantomData::<Q>;
            by_group::<S, _>(Dequantize::<Q, V, T, STREAM> { cache, scales, values, row, codes }, row)
        }
    }
}

/// What is done to a row in groups of `GROUP` values.
pub(super) trait Grouped {
    /// Does it.
    ///
    /// # Safety
    /// The instruction set is enabled, and the row's groups are such; it is a register or more if they are not
    /// [`OTHER`]; else its own conditions.
    unsafe fn run<S: Simd, const GROUP: usize>(self);
}

/// The same, as a task.
struct InGroups<G, const GROUP: usize>(G);

impl<G: Grouped, const GROUP: usize> Task for InGroups<G, GROUP> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller's promise.
        unsafe { self.0.run::<S, GROUP>() }
    }
}

/// Does something to a row in its groups: common ones are known to what does it.
#[inline(always)]
unsafe fn by_group<S: Apart, G: Grouped>(task: G, Row { len, group, .. }: Row) {
    // SAFETY: the caller's promise; rows that do not fill a register, and other groups, are left to plain Rust.
    unsafe {
        match group {
            1 if len >= S::LANES => S::run(InGroups::<G, 1>(task)),
            2 if len >= S::LANES => S::run(InGroups::<G, 2>(task)),
            4 if len >= S::LANES => S::run(InGroups::<G, 4>(task)),
            8 if len >= S::LANES => S::run(InGroups::<G, 8>(task)),
            16 => S::run(InGroups::<G, 16>(task)),
            32 => S::run(InGroups::<G, 32>(task)),
            64 => S::run(InGroups::<G, 64>(task)),
            128 => S::run(InGroups::<G, 128>(task)),
            _ if group >= S::LANES => S::run(InGroups::<G, REGISTER>(task)),
            _ => S::run(InGroups::<G, OTHER>(task)),
        }
    }
}
