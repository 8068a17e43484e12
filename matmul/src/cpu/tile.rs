//! Multiplies tiles of rows with panels.

use std::marker::PhantomData;
use std::ops::Range;

use kvcache_simd::{Function, prefetch_l1, prefetch_write};

use super::activations::ENDS;
use super::dot::{Columns, Dot, parts, word, words};
use crate::matrix::{COLUMNS, LINE};

/// How far ahead of what is read by few rows codes are prefetched, in bytes: hardware does not look past a page.
const AHEAD: usize = 2048;

/// Rows of a tile up to which codes are read as fast as memory gives them.
const FEW: usize = 4;

/// A product's operands.
pub(super) struct Operands {
    pub(super) scales: *const f32,
    /// Null if there are none.
    pub(super) minima: *const f32,
    /// Null if there is none.
    pub(super) bias: *const f32,
    pub(super) n: usize,
    pub(super) blocks: usize,
    pub(super) block_size: usize,
    /// The tiles.
    pub(super) x: *const u32,
    pub(super) rows: usize,
    pub(super) y: *mut f32,
}

// SAFETY: nothing but y is written, and each element by one task.
unsafe impl Sync for Operands {}

/// The rows of the tiles, in order: as equal as can be, `most` or fewer.
pub(super) fn tiles(rows: usize, most: usize) -> impl ExactSizeIterator<Item = Range<usize>> + Clone {
    let count = rows.div_ceil(most);
    (0..count).map(move |i| rows * i / count..rows * (i + 1) / count)
}

/// Products of all tiles with some panels.
pub(super) struct Task<'a> {
    pub(super) operands: &'a Operands,
    /// The codes of the first panel.
    pub(super) codes: *const u8,
    pub(super) panels: Range<usize>,
}

/// Runs a task whose codes have `BITS` bits, or are [unpacked](UNPACKED).
pub(super) struct Multiply<S, const BITS: usize>(PhantomData<S>);

/// Codes that are unpacked: a line a word.
pub(super) const UNPACKED: usize = 0;

impl<S: Dot, const BITS: usize> Function<S> for Multiply<S, BITS> {
    type Arguments<'a> = Task<'a>;
    type Output = ();

    #[inline(always)]
    unsafe fn run(task: &Task<'_>) {
        let &Task { operands, codes, .. } = task;
        let panel_bytes = operands.blocks * block_lines::<S, BITS>(operands.block_size) * LINE;
        for (i, p) in task.panels.clone().enumerate() {
            // SAFETY: the task has so many panels.
            let codes = unsafe { codes.add(i * panel_bytes) };
            let most = if BITS == UNPACKED { S::UNPACKED_ROWS } else { S::ROWS };
            for tile in tiles(operands.rows, most) {
                macro_rules! by_rows {
                    ($($rows:literal)*) => {
                        match tile.len() {
                            // SAFETY: p is one of the panels, and the tile has so many of the rows.
                            $($rows if $rows <= most => unsafe {
                                multiply::<S, BITS, $rows>(operands, p, codes, tile.start);
                            })*
                            rows => unreachable!("{rows} rows of a tile"),
                        }
                    };
                }
                by_rows!(1 2 3 4 5 6 7 8 9 10 11 12);
            }
        }
    }
}

/// Lines of a block.
const fn block_lines<S: Dot, const BITS: usize>(block_size: usize) -> usize {
    if BITS == UNPACKED { words::<S>(block_size) } else { block_size * BITS / 32 }
}

/// Calls a function of `[S, BITS]` for each part of a line.
macro_rules! each_part {
    ($S:ident, $BITS:ident, |$PART:ident| $body:expr) => {{
        macro_rules! one {
            ($part:literal) => {{
                const $PART: usize = $part;
                $body
            }};
        }
        one!(0);
        if parts::<$S>($BITS) > 1 {
            one!(1);
        }
        if parts::<$S>($BITS) > 2 {
            one!(2);
            one!(3);
        }
    }};
}

/// A panel to be unpacked.
pub(super) struct Packed {
    pub(super) codes: *const u8,
    pub(super) blocks: usize,
    pub(super) block_size: usize,
    /// Room for a line a word.
    pub(super) to: *mut u8,
}

/// Unpacks a panel of codes of `BITS` bits.
pub(super) struct Unpack<S, const BITS: usize>(PhantomData<S>);

impl<S: Dot, const BITS: usize> Function<S> for Unpack<S, BITS> {
    type Arguments<'a> = Packed;
    type Output = ();

