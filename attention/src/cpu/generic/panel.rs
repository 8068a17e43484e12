//! A panel of keys, as the inner products of many queries want them: for each element of `head_dim` that of each of
//! [`PANEL`] keys.

use std::marker::PhantomData;

use half::f16;

use super::elements::{Codes, Float};
use super::outline::Function;
use super::read_rows::rounded;
use super::rows::{Cursor, LINE, Rows};
use super::simd::{HALVES, MOST_LANES, Registers, Simd};

/// Keys in a block, the first of which is key 0 of a sequence; whole panels.
pub(crate) const BLOCK: usize = 64;

/// Keys in a panel: one of float32 with a `head_dim` of 128 is a third of a first-level cache.
pub(crate) const PANEL: usize = 32;

/// Bytes of a row that are read at once.
const COLUMN: usize = 16;

/// Words of 32 bits in a column.
pub(crate) const WORDS: usize = 4;

/// Keys, and the panel to write.
///
/// The rows, [`PANEL`] of them, can be read; those from `keys` on, which are whole registers, need not be packed. The
/// panel has [`PANEL`] numbers for each element of a row.
pub(crate) struct Pack<'a> {
    pub(crate) rows: Rows<'a>,
    pub(crate) keys: usize,
    pub(crate) panel: *mut f32,
    /// Room for the scales of [`PANEL`] rows, of each whole registers.
    pub(crate) room: *mut f32,
}

/// Packs keys of float32, with `ROUND` rounded to float16.
pub(crate) struct PackFloats<const ROUND: bool>;

/// Packs keys of float16.
pub(crate) struct PackHalves;

/// Packs keys of codes Q with scales T; with `ROUND` products are rounded to float16.
pub(crate) struct PackCodes<Q, T, const ROUND: bool>(PhantomData<(Q, T)>);

impl<const ROUND: bool> Function for PackFloats<ROUND> {
    type Arguments<'a> = Pack<'a>;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(&Pack { ref rows, keys, panel, .. }: &Pack<'_>) {
        let whole = rows.len - rows.len % WORDS;
        let (mut cursor, lines) = prefetches(rows, 4 * rows.len, keys / S::LANES * whole / WORDS);
        for first in (0..keys).step_by(S::LANES) {
            // SAFETY: there are PANEL rows, and as many are next; the panel has as many numbers for each element.
            unsafe {
                let (offsets, to) = (rows.offsets.as_ptr().add(first), panel.add(first));
                for d in (0..whole).step_by(WORDS) {
                    cursor.advance(lines);
                    let words = S::read_columns(rows.from.add(4 * d), offsets);
                    let to = to.add(d * PANEL);
                    for (j, &word) in words.iter().enumerate() {
                        S::write_f32(to.add(j * PANEL), rounded::<S, ROUND>(word));
                    }
                }
                if whole < rows.len {
                    let words = some_columns::<S>(rows, first, 4 * whole, 4 * rows.len);
                    let to = to.add(whole * PANEL);
                    for (j, &word) in words[..rows.len - whole].iter().enumerate() {
                        S::write_f32(to.add(j * PANEL), rounded::<S, ROUND>(word));
                    }
                }
            }
        }
    }
}

impl Function for PackHalves {
    type Arguments<'a> = Pack<'a>;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(&Pack { ref rows, keys, panel, .. }: &Pack<'_>) {
        let whole = rows.len - rows.len % HALVES;
        let steps = keys.div_ceil(S::HALF_ROWS) * whole / HALVES;
        let (mut cursor, lines) = prefetches(rows, 2 * rows.len, steps);
        for first in (0..keys).step_by(S::HALF_ROWS) {
            // SAFETY: there are PANEL rows, whole times HALF_ROWS, and as many are next; the panel has as many numbers
            // for each element.
            unsafe {
                let (offsets, to) = (rows.offsets.as_ptr().add(first), panel.cast::<f16>().add(first));
                for d in (0..whole).step_by(HALVES) {
                    cursor.advance(lines);
                    S::transpose_halves(rows.from.add(2 * d), offsets, to.add(d * PANEL), PANEL);
                }
                for d in whole..rows.len {
                    for r in 0..S::HALF_ROWS {
                        let from = rows.from.add(*offsets.add(r)).cast::<f16>().add(d);
                        to.add(d * PANEL + r).write(from.read());
                    }
                }
            }
        }
        // SAFETY: the panel has PANEL numbers for each element.
        unsafe { widen::<S>(panel, rows.len) }
    }
}

