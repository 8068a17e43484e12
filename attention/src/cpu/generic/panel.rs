//! A panel: a transposed block of [`PANEL`] keys. Row d has element d of every key, for the inner products of many
//! queries.

use std::marker::PhantomData;

use kvcache_simd::{Float, Function, MOST_LANES, Simd};

use super::rows::{BLOCK, Rows};
use super::tiles::{HALVES, Registers, Tiles};

/// Keys in a panel: one of float32 with a `head_dim` of 128 is a third of a first-level cache.
pub(crate) const PANEL: usize = 32;

/// Bytes of a row that are read at once.
const COLUMN: usize = 16;

/// Words of 32 bits in a column.
pub(crate) const WORDS: usize = 4;

/// Keys, and the panel to write.
///
/// The rows, [`PANEL`] of them, can be read; those from `keys` on, which are whole registers, need not be packed. The
/// panel has [`PANEL`] numbers for each element of a row. (Of codes there are [`BLOCK`] rows, and as many numbers for
/// each word.)
pub(crate) struct Pack<'a> {
    pub(crate) rows: Rows<'a>,
    pub(crate) keys: usize,
    pub(crate) panel: *mut f32,
}

/// Packs keys of E, a float type of 32 bits or of 16.
pub(crate) struct PackKeys<E>(PhantomData<E>);

impl<S: Tiles, E: Float> Function<S> for PackKeys<E> {
    type Arguments<'a> = Pack<'a>;
    type Output = ();

    #[inline(always)]
    unsafe fn run(pack: &Pack<'_>) {
        // SAFETY: the rows are E, of the bits that the function packs.
        unsafe {
            match size_of::<E>() {
                4 => pack_words::<S, PANEL>(pack, 0, 4 * pack.rows.len),
                _ => pack_halves::<S, E>(pack),
            }
        }
    }
}

/// Packs keys of codes of BITS, as words.
pub(crate) struct PackCodes<const BITS: usize>;

impl<S: Tiles, const BITS: usize> Function<S> for PackCodes<BITS> {
    type Arguments<'a> = Pack<'a>;
    type Output = ();

    #[inline(always)]
    unsafe fn run(pack: &Pack<'_>) {
        // SAFETY: the rows are codes; a word for each eight or four of them is no more than the panel's numbers.
        unsafe {
            let bytes = pack.rows.len * BITS / 8;
            let first = pack_squares::<S>(pack, bytes);
            if 4 * first < bytes {
                pack_words::<S, BLOCK>(pack, first, bytes);
            }
        }
    }
}

/// Some registers of words, one of each row.
struct Square {
    from: *const u8,
    offsets: *const usize,
}

impl<S: Simd> Registers<S> for Square {
    #[inline(always)]
    unsafe fn read(&self, i: usize) -> S::F32 {
        // SAFETY: there are LANES rows of whole registers.
        unsafe { S::read_f32(self.from.add(*self.offsets.add(i)).cast()) }
    }
}

/// Packs words of rows of that many bytes in squares of registers, into a panel of [`BLOCK`] keys, and returns how
/// many.
#[inline(always)]
unsafe fn pack_squares<S: Tiles>(&Pack { ref rows, keys, panel }: &Pack<'_>, bytes: usize) -> usize {
    let whole = bytes / 4 / S::LANES * S::LANES;
    for first in (0..keys).step_by(S::LANES) {
        for word in (0..whole).step_by(S::LANES) {
            // SAFETY: there are BLOCK rows; the panel has as many numbers for each word.
            unsafe {
                let square = Square { from: rows.from.add(4 * word), offsets: rows.offsets.as_ptr().add(first) };
                for (j, &word_of_all) in S::transpose(S::square(&square)).as_ref().iter().enumerate() {
                    S::write_f32(panel.add((word + j) * BLOCK + first), word_of_all);
                }
            }
        }
    }
    whole
}

