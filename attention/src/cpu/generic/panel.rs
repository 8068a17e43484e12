//! A panel of keys, as the inner products want them: for each element of `head_dim` that of each of [`BLOCK`] keys.

use std::marker::PhantomData;

use super::elements::{Codes, Element, Float};
use super::outline::Function;
use super::read_rows::{read, rounded};
use super::rows::Rows;
use super::simd::{MOST_LANES, Simd};

/// Keys in a panel.
pub(crate) const BLOCK: usize = 64;

/// Keys, and the panel to write.
///
/// The rows, whole registers of them, can be read. The panel has [`BLOCK`] numbers for each element of `head_dim`,
/// rounded up to whole registers.
pub(crate) struct Pack<'a> {
    pub(crate) rows: Rows<'a>,
    pub(crate) panel: *mut f32,
    /// Room for the scales of a register of rows, each of whole registers of scales.
    pub(crate) room: *mut f32,
}

/// Packs keys of floats E, with `ROUND` rounded to float16.
pub(crate) struct PackFloats<E, const ROUND: bool>(PhantomData<E>);

/// Packs keys of codes Q with scales T; with `ROUND` products are rounded to float16.
pub(crate) struct PackCodes<Q, T, const ROUND: bool>(PhantomData<(Q, T)>);

impl<E: Element, const ROUND: bool> Function for PackFloats<E, ROUND> {
    type Arguments<'a> = Pack<'a>;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(&Pack { ref rows, panel, .. }: &Pack<'_>) {
        for (i, offsets) in rows.offsets.chunks_exact(S::LANES).enumerate() {
            for d in (0..rows.len).step_by(S::LANES) {
                // SAFETY: the rows have elements from d on, and the panel has a register of keys for each of them.
                unsafe {
                    let mut square = S::zeros();
                    for (r, (register, offset)) in square.as_mut().iter_mut().zip(offsets).enumerate() {
                        let from = rows.from.add(offset + E::bytes(d));
                        *register = rounded::<S, ROUND>(read::<S, E>(from, rows.len - d));
                        if E::bytes(d).is_multiple_of(64) {
                            rows.next.prefetch(i * S::LANES + r, E::bytes(d)..E::bytes(d) + 1);
                        }
                    }
                    let to = panel.add(d * BLOCK + i * S::LANES);
                    for (j, &register) in S::transpose(square).as_ref().iter().enumerate() {
                        S::write_f32(to.add(j * BLOCK), register);
                    }
                }
            }
        }
    }
}

impl<Q: Codes, T: Float, const ROUND: bool> Function for PackCodes<Q, T, ROUND> {
    type Arguments<'a> = Pack<'a>;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(&Pack { ref rows, panel, room }: &Pack<'_>) {
        let (len, group) = (rows.len, rows.groups.group);
        let offsets = rows.offsets.chunks_exact(S::LANES);
        for (i, (offsets, scales)) in offsets.zip(rows.scale_offsets.chunks_exact(S::LANES)).enumerate() {
            for r in i * S::LANES..(i + 1) * S::LANES {
                rows.next.prefetch(r, 0..Q::bytes(len));
                rows.next.prefetch_scales(r, rows.groups.count * size_of::<T>());
            }
            // SAFETY: the rows and their scales can be read; the panel has a register of keys for each element, and the
            // room one for each scale.
            unsafe {
                transpose_scales::<S, T>(rows, scales, room);
                for first in (0..len).step_by(S::LANES * Q::IN_WORD) {
                    let words = transpose_words::<S, Q>(rows, offsets, first);
                    let words = words.as_ref();
                    let to = panel.add(first * BLOCK + i * S::LANES);
                    let here = (len - first).min(S::LANES * Q::IN_WORD);
                    if group.is_multiple_of(Q::IN_WORD) {
                        let (mut g, mut left) = (first / group, group - first % group);
                        for (j, &word) in words.iter().enumerate().take(here / Q::IN_WORD) {
                            let s = S::read_f32(room.add(g * S::LANES));
                            let to = to.add(j * Q::IN_WORD * BLOCK);
                            for k in 0..Q::IN_WORD {
                                let x = S::mul(Q::code::<S>(word, k), s);
                                S::write_f32(to.add(k * BLOCK), rounded::<S, ROUND>(x));
                            }
                            left -= Q::IN_WORD;
                            if left == 0 {
                                (g, left) = (g + 1, group);
                            }
                        }
                    } else {
                        for j in 0..here {
                            let s = S::read_f32(room.add((first + j) / group * S::LANES));
                            let x = S::mul(Q::code::<S>(words[j / Q::IN_WORD], j % Q::IN_WORD), s);
                            S::write_f32(to.add(j * BLOCK), rounded::<S, ROUND>(x));
                        }
                    }
                }
            }
        }
    }
}

/// Of a register of rows, the scales: for each group those of all rows.
#[inline(always)]
unsafe fn transpose_scales<S: Simd, T: Float>(rows: &Rows<'_>, offsets: &[usize], room: *mut f32) {
    let count = rows.groups.count;
    // SAFETY: the rows have scales from g on, and the room has a register for each.
    unsafe {
        for g in (0..count).step_by(S::LANES) {
            let mut square = S::zeros();
            for (register, &offset) in square.as_mut().iter_mut().zip(offsets) {
                let from = rows.scale.add(offset).cast::<T>().add(g);
                *register = match count - g {
                    left if left >= S::LANES => T::read::<S>(from),
                    left => T::read_some::<S>(from, left),
                };
            }
            for (j, &register) in S::transpose(square).as_ref().iter().enumerate() {
                S::write_f32(room.add((g + j) * S::LANES), register);
            }
        }
    }
}

/// Of a register of rows, the codes from element `first` on in words of 32 bits: for each word those of all rows.
#[inline(always)]
unsafe fn transpose_words<S: Simd, Q: Codes>(rows: &Rows<'_>, offsets: &[usize], first: usize) -> S::Square {
    let left = Q::bytes(rows.len - first);
    // SAFETY: the rows have `left` bytes from `first` on.
    unsafe {
        let mut square = S::zeros();
        for (register, &offset) in square.as_mut().iter_mut().zip(offsets) {
            let from = rows.from.add(offset + Q::bytes(first));
            *register = if left >= S::LANES * 4 {
                S::read_f32(from.cast())
            } else {
                let mut tail = [0u8; MOST_LANES * 4];
                tail.as_mut_ptr().copy_from_nonoverlapping(from, left);
                S::read_f32(tail.as_ptr().cast())
            };
        }
        S::transpose(square)
    }
}
