//! What moves rows over vector registers, of every instruction set that is a [`Simd`](super::simd::Simd): conversions, and the
//! choice of a function for what is quantised, by its groups.
//!
//! Everything here is inlined into functions that enable an instruction set; see `variant.rs`.
//!
//! Rows that do not fill a register go to the portable functions, and so do groups that are neither a divisor of the
//! register's lanes nor at least as long. A longer group that is no multiple of the lanes ends with a register that
//! overlaps the one before it: the same values are computed, and written, twice.

use super::format::Mover;
use super::lanes::{Lanes, PackedLanes};
use super::lines::Copies;
use super::portable::Portable;
use super::rows::Row;
use super::simd::{OTHER, REGISTER, last_inside};
use super::variant::Apart;

impl<S: Apart> Mover for S {
    const STREAMS: bool = true;

    #[inline(always)]
    unsafe fn copy(rows: &Copies) {
        // SAFETY: the caller's promise.
        unsafe { S::copy_rows::<false>(rows) }
    }

    #[inline(always)]
    unsafe fn stream(rows: &Copies) {
        // SAFETY: the caller's promise.
        unsafe { S::copy_rows::<true>(rows) }
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
    unsafe fn quantise<Q: PackedLanes, V: Lanes, T: Lanes>(
        values: *const V,
        cache: *mut u8,
        scales: *mut T,
        row: Row,
        ahead: *const V,
    ) {
        let Row { len, group, .. } = row;
        // SAFETY: the caller's promise; rows that do not fill a register, and other groups, are left to plain Rust.
        unsafe {
            match group {
                1 if len >= S::LANES => S::quantise_row::<Q, V, T, 1>(values, cache, scales, row, ahead),
                2 if len >= S::LANES => S::quantise_row::<Q, V, T, 2>(values, cache, scales, row, ahead),
                4 if len >= S::LANES => S::quantise_row::<Q, V, T, 4>(values, cache, scales, row, ahead),
                8 if len >= S::LANES => S::quantise_row::<Q, V, T, 8>(values, cache, scales, row, ahead),
                16 => S::quantise_row::<Q, V, T, 16>(values, cache, scales, row, ahead),
                32 => S::quantise_row::<Q, V, T, 32>(values, cache, scales, row, ahead),
                64 => S::quantise_row::<Q, V, T, 64>(values, cache, scales, row, ahead),
                128 => S::quantise_row::<Q, V, T, 128>(values, cache, scales, row, ahead),
                _ if group >= S::LANES => S::quantise_row::<Q, V, T, REGISTER>(values, cache, scales, row, ahead),
                _ => S::quantise_row::<Q, V, T, OTHER>(values, cache, scales, row, ahead),
            }
        }
    }

    #[inline(always)]
    unsafe fn dequantise<Q: PackedLanes, V: Lanes, T: Lanes, const STREAM: bool>(
        cache: *const u8,
        scales: *const T,
        values: *mut V,
        row: Row,
    ) {
        let Row { len, group, .. } = row;
        // SAFETY: as in `quantise`.
        unsafe {
            match group {
                1 if len >= S::LANES => S::dequantise_row::<Q, V, T, 1, STREAM>(cache, scales, values, row),
                2 if len >= S::LANES => S::dequantise_row::<Q, V, T, 2, STREAM>(cache, scales, values, row),
                4 if len >= S::LANES => S::dequantise_row::<Q, V, T, 4, STREAM>(cache, scales, values, row),
                8 if len >= S::LANES => S::dequantise_row::<Q, V, T, 8, STREAM>(cache, scales, values, row),
                16 => S::dequantise_row::<Q, V, T, 16, STREAM>(cache, scales, values, row),
                32 => S::dequantise_row::<Q, V, T, 32, STREAM>(cache, scales, values, row),
                64 => S::dequantise_row::<Q, V, T, 64, STREAM>(cache, scales, values, row),
                128 => S::dequantise_row::<Q, V, T, 128, STREAM>(cache, scales, values, row),
                _ if group >= S::LANES => S::dequantise_row::<Q, V, T, REGISTER, STREAM>(cache, scales, values, row),
                _ => S::dequantise_row::<Q, V, T, OTHER, STREAM>(cache, scales, values, row),
            }
        }
    }
}