/// Packs words from `begin` on of that many bytes of a row, of which the last may be a part of one, into a panel of
/// KEYS keys.
#[inline(always)]
unsafe fn pack_words<S: Tiles, const KEYS: usize>(
    &Pack { ref rows, keys, panel, .. }: &Pack<'_>,
    begin: usize,
    bytes: usize,
) {
    let whole = bytes / COLUMN * WORDS;
    let (mut cursor, lines) = rows.prefetch.in_steps(rows.offsets.len(), keys / S::LANES * whole / WORDS);
    for first in (0..keys).step_by(S::LANES) {
        // SAFETY: there are KEYS rows, and as many are next; the panel has as many numbers for each element.
        unsafe {
            let (offsets, to) = (rows.offsets.as_ptr().add(first), panel.add(first));
            for d in (begin..whole).step_by(WORDS) {
                cursor.advance(lines);
                let words = S::read_columns(rows.from.add(4 * d), offsets);
                let to = to.add(d * KEYS);
                for (j, &word) in words.iter().enumerate() {
                    S::write_f32(to.add(j * KEYS), word);
                }
            }
            if 4 * whole < bytes {
                let words = some_columns::<S>(rows, first, 4 * whole, bytes);
                let to = to.add(whole * KEYS);
                for (j, &word) in words[..bytes.div_ceil(4) - whole].iter().enumerate() {
                    S::write_f32(to.add(j * KEYS), word);
                }
            }
        }
    }
}

/// Packs keys of E, a float type of 16 bits.
#[inline(always)]
unsafe fn pack_halves<S: Tiles, E: Float>(&Pack { ref rows, keys, panel, .. }: &Pack<'_>) {
    let whole = rows.len - rows.len % HALVES;
    let steps = keys.div_ceil(S::HALF_ROWS) * whole / HALVES;
    let (mut cursor, lines) = rows.prefetch.in_steps(rows.offsets.len(), steps);
    for first in (0..keys).step_by(S::HALF_ROWS) {
        // SAFETY: there are PANEL rows, whole times HALF_ROWS, and as many are next; the panel has as many numbers
        // for each element.
        unsafe {
            let (offsets, to) = (rows.offsets.as_ptr().add(first), panel.cast::<u16>().add(first));
            for d in (0..whole).step_by(HALVES) {
                cursor.advance(lines);
                S::transpose_halves(rows.from.add(2 * d), offsets, to.add(d * PANEL), PANEL);
            }
            for d in whole..rows.len {
                for r in 0..S::HALF_ROWS {
                    let from = rows.from.add(*offsets.add(r)).cast::<u16>().add(d);
                    to.add(d * PANEL + r).write(from.read());
                }
            }
        }
    }
    // SAFETY: the panel has PANEL numbers for each element.
    unsafe { widen::<S, E>(panel, rows.len) }
}

/// E to float32 in a panel of that many elements, from the last element to the first: no number is written over one
/// that has not been read.
#[inline(always)]
unsafe fn widen<S: Tiles, E: Float>(panel: *mut f32, elements: usize) {
    for d in (0..elements).rev() {
        // SAFETY: the panel has PANEL float32 for each element, and PANEL is whole times two registers.
        unsafe {
            let (from, to) = (panel.cast::<E>().add(d * PANEL), panel.add(d * PANEL));
            let mut first = PANEL;
            while first > 0 {
                first -= 2 * S::LANES;
                let two = [E::read::<S>(from.add(first)), E::read::<S>(from.add(first + S::LANES))];
                S::write_f32(to.add(first), two[0]);
                S::write_f32(to.add(first + S::LANES), two[1]);
            }
        }
    }
}

/// The words of the column from byte `at` on, of a register of rows from row `first` on; after `len` they are 0.
#[inline(always)]
unsafe fn some_columns<S: Tiles>(rows: &Rows<'_>, first: usize, at: usize, len: usize) -> [S::F32; WORDS] {
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
