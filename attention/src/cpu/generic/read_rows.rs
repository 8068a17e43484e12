//! Reads rows as float32, with the roundings of `KeyValueCache`: of the product of code and scale to T3, then of the
//! value to T1. Where one of them is float16, one rounding to float16 is both.

use std::marker::PhantomData;

use super::elements::{Codes, Element, Float};
use super::outline::Function;
use super::rows::{LINE, Rows};
use super::simd::{MOST_LANES, Simd};

/// Rows, and where they are written to.
///
/// The rows and their scales can be read; in `to` whole registers can be written.
pub(crate) struct Read<'a> {
    pub(crate) rows: Rows<'a>,
    /// Where the first row is written, and how many elements behind it the next, a multiple of a register.
    pub(crate) to: *mut f32,
    pub(crate) to_step: usize,
}

/// Reads floats E, with `ROUND` rounded to float16.
pub(crate) struct ReadFloats<E, const ROUND: bool>(PhantomData<E>);

/// Reads codes Q with scales T; with `ROUND` products are rounded to float16.
pub(crate) struct ReadCodes<Q, T, const ROUND: bool>(PhantomData<(Q, T)>);

/// A register of elements, or the last one of a row, of which `left` elements are the row's.
#[inline(always)]
pub(crate) unsafe fn read<S: Simd, E: Element>(from: *const u8, left: usize) -> S::F32 {
    // SAFETY: `left` elements can be read; where they are fewer than a register, they are copied.
    unsafe {
        if left >= S::LANES {
            return E::read::<S>(from);
        }
        let mut tail = [0u8; MOST_LANES * 4];
        tail.as_mut_ptr().copy_from_nonoverlapping(from, E::bytes(left));
        E::read::<S>(tail.as_ptr())
    }
}

/// `x`, or with `ROUND` rounded to float16.
#[inline(always)]
pub(crate) unsafe fn rounded<S: Simd, const ROUND: bool>(x: S::F32) -> S::F32 {
    // SAFETY: the instruction set is enabled.
    unsafe { if ROUND { S::round_f16(x) } else { x } }
}

impl<E: Element, const ROUND: bool> Function for ReadFloats<E, ROUND> {
    type Arguments<'a> = Read<'a>;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(&Read { ref rows, to, to_step }: &Read<'_>) {
        let len = rows.len;
        let mut cursor = rows.next.cursor(0..rows.offsets.len(), E::bytes(len));
        for (i, &offset) in rows.offsets.iter().enumerate() {
            // SAFETY: the row can be read, and whole registers be written; as many rows are next.
            unsafe {
                cursor.advance(E::bytes(len).div_ceil(LINE));
                let (from, to) = (rows.from.add(offset), to.add(i * to_step));
                let mut at = 0;
                while at + S::LANES <= len {
                    S::write_f32(to.add(at), rounded::<S, ROUND>(E::read::<S>(from.add(E::bytes(at)))));
                    at += S::LANES;
                }
                if at < len {
                    let x = read::<S, E>(from.add(E::bytes(at)), len - at);
                    S::write_f32(to.add(at), rounded::<S, ROUND>(x));
                }
            }
        }
    }
}

impl<Q: Codes, T: Float, const ROUND: bool> Function for ReadCodes<Q, T, ROUND> {
    type Arguments<'a> = Read<'a>;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(&Read { ref rows, to, to_step }: &Read<'_>) {
        let group = rows.groups.group;
        // SAFETY: the same conditions.
        unsafe {
            if group.is_multiple_of(S::LANES) {
                every_row::<S, Q, T, ROUND, LONG>(rows, to, to_step);
            } else if S::LANES.is_multiple_of(group) {
                every_row::<S, Q, T, ROUND, SHORT>(rows, to, to_step);
            } else {
                every_row::<S, Q, T, ROUND, OTHER>(rows, to, to_step);
            }
        }
    }
}

/// Groups of whole registers; groups that divide a register; any others.
const LONG: u8 = 0;
const SHORT: u8 = 1;
const OTHER: u8 = 2;

