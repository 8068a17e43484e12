//! Multiplies tiles of rows with panels.

use std::marker::PhantomData;
use std::ops::Range;

use kvcache_simd::{Function, prefetch_l1, prefetch_write};

use super::activations::ENDS;
use super::dot::{Columns, Dot, line_parts, word, words};
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

/// Parts of `0..len`, in order: as equal as can be, `most` or fewer.
pub(super) fn parts(len: usize, most: usize) -> impl ExactSizeIterator<Item = Range<usize>> + Clone {
    let count = len.div_ceil(most);
    (0..count).map(move |i| len * i / count..len * (i + 1) / count)
}

/// Products of all tiles with some blocks of some panels.
pub(super) struct Task<'a> {
    pub(super) operands: &'a Operands,
    /// The codes of these panels' blocks, and of no others.
    pub(super) codes: *const u8,
    pub(super) panels: Range<usize>,
    /// All of them, unless two panels are unpacked: where these begin with a later one, y has the sums of the ones
    /// before. (Where sums do not fit into registers anyway, to begin with others costs more than it gains.)
    pub(super) blocks: Range<usize>,
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
        let panel_bytes = task.blocks.len() * block_lines::<S, BITS>(task.operands.block_size) * LINE;
        let (most, panels) = if BITS == UNPACKED { (S::UNPACKED_ROWS, S::UNPACKED_PANELS) } else { (S::ROWS, 1) };
        for p in task.panels.clone().step_by(panels) {
            // SAFETY: the task has so many panels.
            let codes = unsafe { task.codes.add((p - task.panels.start) * panel_bytes) };
            let several = panels > 1 && p + 1 < task.panels.end;
            for tile in parts(task.operands.rows, most) {
                macro_rules! by_rows {
                    ($($rows:literal)*) => {
                        match tile.len() {
                            // SAFETY: the panels are the task's, and the tile has so many of the rows.
                            $($rows if $rows <= most => unsafe {
                                match several {
                                    true => multiply::<S, BITS, $rows, 2>(task, p, codes, tile.start),
                                    false => multiply::<S, BITS, $rows, 1>(task, p, codes, tile.start),
                                }
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
        if line_parts::<$S>($BITS) > 1 {
            one!(1);
        }
        if line_parts::<$S>($BITS) > 2 {
            one!(2);
            one!(3);
        }
    }};
}

/// Adds the products of some codes with the word of each row: numbers of rows are literals, so that a word's distance is
/// part of its instruction.
macro_rules! dot_rows {
    ($S:ident, $P:ident, $R:ident, $sums:ident, $codes:ident, $words:ident, $($row:literal)*) => {
        $(if $row < $R {
            $S::dot::<$P, $row>(&mut $sums[$row], $codes, $words);
        })*
    };
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

/// Multiplies a tile of `R` rows, of which `first` is the first, with a task's blocks of `P` panels from `p` on.
///
/// # Safety
/// The operands' pointers are valid for the sizes beside them, and `y` for writes of these rows and columns by this
/// thread alone; `codes` is valid for reads of the panels' blocks. The instruction set is enabled.
#[inline(always)]
unsafe fn multiply<S: Dot, const BITS: usize, const R: usize, const P: usize>(
    task: &Task<'_>,
    p: usize,
    codes: *const u8,
    first: usize,
) {
    let operands = task.operands;
    let &Operands { n, blocks, block_size, .. } = operands;
    let some = BITS == UNPACKED && S::UNPACKED_PANELS > 1;
    let Range { start, end } = if some { task.blocks.clone() } else { 0..blocks };
    let (lines, words) = (block_lines::<S, BITS>(block_size), words::<S>(block_size));
    let tile_block = (words + ENDS) * R;
    // SAFETY: the tile's rows, the panels and their blocks are the operands', and y has the elements.
    unsafe {
        let x = operands.x.add(first * blocks * (words + ENDS) + start * tile_block);
        let at_scales = (p * blocks + start) * COLUMNS;
        let y = operands.y.add(first * n + p * COLUMNS);
        for r in 0..R {
            for i in 0..P {
                prefetch_write(y.add(r * n + i * COLUMNS).cast());
            }
        }
        let width = |i: usize| COLUMNS.min(n - (p + i) * COLUMNS);
        let mut c = [[S::Floats::splat(0.0); P]; R];
        if start > 0 {
            for (r, c) in c.iter_mut().enumerate() {
                for (i, c) in c.iter_mut().enumerate() {
                    *c = read(y.add(r * n + i * COLUMNS), width(i));
                }
            }
        }
        for b in 0..end - start {
            let (codes, x) = (codes.add(b * lines * LINE), x.add(b * tile_block));
            let sa = x.add(words * R).cast::<f32>();
            let begin = sa.add(R).cast::<i32>();
            let shift = sa.add(2 * R);
            let mut sums = [[S::begin(0); P]; R];
            for (r, sums) in sums.iter_mut().enumerate() {
                *sums = [S::begin(*begin.add(r)); P];
            }
            for line in 0..lines {
                let codes = codes.add(line * LINE);
                let of_panel = |i: usize| codes.add(i * (end - start) * lines * LINE);
                if R <= FEW && BITS != UNPACKED {
                    prefetch_l1(codes.wrapping_add(AHEAD));
                }
                macro_rules! add {
                    ($codes:expr, $word:expr) => {{
                        let words = x.add($word * R);
                        let mut codes = [$codes(of_panel(0)); P];
                        for i in 1..P {
                            codes[i] = $codes(of_panel(i));
                        }
                        dot_rows!(S, P, R, sums, codes, words, 0 1 2 3 4 5 6 7 8 9 10 11);
                    }};
                }
                if BITS == UNPACKED {
                    add!(S::read, line);
                } else {
                    each_part!(S, BITS, |PART| {
                        add!(S::codes::<BITS, PART>, word::<S>(line, PART, lines));
                    });
                }
            }
            for i in 0..P {
                let at = at_scales + (i * blocks + b) * COLUMNS;
                let scales = S::Floats::read(operands.scales.add(at));
                for r in 0..R {
                    c[r][i] = S::finish(sums[r][i], *begin.add(r)).mul_add(scales.scale(*sa.add(r)), c[r][i]);
                }
                if !operands.minima.is_null() {
                    let minima = S::Floats::read(operands.minima.add(at));
                    for (r, c) in c.iter_mut().enumerate() {
                        c[i] = minima.mul_add(S::Floats::splat(*shift.add(r)), c[i]);
                    }
                }
            }
        }
        for (r, c) in c.into_iter().enumerate() {
            for (i, c) in c.into_iter().enumerate() {
                let c = if end == blocks { finished(operands, c, p + i, width(i)) } else { c };
                write(c, y.add(r * n + i * COLUMNS), width(i));
            }
        }
    }
}

/// The outputs of a row of panel `p`: with the bias, and one NaN.
///
/// # Safety
/// The bias, if there is one, is valid for reads of N. The instruction set is enabled.
#[inline(always)]
unsafe fn finished<C: Columns>(operands: &Operands, c: C, p: usize, width: usize) -> C {
    // SAFETY: the bias has the panel's columns; the instruction set is enabled.
    unsafe {
        match operands.bias.is_null() {
            true => c.one_nan(),
            false => c.add(read(operands.bias.add(p * COLUMNS), width)).one_nan(),
        }
    }
}

/// Reads `width` columns; the others are 0.
///
/// # Safety
/// `from` is valid for reads of so many float32. The instruction set is enabled.
#[inline(always)]
unsafe fn read<C: Columns>(from: *const f32, width: usize) -> C {
    // SAFETY: as above; `some` has all columns.
    unsafe {
        if width == COLUMNS {
            return C::read(from);
        }
        let mut some = [0.0; COLUMNS];
        some.as_mut_ptr().copy_from_nonoverlapping(from, width);
        C::read(some.as_ptr())
    }
}

/// Writes `width` columns.
///
/// # Safety
/// `to` is valid for writes of so many float32. The instruction set is enabled.
#[inline(always)]
unsafe fn write<C: Columns>(c: C, to: *mut f32, width: usize) {
    // SAFETY: as above; `some` has all columns.
    unsafe {
        if width == COLUMNS {
            return c.write(to);
        }
        let mut some = [0.0; COLUMNS];
        c.write(some.as_mut_ptr());
        to.copy_from_nonoverlapping(some.as_ptr(), width);
    }
}
