//! Quantizes rows of x into tiles.
//!
//! ```text
//! tile of R rows: by block
//!     words (words of a block, R) u32: int8 of four k, or int16 of first and third, second and fourth
//!     sa    (R) float32
//!     start (R) int32: what a block's sum begins with: `offset` times z, the sum of x's codes
//!     shift (R) float32: sa * z
//! ```

use std::hint::black_box;
use std::marker::PhantomData;

use kvcache_simd::Function;

use super::dot::Dot;
use crate::gate::{Gate, gated};
use crate::reference::LEAST_SIZE;

/// What one row's block has in a tile besides words, in words.
pub(super) const ENDS: usize = 3;

/// Rows of a tile that are to be quantized.
pub(super) struct Rows {
    /// The first row's first element, of K, or 2K if rows are gated; the next row follows.
    pub(super) x: *const f32,
    pub(super) gate: Gate,
    pub(super) k: usize,
    pub(super) block_size: usize,
    /// Rows, which is how many the tile has.
    pub(super) count: usize,
    /// The largest code.
    pub(super) top: f32,
    /// Sums begin with this times the sum of a block's codes.
    pub(super) offset: i32,
    /// The tile.
    pub(super) to: *mut u32,
}

/// Quantizes a tile's rows.
pub(super) struct Quantize<S>(PhantomData<S>);

impl<S: Dot> Function<S> for Quantize<S> {
    type Arguments<'a> = Rows;
    type Output = ();

    #[inline(always)]
    unsafe fn run(rows: &Rows) {
        // SAFETY: the instruction set is enabled; x and the tile have as many rows as `Rows` says.
        unsafe {
            match rows.block_size {
                16 => quantize_rows::<S, 16>(rows),
                _ => quantize_rows::<S, 32>(rows),
            }
        }
    }
}

/// Elements of a row that are gated before they are quantized: a multiple of every block.
const GATED: usize = 512;

/// Quantizes rows in blocks of `SIZE`.
///
/// # Safety
/// `rows.x` is valid for reads of `count` rows, `rows.to` for writes of a tile of `count` rows (see the module). The
/// instruction set is enabled.
#[inline(always)]
unsafe fn quantize_rows<S: Dot, const SIZE: usize>(rows: &Rows) {
    let &Rows { gate, k, count, top, offset, .. } = rows;
    let words = SIZE / if S::PAIRS { 2 } else { 4 };
    let mut gated_part = [0.0_f32; GATED];
    for r in 0..count {
        for first in (0..k).step_by(GATED) {
            let part = GATED.min(k - first);
            // SAFETY: row r < count has K elements, or twice as many, of which `part` begin at `first`. A tile has for
            // each block `words + ENDS` times `count` words, of which number r of each `count` is the row's.
            unsafe {
                let mut x = rows.x.add(r * k * gate.parts() + first);
                if gate != Gate::None {
                    // Of many elements at a time: the compiler makes vectors of this loop, not of one over a block.
                    for (i, y) in gated_part[..part].iter_mut().enumerate() {
                        *y = gated(gate, x.add(i).read(), x.add(k + i).read());
                    }
                    x = gated_part.as_ptr();
                }
                for b in 0..part.div_ceil(SIZE) {
                    let (x, len) = (x.add(b * SIZE), SIZE.min(part - b * SIZE));
                    let (sa, z, block) = if len == SIZE {
                        quantize::<S, SIZE>(&*x.cast(), top)
                    } else {
                        let mut whole = [0.0; SIZE];
                        whole.as_mut_ptr().copy_from_nonoverlapping(x, len);
                        quantize::<S, SIZE>(&whole, top)
                    };
                    let to = rows.to.add((first / SIZE + b) * (words + ENDS) * count + r);
                    for (i, &word) in block.iter().enumerate().take(words) {
                        to.add(i * count).write(word);
                    }
                    let ends = to.add(words * count);
                    ends.write(sa.to_bits());
                    ends.add(count).write((offset * z) as u32);
                    ends.add(2 * count).write((sa * z as f32).to_bits());
                }
            }
        }
    }
}

/// The scale of a block, the sum of its codes, and its words.
#[inline(always)]
fn quantize<S: Dot, const SIZE: usize>(x: &[f32; SIZE], top: f32) -> (f32, i32, [u32; 16]) {
    // Magnitudes are ordered as their bits are, infinity and then NaN above all.
    const INFINITY: u32 = f32::INFINITY.to_bits();
    let largest = x.iter().fold(LEAST_SIZE.to_bits(), |largest, x| largest.max(x.to_bits() & i32::MAX as u32));
    if largest >= INFINITY {
        return (f32::NAN, 0, [0; 16]);
    }
    let size = f32::from_bits(largest);
    let inverse = top / size;
    // Of a number below 2^22 in magnitude, this rounds to nearest, ties to even: the last bit's unit is 1 then.
    const ROUNDER: f32 = 1.5 * (1 << 23) as f32;
    let codes = x.map(|x| (x * inverse + ROUNDER).to_bits() as i32 - ROUNDER.to_bits() as i32);
    let mut words = [0_u32; 16];
    // Memory that the compiler does not know, so that it makes vectors of codes before it makes words of them.
    let staged = black_box(words.as_mut_ptr());
    // SAFETY: SIZE codes are as many bytes as the words that they become, 16 or fewer.
    words = unsafe {
        match S::PAIRS {
            true => staged.cast::<[i16; SIZE]>().write(codes.map(|code| code as i16)),
            false => staged.cast::<[i8; SIZE]>().write(codes.map(|code| code as i8)),
        }
        *black_box(staged).cast()
    };
    if S::PAIRS {
        for [low, high] in words.as_chunks_mut::<2>().0 {
            // Of first and second, third and fourth: first and third, second and fourth.
            (*low, *high) = (*low & 0xffff | *high << 16, *low >> 16 | *high & 0xffff_0000);
        }
    }
    (size / top, codes.iter().sum(), words)
}
