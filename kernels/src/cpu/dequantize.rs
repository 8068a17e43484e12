//! Dequantizes rows over vector registers, written once for every instruction set that is a [`Simd`].

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use super::format::Mover;
use super::lanes::{Lanes, PackedLanes};
use super::portable::Portable;
use super::rows::Row;
use super::simd::{MOST_LANES, OTHER, REGISTER, Simd, last_inside, scales_of_register, units};
use super::vector::Grouped;

/// Dequantizes a row, past the caches if `STREAM`: as for [`Mover::dequantize`].
pub(super) struct Dequantize<Q, V, T, const STREAM: bool> {
    pub(super) cache: *const u8,
    pub(super) scales: *const T,
    pub(super) values: *mut V,
    pub(super) row: Row,
    pub(super) codes: PhantomData<Q>,
}

impl<Q: PackedLanes, V: Lanes, T: Lanes, const STREAM: bool> Grouped for Dequantize<Q, V, T, STREAM> {
    #[inline(always)]
    unsafe fn run<S: Simd, const GROUP: usize>(self) {
        let Self { cache, scales, values, row, .. } = self;
        // SAFETY: the caller's promise.
        unsafe {
            if GROUP == OTHER {
                Portable::dequantize::<Q, V, T, STREAM>(cache, scales, values, row);
            } else if GROUP > 8 {
                long_groups::<S, Q, V, T, GROUP, STREAM>(cache, scales, values, row);
            } else {
                short_groups::<S, Q, V, T, GROUP, STREAM>(cache, scales, values, row.len);
            }
        }
    }
}

/// Groups whose scales become float32 together.
const GROUPS: usize = 256;

/// Dequantizes groups of a register or more: the scale of each is read from memory into every lane.
#[inline(always)]
unsafe fn long_groups<S: Simd, Q: PackedLanes, V: Lanes, T: Lanes, const GROUP: usize, const STREAM: bool>(
    cache: *const u8,
    scales: *const T,
    values: *mut V,
    Row { group, groups, .. }: Row,
) {
    let group = if GROUP == REGISTER { group } else { GROUP };
    let mut room = [MaybeUninit::<f32>::uninit(); GROUPS + MOST_LANES];
    for first in (0..groups).step_by(GROUPS) {
        let some = GROUPS.min(groups - first);
        // SAFETY: the caller's promise; these groups lie inside the row, and there is room for a register more than their scales.
        unsafe {
            let scales = T::as_f32::<S>(scales.add(first), some, room.as_mut_ptr().cast());
            for g in 0..some {
                let (at, s) = ((first + g) * group, S::splat(*scales.add(g)));
                Q::decode_group::<S, V, T, STREAM>(cache.add(Q::bytes(at)), values.add(at), s, group);
            }
        }
    }
}

/// Dequantizes `len >= LANES` values in groups of 8 or fewer: a register of scales is spread to those of values.
#[inline(always)]
unsafe fn short_groups<S: Simd, Q: PackedLanes, V: Lanes, T: Lanes, const GROUP: usize, const STREAM: bool>(
    cache: *const u8,
    scales: *const T,
    values: *mut V,
    len: usize,
) {
    let (of_register, at_once) = (scales_of_register::<S, GROUP>(), units::<S, GROUP>());
    let registers = len / S::LANES;
    let mut first = 0;
    // SAFETY: the caller's promise; the registers lie inside the row. What the last one leaves over is less than a register,
    // and ends the row with a register that begins with a group.
    unsafe {
        while first < registers {
            let some = (registers - first).min(at_once);
            let at = first * S::LANES;
            let (cache, scales, values) = (cache.add(Q::bytes(at)), scales.add(first * of_register), values.add(at));
            if some == at_once {
                decode_registers::<S, Q, V, T, GROUP, STREAM>(cache, scales, values, at_once);
            } else {
                decode_registers::<S, Q, V, T, GROUP, STREAM>(cache, scales, values, some);
            }
            first += some;
        }
        if registers * S::LANES < len {
            let at = len - S::LANES;
            let (cache, scales, values) = (cache.add(Q::bytes(at)), scales.add(at / GROUP), values.add(at));
            decode_registers::<S, Q, V, T, GROUP, STREAM>(cache, scales, values, 1);
        }
    }
}

/// Dequantizes registers whose scales fill no more than one.
#[inline(always)]
unsafe fn decode_registers<S: Simd, Q: PackedLanes, V: Lanes, T: Lanes, const GROUP: usize, const STREAM: bool>(
    cache: *const u8,
    scales: *const T,
    values: *mut V,
    registers: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let scales = T::read_some::<S>(scales, registers * scales_of_register::<S, GROUP>());
        for k in 0..registers {
            let (cache, values) = (cache.add(Q::bytes(k * S::LANES)), values.add(k * S::LANES));
            decode::<S, Q, V, T, STREAM>(cache, values, S::spread::<GROUP>(scales, k));
        }
    }
}

/// Dequantizes a group of `len >= LANES`, where `s` is its scale in every lane.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(super) unsafe fn decode_group<S: Simd, Q: PackedLanes, V: Lanes, T: Lanes, const STREAM: bool>(
    cache: *const u8,
    values: *mut V,
    s: S::F32,
    len: usize,
) {
    // SAFETY: the caller's promise; every register lies inside the group.
    unsafe {
        let mut i = 0;
        while i + 2 * S::LANES <= len {
            decode::<S, Q, V, T, STREAM>(cache.add(Q::bytes(i)), values.add(i), s);
            decode::<S, Q, V, T, STREAM>(cache.add(Q::bytes(i + S::LANES)), values.add(i + S::LANES), s);
            i += 2 * S::LANES;
        }
        while i < len {
            let at = last_inside::<S>(i, len);
            decode::<S, Q, V, T, STREAM>(cache.add(Q::bytes(at)), values.add(at), s);
            i += S::LANES;
        }
    }
}

/// Dequantizes a register, where `s` is the scale of each lane.
#[inline(always)]
unsafe fn decode<S: Simd, Q: PackedLanes, V: Lanes, T: Lanes, const STREAM: bool>(
    cache: *const u8,
    values: *mut V,
    s: S::F32,
) {
    // SAFETY: the caller's promise.
    unsafe { V::write::<S, STREAM>(values, product::<S, V, T>(Q::read::<S>(cache), s)) }
}

/// `code * s`, rounded to T where writing it as V does not round as much: to float16 anyway.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(super) unsafe fn product<S: Simd, V: Lanes, T: Lanes>(code: S::F32, s: S::F32) -> S::F32 {
    // SAFETY: the caller's promise that the instruction set is enabled.
    unsafe {
        let x = S::mul(code, s);
        if V::HALF { x } else { T::round_to::<S>(x) }
    }
}