impl<Q: Codes, T: Float, const ROUND: bool> Function for PackCodes<Q, T, ROUND> {
    type Arguments<'a> = Pack<'a>;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(&Pack { ref rows, keys, panel, room }: &Pack<'_>) {
        let group = rows.groups.group;
        // Where each word has one scale, those of whole columns.
        let whole = match group.is_multiple_of(Q::IN_WORD) {
            true => rows.len - rows.len % (WORDS * Q::IN_WORD),
            false => 0,
        };
        let steps = keys / S::LANES * whole / (WORDS * Q::IN_WORD);
        let (mut cursor, lines) = prefetches(rows, Q::bytes(rows.len), steps);
        for first in (0..keys).step_by(S::LANES) {
            // SAFETY: there are PANEL rows, and as many are next; the panel has as many numbers for each element, and
            // the room for each scale.
            unsafe {
                let (offsets, to, room) = (rows.offsets.as_ptr().add(first), panel.add(first), room.add(first));
                transpose_scales::<S, T>(rows, first, room);
                for r in 0..S::LANES {
                    rows.next.prefetch_scales(first + r, rows.groups.count * size_of::<T>());
                }
                for d in (0..whole).step_by(WORDS * Q::IN_WORD) {
                    cursor.advance(lines);
                    let words = S::read_columns(rows.from.add(Q::bytes(d)), offsets);
                    let to = to.add(d * PANEL);
                    for (j, &word) in words.iter().enumerate() {
                        let s = S::read_f32(room.add((d + j * Q::IN_WORD) / group * PANEL));
                        for k in 0..Q::IN_WORD {
                            let x = S::mul(Q::code::<S>(word, k), s);
                            S::write_f32(to.add((j * Q::IN_WORD + k) * PANEL), rounded::<S, ROUND>(x));
                        }
                    }
                }
                for d in (whole..rows.len).step_by(WORDS * Q::IN_WORD) {
                    let words = some_columns::<S>(rows, first, Q::bytes(d), Q::bytes(rows.len));
                    let to = to.add(d * PANEL);
                    for i in 0..(rows.len - d).min(WORDS * Q::IN_WORD) {
                        let s = S::read_f32(room.add((d + i) / group * PANEL));
                        let x = S::mul(Q::code::<S>(words[i / Q::IN_WORD], i % Q::IN_WORD), s);
                        S::write_f32(to.add(i * PANEL), rounded::<S, ROUND>(x));
                    }
                }
            }
        }
    }
}

/// Float16 to float32 in a panel of so many elements, from the last element to the first: no number is written over one
/// that has not been read.
#[inline(always)]
unsafe fn widen<S: Simd>(panel: *mut f32, elements: usize) {
    for d in (0..elements).rev() {
        // SAFETY: the panel has PANEL float32 for each element, and PANEL is whole times two registers.
        unsafe {
            let (from, to) = (panel.cast::<f16>().add(d * PANEL), panel.add(d * PANEL));
            let mut first = PANEL;
            while first > 0 {
                first -= 2 * S::LANES;
                let two = [S::read_f16(from.add(first)), S::read_f16(from.add(first + S::LANES))];
                S::write_f32(to.add(first), two[0]);
                S::write_f32(to.add(first + S::LANES), two[1]);
            }
        }
    }
}

/// Prefetches of the rows that are next, which have `len` bytes: in each of so many steps, so many lines.
#[inline(always)]
pub(super) fn prefetches<'a>(rows: &'a Rows<'_>, len: usize, steps: usize) -> (Cursor<'a>, usize) {
    let count = rows.offsets.len();
    let lines = count * len.div_ceil(LINE);
    (rows.next.cursor(0..count, len), lines.div_ceil(steps.max(1)))
}

/// Of a register of rows from row `first` on, the words of the column from byte `at` on; behind `len` they are 0.
#[inline(always)]
unsafe fn some_columns<S: Simd>(rows: &Rows<'_>, first: usize, at: usize, len: usize) -> [S::F32; WORDS] {
    // SAFETY: there are PANEL rows, of which each has `len` bytes; they are copied.
    unsafe {
        let (from, offsets) = (rows.from.add(at), rows.offsets.as_ptr().add(first));
        let (mut bytes, mut places) = ([[0u8; COLUMN]; MOST_LANES], [0; MOST_LANES]);
        for (r, (bytes, place)) in bytes.iter_mut().zip(&mut places).enumerate().take(S::LANES) {
            bytes.as_mut_ptr().copy_from_nonoverlapping(from.add(*offsets.add(r)), COLUMN.min(len - at));
            *place = r * COLUMN;
        }
        S::read_columns(bytes.as_ptr().cast(), places.as_ptr())
    }
}

/// Of a register of rows from row `first` on, the scales: for each group those of all rows, one each [`PANEL`] numbers.
#[inline(always)]
unsafe fn transpose_scales<S: Simd, T: Float>(rows: &Rows<'_>, first: usize, room: *mut f32) {
    let (count, offsets) = (rows.groups.count, &rows.scale_offsets[first..]);
    // SAFETY: the rows have scales from g on, and the room has a register for each.
    unsafe {
        for g in (0..count).step_by(S::LANES) {
            let scales = Scales { from: rows.scale.cast::<T>().add(g), offsets, left: count - g };
            for (j, &register) in S::transpose(S::square(&scales)).as_ref().iter().enumerate() {
                S::write_f32(room.add((g + j) * PANEL), register);
            }
        }
    }
}

/// Of some rows, a register of scales T; `left` of them, if these are less.
struct Scales<'a, T> {
    from: *const T,
    offsets: &'a [usize],
    left: usize,
}

impl<S: Simd, T: Float> Registers<S> for Scales<'_, T> {
    #[inline(always)]
    unsafe fn read(&self, i: usize) -> S::F32 {
        // SAFETY: there are as many rows as a register has lanes, and so many scales in each.
        unsafe {
            let from = self.from.byte_add(*self.offsets.get_unchecked(i));
            if self.left >= S::LANES { T::read::<S>(from) } else { T::read_some::<S>(from, self.left) }
        }
    }
}
