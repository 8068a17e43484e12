//! Quantizes rows over vector registers, written once for every instruction set that is a [`Simd`].
//!
//! Some groups at a time go through three loops: their largest magnitudes, their scales, their codes. What is done for one
//! group depends on what came before, for a hundred cycles; what is done for its neighbors meanwhile does not.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use kvcache_schema::SCALE_FLOOR;

use super::format::Mover;
use super::lanes::{Lanes, PackedLanes};
use super::portable::Portable;
use super::prefetch::prefetch_row;
use super::rows::Row;
use super::simd::{MOST_LANES, OTHER, REGISTER, Simd, last_inside, scales_of_register, units};
use super::vector::Grouped;

/// Groups that are quantized together.
const GROUPS: usize = 256;

/// Their values: no more than a small part of the first-level cache.
const VALUES: usize = 4096;

/// Numbers of groups, written in whole registers.
type Numbers = [MaybeUninit<f32>; GROUPS + MOST_LANES];

/// Quantizes a row, and meanwhile asks for as many values at `ahead`: as for [`Mover::quantize`].
pub(super) struct Quantize<Q, V, T> {
    pub(super) values: *const V,
    pub(super) cache: *mut u8,
    pub(super) scales: *mut T,
    pub(super) row: Row,
    pub(super) ahead: *const V,
    pub(super) codes: PhantomData<Q>,
}

impl<Q: PackedLanes, V: Lanes, T: Lanes> Grouped for Quantize<Q, V, T> {
    #[inline(always)]
    unsafe fn run<S: Simd, const GROUP: usize>(self) {
        let Self { values, cache, scales, row, ahead, .. } = self;
        // SAFETY: the caller's promise.
        unsafe {
            if GROUP == OTHER {
                Portable::quantize::<Q, V, T>(values, cache, scales, row, ahead);
            } else {
                quantize_row::<S, Q, V, T, GROUP>(values, cache, scales, row, ahead);
            }
        }
    }
}

/// Quantizes a row of a register or more.
#[inline(always)]
unsafe fn quantize_row<S: Simd, Q: PackedLanes, V: Lanes, T: Lanes, const GROUP: usize>(
    values: *const V,
    cache: *mut u8,
    scales: *mut T,
    Row { group, groups, .. }: Row,
    ahead: *const V,
) {
    let group = if GROUP == REGISTER { group } else { GROUP };
    // Parts of about the same length: the last one is moved back to be as long as the others.
    let most = (VALUES / group).clamp(1, GROUPS);
    let at_once = groups.div_ceil(groups.div_ceil(most));
    let (mut first, mut second): (Numbers, Numbers) =
        ([MaybeUninit::uninit(); GROUPS + MOST_LANES], [MaybeUninit::uninit(); GROUPS + MOST_LANES]);
    let (first, second) = (first.as_mut_ptr().cast::<f32>(), second.as_mut_ptr().cast::<f32>());
    for g in (0..groups).step_by(at_once) {
        // The last ones may be quantized twice.
        let g = g.min(groups - at_once);
        let at = g * group;
        // SAFETY: the caller's promise; these groups lie inside the row, are a register of values or more, and there is room
        // for a register more than their numbers.
        unsafe {
            maxima::<S, V, GROUP>(values.add(at), first, group, at_once);
            make_scales::<S, Q, V, T>(first, second, scales.add(g), at_once);
            let (values, cache, ahead) = (values.add(at), cache.add(Q::bytes(at)), ahead.wrapping_add(at));
            encode::<S, Q, V, GROUP>(values, [first, second], cache, group, at_once, ahead);
        }
    }
}

/// Writes the largest magnitude of each group, and zeros behind them, at least to the end of a register.
#[inline(always)]
unsafe fn maxima<S: Simd, V: Lanes, const GROUP: usize>(
    values: *const V,
    maxima: *mut f32,
    group: usize,
    groups: usize,
) {
    let (unit, of_unit, at_once) = (group.max(S::LANES), scales_of_register::<S, GROUP>(), units::<S, GROUP>());
    let len = group * groups;
    let all = if GROUP < S::LANES { len / S::LANES } else { groups };
    let mut u = 0;
    // SAFETY: the caller's promise; all units lie inside the groups.
    unsafe {
        while u + at_once <= all {
            let of_units = V::maxima::<S, GROUP>(values.add(u * unit), at_once, unit);
            S::write_f32::<false>(maxima.add(u * of_unit), of_units);
            u += at_once;
        }
        if u < all {
            let of_units = V::maxima::<S, GROUP>(values.add(u * unit), all - u, unit);
            S::write_f32::<false>(maxima.add(u * of_unit), of_units);
        }
        if all * unit < len {
            // What is left is less than a register, so the last one begins inside the one before it. Its maxima are followed
            // by those of no groups: whole registers of them will be read, from the beginning.
            let at = len - unit;
            S::write_f32::<false>(maxima.add(groups), S::splat(0.0));
            S::write_f32::<false>(maxima.add(at / GROUP), V::maxima::<S, GROUP>(values.add(at), 1, unit));
        }
    }
}

