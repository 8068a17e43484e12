//! Registers of rows of keys or values, as they are in memory: read, dequantized and rounded as by
//! [`read_rows`](super::read_rows), to the bit.

use std::marker::PhantomData;

use super::elements::{Codes, Element, Float};
use super::read_rows::rounded;
use super::rows::{Groups, Rows};
use super::simd::{MOST_LANES, Simd};

/// How rows are stored.
///
/// # Safety
/// As for [`Simd`]. Rows are whole registers.
pub(crate) trait Stored {
    /// The bytes of so many elements.
    fn bytes(len: usize) -> usize;

    /// The bytes of a scale, if there are scales.
    const SCALE_BYTES: usize;

    /// The C registers at `part` of the row whose elements and scales begin there.
    unsafe fn read<S: Simd, const C: usize>(row: *const u8, scales: *const u8, part: &Part<'_>) -> [S::F32; C];
}

/// Floats E, with `ROUND` rounded to float16.
pub(crate) struct StoredFloats<E, const ROUND: bool>(PhantomData<E>);

/// Codes Q with scales T, in groups that are [`in_registers`](Groups::in_registers); with `ROUND` products are rounded
/// to float16.
pub(crate) struct StoredCodes<Q, T, const ROUND: bool>(PhantomData<(Q, T)>);

/// Some registers of each row, and where their scales are.
pub(crate) struct Part<'a> {
    /// The first element.
    at: usize,
    /// The register of scales: the first one, and how many a row has from there.
    scale: usize,
    scales: usize,
    /// For each register which of these scales each lane has.
    lanes: &'a [[u32; MOST_LANES]],
}

impl<'a> Part<'a> {
    /// The part from element `at` on.
    #[inline(always)]
    pub(crate) fn new<S: Simd, V: Stored>(rows: &Rows<'a>, at: usize) -> Self {
        let &Groups { group, count, ref in_row, .. } = rows.groups;
        if V::SCALE_BYTES == 0 {
            return Self { at, scale: 0, scales: 0, lanes: &[] };
        }
        let scale = at / group / S::LANES * S::LANES;
        Self { at, scale, scales: count - scale, lanes: &in_row[at / S::LANES..] }
    }
}

impl<E: Element, const ROUND: bool> Stored for StoredFloats<E, ROUND> {
    const SCALE_BYTES: usize = 0;

    #[inline(always)]
    fn bytes(len: usize) -> usize {
        E::bytes(len)
    }

    #[inline(always)]
    unsafe fn read<S: Simd, const C: usize>(row: *const u8, _: *const u8, part: &Part<'_>) -> [S::F32; C] {
        // SAFETY: the registers are the row's.
        unsafe {
            let mut registers = [S::splat(0.0); C];
            for (c, register) in registers.iter_mut().enumerate() {
                *register = rounded::<S, ROUND>(E::read::<S>(row.add(E::bytes(part.at + c * S::LANES))));
            }
            registers
        }
    }
}

impl<Q: Codes, T: Float, const ROUND: bool> Stored for StoredCodes<Q, T, ROUND> {
    const SCALE_BYTES: usize = size_of::<T>();

    #[inline(always)]
    fn bytes(len: usize) -> usize {
        Q::bytes(len)
    }

    #[inline(always)]
    unsafe fn read<S: Simd, const C: usize>(row: *const u8, scales: *const u8, part: &Part<'_>) -> [S::F32; C] {
        // SAFETY: the registers are the row's, and the scales from `part.scale` on.
        unsafe {
            let from = scales.cast::<T>().add(part.scale);
            let scales = match part.scales {
                left if left >= S::LANES => T::read::<S>(from),
                left => T::read_some::<S>(from, left),
            };
            let mut registers = [S::splat(0.0); C];
            for (c, register) in registers.iter_mut().enumerate() {
                let codes = Q::read::<S>(row.add(Q::bytes(part.at + c * S::LANES)));
                let x = S::mul(codes, S::permute(scales, part.lanes.get_unchecked(c).as_ptr()));
                *register = rounded::<S, ROUND>(x);
            }
            registers
        }
    }
}
