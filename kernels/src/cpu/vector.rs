//! Rows over vector registers, written once for every instruction set that is a [`Simd`].
//!
//! Everything here is inlined into functions that enable an instruction set; see `avx2.rs` and `avx512.rs`.
//!
//! Rows that do not fill a register go to the portable functions, and so do groups that are neither a divisor of the
//! register's lanes nor at least as long. A longer group that is no multiple of the lanes ends with a register that
//! overlaps the one before it: the same values are computed, and written, twice.

use super::format::Mover;
use super::lines;
use super::portable::Portable;
use super::rows::Row;
use super::simd::{Lanes, PackedLanes, REGISTER, Simd, decode, last_inside, scales_of_register, units};

impl<S: Simd> Mover for S {
    const STREAMS: bool = true;

    #[inline(always)]
    unsafe fn copy(from: *const u8, to: *mut u8, len: usize, copies: usize, ahead: Option<*const u8>) {
        // SAFETY: the caller's promise.
        unsafe { lines::copy::<S>(from, to, len, copies, ahead) }
    }

    #[inline(always)]
    unsafe fn stream(from: *const u8, to: *mut u8, len: usize, copies: usize, ahead: Option<*const u8>) {
        // SAFETY: the caller's promise.
        unsafe { lines::stream::<S>(from, to, len, copies, ahead) }
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
                _ => Portable::quantise::<Q, V, T>(values, cache, scales, row, ahead),
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
        let Row { len, group, groups } = row;
        // SAFETY: as in `quantise`.
        unsafe {
            match group {
                1 if len >= S::LANES => {
                    dequantise_row::<S, Q, V, T, 1, STREAM>(cache, scales, values, registers::<S>(len))
                }
                2 if len >= S::LANES => {
                    dequantise_row::<S, Q, V, T, 2, STREAM>(cache, scales, values, registers::<S>(len))
                }
                4 if len >= S::LANES => {
                    dequantise_row::<S, Q, V, T, 4, STREAM>(cache, scales, values, registers::<S>(len))
                }
                8 if len >= S::LANES => {
                    dequantise_row::<S, Q, V, T, 8, STREAM>(cache, scales, values, registers::<S>(len))
                }
                _ if group >= S::LANES => dequantise_row::<S, Q, V, T, REGISTER, STREAM>(
                    cache,
                    scales,
                    values,
                    Units { len, unit: group, units: groups },
                ),
                _ => Portable::dequantise::<Q, V, T, STREAM>(cache, scales, values, row),
            }
        }
    }
}

/// A row as units: groups of a register or more, or registers of smaller groups.
#[derive(Clone, Copy)]
struct Units {
    /// Elements of the row.
    len: usize,
    /// Elements of a unit.
    unit: usize,
    /// Whole units.
    units: usize,
}

/// The registers of a row.
#[inline(always)]
fn registers<S: Simd>(len: usize) -> Units {
    Units { len, unit: S::LANES, units: len / S::LANES }
}

/// Dequantises a row.
#[inline(always)]
unsafe fn dequantise_row<S: Simd, Q: PackedLanes, V: Lanes, T: Lanes, const GROUP: usize, const STREAM: bool>(
    cache: *const u8,
    scales: *const T,
    values: *mut V,
    Units { len, unit, units: all }: Units,
) {
    let per_unit = scales_of_register::<S, GROUP>();
    let mut first = 0;
    // SAFETY: the caller's promise; the units lie inside the row. What the last one leaves over is less than a register,
    // and ends the row with a register that begins with a group.
    unsafe {
        while first < all {
            let some = (all - first).min(units::<S, GROUP>());
            let at = first * unit;
            let (cache, scales, values) = (cache.add(Q::bytes(at)), scales.add(first * per_unit), values.add(at));
            if some == units::<S, GROUP>() {
                dequantise_units::<S, Q, V, T, GROUP, STREAM>(cache, scales, values, units::<S, GROUP>(), unit);
            } else {
                dequantise_units::<S, Q, V, T, GROUP, STREAM>(cache, scales, values, some, unit);
            }
            first += some;
        }
        if all * unit < len {
            let at = len - unit;
            let (cache, scales, values) = (cache.add(Q::bytes(at)), scales.add(at / GROUP), values.add(at));
            dequantise_units::<S, Q, V, T, GROUP, STREAM>(cache, scales, values, 1, unit);
        }
    }
}

/// Dequantises units whose scales fill no more than a register.
#[inline(always)]
unsafe fn dequantise_units<S: Simd, Q: PackedLanes, V: Lanes, T: Lanes, const GROUP: usize, const STREAM: bool>(
    cache: *const u8,
    scales: *const T,
    values: *mut V,
    units: usize,
    unit: usize,
) {
    // SAFETY: the caller's promise; every unit lies inside the row.
    unsafe {
        let scales = T::read_some::<S>(scales, units * scales_of_register::<S, GROUP>());
        for k in 0..units {
            let s = S::spread::<GROUP>(scales, k);
            let (cache, values) = (cache.add(Q::bytes(k * unit)), values.add(k * unit));
            if GROUP == REGISTER {
                Q::decode_group::<S, V, T, STREAM>(cache, values, s, unit);
            } else {
                decode::<S, Q, V, T, STREAM>(cache, values, s);
            }
        }
    }
}