/// All rows, with groups of a kind.
#[inline(always)]
unsafe fn every_row<S: Simd, Q: Codes, T: Float, const ROUND: bool, const KIND: u8>(
    rows: &Rows<'_>,
    to: *mut f32,
    to_step: usize,
) {
    let (codes_len, scales_len) = (Q::bytes(rows.len), rows.groups.count * size_of::<T>());
    let mut cursor = rows.next.cursor(0..rows.offsets.len(), codes_len);
    for (i, (&offset, &scale)) in rows.offsets.iter().zip(rows.scale_offsets).enumerate() {
        // SAFETY: the row and its scales can be read, and whole registers be written; as many rows are next.
        unsafe {
            cursor.advance(codes_len.div_ceil(LINE));
            rows.next.prefetch_scales(i, scales_len);
            let (from, scales, to) = (rows.from.add(offset), rows.scale.add(scale).cast(), to.add(i * to_step));
            match KIND {
                LONG => long_groups::<S, Q, T, ROUND>(rows, from, scales, to),
                SHORT => short_groups::<S, Q, T, ROUND>(rows, from, scales, to),
                _ => other_groups::<S, Q, T, ROUND>(rows, from, scales, to),
            }
        }
    }
}

/// A row of groups of whole registers.
#[inline(always)]
unsafe fn long_groups<S: Simd, Q: Codes, T: Float, const ROUND: bool>(
    rows: &Rows<'_>,
    from: *const u8,
    scales: *const T,
    to: *mut f32,
) {
    let group = rows.groups.group;
    // SAFETY: the group's registers are inside of the row.
    unsafe {
        for g in 0..rows.groups.count {
            let s = S::splat((*scales.add(g)).to_f32::<S>());
            for at in (g * group..(g + 1) * group).step_by(S::LANES) {
                let x = S::mul(Q::read::<S>(from.add(Q::bytes(at))), s);
                S::write_f32(to.add(at), rounded::<S, ROUND>(x));
            }
        }
    }
}

/// A row of groups that divide a register: one register of scales is for `group` registers of codes.
#[inline(always)]
unsafe fn short_groups<S: Simd, Q: Codes, T: Float, const ROUND: bool>(
    rows: &Rows<'_>,
    from: *const u8,
    scales: *const T,
    to: *mut f32,
) {
    let (groups, len) = (rows.groups, rows.len);
    // SAFETY: at < len, and the scales from g on are the row's.
    unsafe {
        for g in (0..groups.count).step_by(S::LANES) {
            let s = match groups.count - g {
                left if left >= S::LANES => T::read::<S>(scales.add(g)),
                left => T::read_some::<S>(scales.add(g), left),
            };
            let first = g * groups.group;
            let whole = ((len - first) / S::LANES).min(groups.lanes.len());
            let mut at = first;
            for lanes in &groups.lanes[..whole] {
                let x = S::mul(Q::read::<S>(from.add(Q::bytes(at))), S::permute(s, lanes.as_ptr()));
                S::write_f32(to.add(at), rounded::<S, ROUND>(x));
                at += S::LANES;
            }
            if whole < groups.lanes.len() && at < len {
                let codes = read::<S, Q>(from.add(Q::bytes(at)), len - at);
                let x = S::mul(codes, S::permute(s, groups.lanes[whole].as_ptr()));
                S::write_f32(to.add(at), rounded::<S, ROUND>(x));
            }
        }
    }
}

/// A row of any groups.
#[inline(always)]
unsafe fn other_groups<S: Simd, Q: Codes, T: Float, const ROUND: bool>(
    rows: &Rows<'_>,
    from: *const u8,
    scales: *const T,
    to: *mut f32,
) {
    let (group, len) = (rows.groups.group, rows.len);
    // SAFETY: at + i < len for every scale that is read.
    unsafe {
        for at in (0..len).step_by(S::LANES) {
            let mut of_lanes = [0.0; MOST_LANES];
            for (i, of_lane) in of_lanes.iter_mut().enumerate().take(S::LANES.min(len - at)) {
                *of_lane = (*scales.add((at + i) / group)).to_f32::<S>();
            }
            let x = S::mul(read::<S, Q>(from.add(Q::bytes(at)), len - at), S::read_f32(of_lanes.as_ptr()));
            S::write_f32(to.add(at), rounded::<S, ROUND>(x));
        }
    }
}
