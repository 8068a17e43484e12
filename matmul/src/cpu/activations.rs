//! Quantizes rows of x into tiles.
//!
//! ```text
//! tile of R rows: by block
//!     words (words of a block, R) u32: int8 of four k, or int16 of first and third, second and fourth
//!     sa    (R) float32
//!     start (R) int32: the sum of the codes z times what the codes of a panel are more than what they count as
//!     shift (R) float32: sa * z
//! ```

use std::marker::PhantomData;

use kvcache_simd::Function;

use super::dot::Dot;
use crate::reference::LEAST_SIZE;

/// What one row's block has in a tile besides words, in words.
pub(super) const ENDS: usize = 3;

/// Codes of the longest block.
const MOST: usize = 32;

/// Rows of a tile that are to be quantized.
pub(super) struct Rows {
    /// The first row's first element, of K; the next row follows.
    pub(super) x: *const f32,
    pub(super) k: usize,
    pub(super) block_size: usize,
    /// Rows, which is how many the tile has.
    pub(super) count: usize,
    /// The largest code.
    pub(super) top: f32,
    /// What is added to a sum for each code's unit.
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
        let &Rows { k, block_size, count, top, offset, .. } = rows;
        let words = block_size / if S::PAIRS { 2 } else { 4 };
        for r in 0..count {
            for (b, first) in (0..k).step_by(block_size).enumerate() {
                let len = block_size.min(k - first);
                let mut x = [0.0; MOST];
                // SAFETY: row r < count has K elements, first + len <= K; a block has MOST or fewer.
                unsafe { x.as_mut_ptr().copy_from_nonoverlapping(rows.x.add(r * k + first), len) };
                let (sa, codes) = quantize(&x, top);
                let z: i32 = codes.iter().sum();
                // SAFETY: a tile has for each block `words + ENDS` times `count` words, of which number r of each
                // `count` is the row's.
                unsafe {
                    let to = rows.to.add(b * (words + ENDS) * count + r);
                    for (i, four) in codes.as_chunks::<4>().0.iter().enumerate().take(block_size / 4) {
                        if S::PAIRS {
                            let pair = |a: i32, b: i32| a as u16 as u32 | (b as u16 as u32) << 16;
                            to.add(2 * i * count).write(pair(four[0], four[2]));
                            to.add((2 * i + 1) * count).write(pair(four[1], four[3]));
                        } else {
                            to.add(i * count).write(u32::from_le_bytes(four.map(|code| code as u8)));
                        }
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

/// The scale and the codes of a block.
#[inline(always)]
fn quantize(x: &[f32; MOST], top: f32) -> (f32, [i32; MOST]) {
    // Magnitudes are ordered as their bits are, infinity and then NaN above all.
    const INFINITY: u32 = f32::INFINITY.to_bits();
    let largest = x.iter().fold(0, |largest, x| largest.max(x.to_bits() & i32::MAX as u32));
    if largest >= INFINITY {
        return (f32::NAN, [0; MOST]);
    }
    let size = f32::from_bits(largest.max(LEAST_SIZE.to_bits()));
    let inverse = top / size;
    // Of a number below 2^22 in magnitude, this rounds to nearest, ties to even: units become those of the last bit.
    const ROUNDER: f32 = 1.5 * (1 << 23) as f32;
    (size / top, x.map(|x| (x * inverse + ROUNDER).to_bits() as i32 - ROUNDER.to_bits() as i32))
}
