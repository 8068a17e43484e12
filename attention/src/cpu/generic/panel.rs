//! A panel of keys, as the inner products want them: for each of some elements of `head_dim` that of each of [`BLOCK`]
//! keys.

use std::marker::PhantomData;
use std::ops::Range;

use half::f16;

use super::elements::{Codes, Float};
use super::outline::Function;
use super::read_rows::rounded;
use super::rows::{Cursor, LINE, Rows};
use super::simd::{HALVES, MOST_LANES, Registers, Simd};

/// Keys in a panel.
pub(crate) const BLOCK: usize = 64;

/// Elements of `head_dim` in a panel: a panel of float32 is a third of a first-level cache, and the 16 bytes of a row
/// that are read at once are part of one panel.
pub(crate) const DEPTH: usize = 64;

/// Bytes of a row that are read at once.
const COLUMN: usize = 16;

/// Words of 32 bits in a column.
pub(crate) const WORDS: usize = 4;

/// Keys, and the panel to write.
///
/// The rows, [`BLOCK`] of them, can be read; those from `keys` on, which are whole registers, need not be packed. The
/// panel has [`BLOCK`] numbers for each of [`DEPTH`] elements.
pub(crate) struct Pack<'a> {
    pub(crate) rows: Rows<'a>,
    pub(crate) keys: usize,
    /// At most [`DEPTH`] elements of `head_dim`, the first of which is a multiple of it.
    pub(crate) elements: Range<usize>,
    pub(crate) panel: *mut f32,
    /// Room for the scales of [`BLOCK`] rows, of each whole registers: written with the first elements, and used with
    /// the others.
    pub(crate) room: *mut f32,
}

/// Packs keys of float32, with `ROUND` rounded to float16.
pub(crate) struct PackFloats<const ROUND: bool>;

/// Packs keys of float16, which they stay in the panel.
pub(crate) struct PackHalves;

/// Packs keys of codes Q with scales T; with `ROUND` products are rounded to float16.
pub(crate) struct PackCodes<Q, T, const ROUND: bool>(PhantomData<(Q, T)>);