    #[inline(always)]
    unsafe fn run(&Packed { codes, blocks, block_size, to }: &Packed) {
        let (lines, words) = (block_lines::<S, BITS>(block_size), words::<S>(block_size));
        for b in 0..blocks {
            for line in 0..lines {
                // SAFETY: the panel has so many blocks of as many lines; `to` has room for a line a word.
                unsafe {
                    let codes = codes.add((b * lines + line) * LINE);
                    each_part!(S, BITS, |PART| {
                        let word = b * words + word::<S>(line, PART, lines);
                        S::write(S::codes::<BITS, PART>(codes), to.add(word * LINE));
                    });
                }
            }
        }
    }
}

/// Multiplies a tile of `R` rows, of which `first` is the first, with panel `p`.
///
/// # Safety
/// The operands' pointers are valid for the sizes beside them, and `y` for writes of these rows and columns by this
/// thread alone; `codes` is valid for reads of the panel's bytes. The instruction set is enabled.
#[inline(always)]
unsafe fn multiply<S: Dot, const BITS: usize, const R: usize>(
    operands: &Operands,
    p: usize,
    codes: *const u8,
    first: usize,
) {
    let &Operands { n, blocks, block_size, .. } = operands;
    let (lines, words) = (block_lines::<S, BITS>(block_size), words::<S>(block_size));
    let tile_block = (words + ENDS) * R;
    // SAFETY: the tile's rows, the panel and their blocks are the operands', and y has the elements.
    unsafe {
        let x = operands.x.add(first * blocks * (words + ENDS));
        let y = operands.y.add(first * n + p * COLUMNS);
        let at_scales = p * blocks * COLUMNS;
        for r in 0..R {
            prefetch_write(y.add(r * n).cast());
        }
        let mut c = [S::Floats::splat(0.0); R];
        for b in 0..blocks {
            let (codes, x) = (codes.add(b * lines * LINE), x.add(b * tile_block));
            let sa = x.add(words * R).cast::<f32>();
            let start = sa.add(R).cast::<i32>();
            let shift = sa.add(2 * R);
            let mut sums = [S::begin(0); R];
            for (r, sum) in sums.iter_mut().enumerate() {
                *sum = S::begin(*start.add(r));
            }
            for line in 0..lines {
                let codes = codes.add(line * LINE);
                if R <= FEW && BITS != UNPACKED {
                    prefetch_l1(codes.wrapping_add(AHEAD));
                }
                macro_rules! add {
                    ($codes:expr, $word:expr) => {{
                        let (codes, word) = ($codes, x.add($word * R));
                        for (r, sum) in sums.iter_mut().enumerate() {
                            *sum = S::dot(*sum, codes, word.add(r));
                        }
                    }};
                }
                if BITS == UNPACKED {
                    add!(S::read(codes), line);
                } else {
                    each_part!(S, BITS, |PART| {
                        add!(S::codes::<BITS, PART>(codes), word::<S>(line, PART, lines));
                    });
                }
            }
            let at = at_scales + b * COLUMNS;
            let scales = S::Floats::read(operands.scales.add(at));
            for r in 0..R {
                c[r] = S::finish(sums[r], *start.add(r)).mul_add(scales.scale(*sa.add(r)), c[r]);
            }
            if !operands.minima.is_null() {
                let minima = S::Floats::read(operands.minima.add(at));
                for (r, c) in c.iter_mut().enumerate() {
                    *c = minima.mul_add(S::Floats::splat(*shift.add(r)), *c);
                }
            }
        }
        let width = COLUMNS.min(n - p * COLUMNS);
        for (r, c) in c.into_iter().enumerate() {
            store::<S::Floats>(operands, c, y.add(r * n), p, width);
        }
    }
}

/// Writes the outputs of a row of panel `p`, which has `width` columns.
///
/// # Safety
/// `y` is valid for writes of `width` float32, and the bias, if there is one, for reads of N. The instruction set is
/// enabled.
#[inline(always)]
unsafe fn store<C: Columns>(operands: &Operands, mut c: C, y: *mut f32, p: usize, width: usize) {
    // SAFETY: the panel has so many columns, which y and the bias have; the instruction set is enabled.
    unsafe {
        if width == COLUMNS {
            if !operands.bias.is_null() {
                c = c.add(C::read(operands.bias.add(p * COLUMNS)));
            }
            return c.one_nan().write(y);
        }
        let mut some = [0.0; COLUMNS];
        if !operands.bias.is_null() {
            some.as_mut_ptr().copy_from_nonoverlapping(operands.bias.add(p * COLUMNS), width);
            c = c.add(C::read(some.as_ptr()));
        }
        c.one_nan().write(some.as_mut_ptr());
        y.copy_from_nonoverlapping(some.as_ptr(), width);
    }
}