/// The largest magnitudes of a register of groups, in order, from values in registers: of units of `unit` values, which are
/// groups of a register or more, or registers of smaller groups. If there are only `count`, the others' are 0.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(super) unsafe fn maxima_of_registers<S: Simd, V: Lanes, const GROUP: usize>(
    values: *const V,
    count: usize,
    unit: usize,
) -> S::F32 {
    // SAFETY: the caller's promise; every register lies inside its unit.
    unsafe {
        let mut left = units::<S, GROUP>();
        let mut registers = [S::splat(0.0); MOST_LANES];
        for (k, register) in registers.iter_mut().enumerate().take(count) {
            let values = values.add(k * unit);
            *register = S::abs(V::read::<S>(values));
            let mut i = S::LANES;
            while GROUP > S::LANES && i < unit {
                let at = last_inside::<S>(i, unit);
                *register = S::max_magnitude(*register, S::abs(V::read::<S>(values.add(at))));
                i += S::LANES;
            }
        }
        while left > 1 {
            left /= 2;
            for i in 0..left {
                let [a, b] = [registers[2 * i], registers[2 * i + 1]];
                // Four lanes become one in two steps.
                registers[i] = if left >= units::<S, GROUP>() / 4 { S::max_pairs(a, b) } else { S::max_fours(a, b) };
            }
        }
        S::in_order::<GROUP>(registers[0])
    }
}

/// Writes the scales of groups with these largest magnitudes, and the factors of their quotients in two places, of which the
/// first is that of the magnitudes.
#[inline(always)]
unsafe fn make_scales<S: Simd, Q: PackedLanes, V: Lanes, T: Lanes>(
    maxima: *mut f32,
    second: *mut f32,
    scales: *mut T,
    groups: usize,
) {
    // SAFETY: the caller's promise; there is room for whole registers of factors.
    unsafe {
        for g in (0..groups).step_by(S::LANES) {
            let s = V::scale::<S, Q>(S::read_f32(maxima.add(g)));
            let s = S::at_least(s, V::round_to::<S>(S::splat(SCALE_FLOOR)));
            T::write_some::<S>(scales.add(g), s, S::LANES.min(groups - g));
            let [a, b] = V::factors::<S>(s, S::div(S::splat(1.0), s));
            S::write_f32::<false>(maxima.add(g), a);
            S::write_f32::<false>(second.add(g), b);
        }
    }
}

/// Writes the codes of groups with these factors. Meanwhile asks for as many values at `ahead`.
#[inline(always)]
unsafe fn encode<S: Simd, Q: PackedLanes, V: Lanes, const GROUP: usize>(
    values: *const V,
    [first, second]: [*mut f32; 2],
    cache: *mut u8,
    group: usize,
    groups: usize,
    ahead: *const V,
) {
    // SAFETY: the caller's promise; every register lies inside its group, or inside them all.
    unsafe {
        if GROUP > S::LANES {
            for g in 0..groups {
                let factors = [S::splat(*first.add(g)), S::splat(*second.add(g))];
                let start = g * group;
                let mut i = 0;
                while i + 2 * S::LANES <= group {
                    encode_two::<S, Q, V>(values, [factors; 2], cache, start + i, ahead);
                    i += 2 * S::LANES;
                }
                while i < group {
                    encode_one::<S, Q, V>(values, factors, cache, start + last_inside::<S>(i, group));
                    i += S::LANES;
                }
            }
        } else {
            let len = group * groups;
            let mut i = 0;
            while i + 2 * S::LANES <= len {
                let both = [spread::<S, GROUP>([first, second], i), spread::<S, GROUP>([first, second], i + S::LANES)];
                encode_two::<S, Q, V>(values, both, cache, i, ahead);
                i += 2 * S::LANES;
            }
            while i < len {
                let at = last_inside::<S>(i, len);
                encode_one::<S, Q, V>(values, spread::<S, GROUP>([first, second], at), cache, at);
                i += S::LANES;
            }
        }
    }
}

/// The factors of each lane of the register from value `at` on.
#[inline(always)]
unsafe fn spread<S: Simd, const GROUP: usize>([first, second]: [*mut f32; 2], at: usize) -> [S::F32; 2] {
    // SAFETY: the caller's promise.
    unsafe { [S::spread_of::<GROUP>(first.add(at / GROUP)), S::spread_of::<GROUP>(second.add(at / GROUP))] }
}

/// Writes the codes of two registers, from value `at` on, and asks for as many at `ahead`.
#[inline(always)]
unsafe fn encode_two<S: Simd, Q: PackedLanes, V: Lanes>(
    values: *const V,
    factors: [[S::F32; 2]; 2],
    cache: *mut u8,
    at: usize,
    ahead: *const V,
) {
    // SAFETY: the caller's promise.
    unsafe {
        prefetch_row(ahead.wrapping_add(at).cast(), 2 * S::LANES * size_of::<V>());
        let codes = [codes::<S, V>(values.add(at), factors[0]), codes::<S, V>(values.add(at + S::LANES), factors[1])];
        Q::write_two::<S>(cache.add(Q::bytes(at)), codes);
    }
}

/// Writes the codes of a register, from value `at` on.
#[inline(always)]
unsafe fn encode_one<S: Simd, Q: PackedLanes, V: Lanes>(
    values: *const V,
    factors: [S::F32; 2],
    cache: *mut u8,
    at: usize,
) {
    // SAFETY: the caller's promise.
    unsafe { Q::write::<S>(cache.add(Q::bytes(at)), codes::<S, V>(values.add(at), factors)) }
}

/// The codes of a register of values.
#[inline(always)]
unsafe fn codes<S: Simd, V: Lanes>(values: *const V, factors: [S::F32; 2]) -> S::Code {
    // SAFETY: the caller's promise.
    unsafe { S::codes(V::quotient::<S>(V::read::<S>(values), factors)) }
}