impl<const ROUND: bool> Function for PackFloats<ROUND> {
    type Arguments<'a> = Pack<'a>;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(&Pack { ref rows, keys, ref elements, panel, .. }: &Pack<'_>) {
        let whole = elements.end - elements.len() % WORDS;
        let (mut cursor, lines) =
            prefetches(rows, elements, 4 * rows.len, keys / S::LANES * (whole - elements.start) / WORDS);
        for first in (0..keys).step_by(S::LANES) {
            // SAFETY: there are BLOCK rows, and as many are next; the panel has as many numbers for each element.
            unsafe {
                let (offsets, to) = (rows.offsets.as_ptr().add(first), panel.add(first));
                for d in (elements.start..whole).step_by(WORDS) {
                    cursor.advance(lines);
                    let words = S::read_columns(rows.from.add(4 * d), offsets);
                    let to = to.add((d - elements.start) * BLOCK);
                    for (j, &word) in words.iter().enumerate() {
                        S::write_f32(to.add(j * BLOCK), rounded::<S, ROUND>(word));
                    }
                }
                if whole < elements.end {
                    let words = some_columns::<S>(rows, first, 4 * whole, 4 * rows.len);
                    let to = to.add((whole - elements.start) * BLOCK);
                    for (j, &word) in words[..elements.end - whole].iter().enumerate() {
                        S::write_f32(to.add(j * BLOCK), rounded::<S, ROUND>(word));
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
    unsafe fn run<S: Simd>(&Pack { ref rows, keys, ref elements, panel, .. }: &Pack<'_>) {
        let whole = elements.end - elements.len() % HALVES;
        let steps = keys.div_ceil(S::HALF_ROWS) * (whole - elements.start) / HALVES;
        let (mut cursor, lines) = prefetches(rows, elements, 2 * rows.len, steps);
        for first in (0..keys).step_by(S::HALF_ROWS) {
            // SAFETY: there are BLOCK rows, whole times HALF_ROWS, and as many are next; the panel has as many numbers
            // for each element.
            unsafe {
                let (offsets, to) = (rows.offsets.as_ptr().add(first), panel.cast::<f16>().add(first));
                for d in (elements.start..whole).step_by(HALVES) {
                    cursor.advance(lines);
                    S::transpose_halves(rows.from.add(2 * d), offsets, to.add((d - elements.start) * BLOCK), BLOCK);
                }
                for d in whole..elements.end {
                    for r in 0..S::HALF_ROWS {
                        let from = rows.from.add(*offsets.add(r)).cast::<f16>().add(d);
                        to.add((d - elements.start) * BLOCK + r).write(from.read());
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
    unsafe fn run<S: Simd>(&Pack { ref rows, keys, ref elements, panel, room }: &Pack<'_>) {
        let group = rows.groups.group;
        // Where each word has one scale, those of whole columns.
        let whole = match group.is_multiple_of(Q::IN_WORD) {
            true => elements.end - elements.len() % (WORDS * Q::IN_WORD),
            false => elements.start,
        };
        let steps = keys / S::LANES * (whole - elements.start) / (WORDS * Q::IN_WORD);
        let (mut cursor, lines) = prefetches(rows, elements, Q::bytes(rows.len), steps);
        for first in (0..keys).step_by(S::LANES) {
            // SAFETY: there are BLOCK rows, and as many are next; the panel has as many numbers for each element, and
            // the room for each scale.
            unsafe {
                let (offsets, to, room) = (rows.offsets.as_ptr().add(first), panel.add(first), room.add(first));
                if elements.start == 0 {
                    transpose_scales::<S, T>(rows, first, room);
                    for r in 0..S::LANES {
                        rows.next.prefetch_scales(first + r, rows.groups.count * size_of::<T>());
                    }
                }
                for d in (elements.start..whole).step_by(WORDS * Q::IN_WORD) {
                    cursor.advance(lines);
                    let words = S::read_columns(rows.from.add(Q::bytes(d)), offsets);
                    let to = to.add((d - elements.start) * BLOCK);
                    for (j, &word) in words.iter().enumerate() {
                        let s = S::read_f32(room.add((d + j * Q::IN_WORD) / group * BLOCK));
                        for k in 0..Q::IN_WORD {
                            let x = S::mul(Q::code::<S>(word, k), s);
                            S::write_f32(to.add((j * Q::IN_WORD + k) * BLOCK), rounded::<S, ROUND>(x));
                        }
                    }
                }
                for d in (whole..elements.end).step_by(WORDS * Q::IN_WORD) {
                    let words = some_columns::<S>(rows, first, Q::bytes(d), Q::bytes(rows.len));
                    let to = to.add((d - elements.start) * BLOCK);
                    for i in 0..(elements.end - d).min(WORDS * Q::IN_WORD) {
                        let s = S::read_f32(room.add((d + i) / group * BLOCK));
                        let x = S::mul(Q::code::<S>(words[i / Q::IN_WORD], i % Q::IN_WORD), s);
                        S::write_f32(to.add(i * BLOCK), rounded::<S, ROUND>(x));
                    }
                }
            }
        }
    }
}

/// Prefetches of the rows that are next, as many of them as these are of the elements: in each of so many steps, so many
/// lines.
#[inline(always)]
pub(super) fn prefetches<'a>(
    rows: &'a Rows<'_>,
    elements: &Range<usize>,
    len: usize,
    steps: usize,
) -> (Cursor<'a>, usize) {
    let (first, last) = (BLOCK * elements.start / rows.len, BLOCK * elements.end / rows.len);
    let lines = (last - first) * len.div_ceil(LINE);
    (rows.next.cursor(first..last, len), lines.div_ceil(steps.max(1)))
}

/// Of a register of rows from row `first` on, the words of the column from byte `at` on; behind `len` they are 0.
#[inline(always)]
unsafe fn some_columns<S: Simd>(rows: &Rows<'_>, first: usize, at: usize, len: usize) -> [S::F32; WORDS] {
    // SAFETY: there are BLOCK rows, of which each has `len` bytes; they are copied.
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

/// Of a register of rows from row `first` on, the scales: for each group those of all rows, one each [`BLOCK`] numbers.
#[inline(always)]
unsafe fn transpose_scales<S: Simd, T: Float>(rows: &Rows<'_>, first: usize, room: *mut f32) {
    let (count, offsets) = (rows.groups.count, &rows.scale_offsets[first..]);
    // SAFETY: the rows have scales from g on, and the room has a register for each.
    unsafe {
        for g in (0..count).step_by(S::LANES) {
            let scales = Scales { from: rows.scale.cast::<T>().add(g), offsets, left: count - g };
            for (j, &register) in S::transpose(S::square(&scales)).as_ref().iter().enumerate() {
                S::write_f32(room.add((g + j) * BLOCK), register);
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
