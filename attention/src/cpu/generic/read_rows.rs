//! Reads rows as float32, with the roundings of `KeyValueCache`: of the product of code and scale to T3, then of the
//! value to T1. Where one of them is float16, one rounding to float16 is both.

use std::marker::PhantomData;

use super::elements::{Codes, Element, Float};
use super::outline::Function;
use super::rows::Rows;
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
        for (i, &offset) in rows.offsets.iter().enumerate() {
            rows.next.prefetch(i, 0..E::bytes(len));
            // SAFETY: the row can be read, and whole registers be written.
            unsafe {
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
        for (i, (&offset, &scale)) in rows.offsets.iter().zip(rows.scale_offsets).enumerate() {
            rows.next.prefetch(i, 0..Q::bytes(rows.len));
            rows.next.prefetch_scales(i, rows.groups.count * size_of::<T>());
            // SAFETY: the row and its scales can be read, and whole registers be written.
            unsafe {
                let (from, scales, to) = (rows.from.add(offset), rows.scale.add(scale).cast(), to.add(i * to_step));
                if group.is_multiple_of(S::LANES) {
                    long_groups::<S, Q, T, ROUND>(rows, from, scales, to);
                } else if S::LANES.is_multiple_of(group) {
                    short_groups::<S, Q, T, ROUND>(rows, from, scales, to);
                } else {
                    other_groups::<S, Q, T, ROUND>(rows, from, scales, to);
                }
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
            let mut at = g * groups.group;
            for lanes in &groups.lanes {
                if at >= len {
                    break;
                }
                let codes = read::<S, Q>(from.add(Q::bytes(at)), len - at);
                let x = S::mul(codes, S::permute(s, lanes.as_ptr()));
                S::write_f32(to.add(at), rounded::<S, ROUND>(x));
                at += S::LANES;
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
