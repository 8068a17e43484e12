//! Quantizes rows of x into tiles.
//!
//! ```text
//! tile of R rows: by block
//!     words (words of a block, R) u32: int8 of four k, or int16 of first and third, second and fourth
//!     sa    (R) float32
//!     start (R) int32: the sum of the codes z times what the codes of a panel are more than what they count as
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
        // SAFETY: the instruction set is enabled; x and the tile have as many rows as `Rows` says.
        unsafe {
            match rows.block_size {
                16 => quantize_rows::<S, 16>(rows),
                _ => quantize_rows::<S, 32>(rows),
            }
        }
    }
}

/// Quantizes rows in blocks of `SIZE`.
///
/// # Safety
/// `rows.x` is valid for reads of `count` rows, `rows.to` for writes of a tile of `count` rows (see the module).
/// The instruction set is enabled.
#[inline(always)]
unsafe fn quantize_rows<S: Dot, const SIZE: usize>(rows: &Rows) {
    let &Rows { gate, k, count, top, offset, .. } = rows;
    let words = SIZE / if S::PAIRS { 2 } else { 4 };
    for r in 0..count {
        for b in 0..k.div_ceil(SIZE) {
            let len = SIZE.min(k - b * SIZE);
            // SAFETY: row r < count has K elements, or twice as many, of which the block has `len`, at most SIZE. A tile
            // has for each block `words + ENDS` times `count` words, of which number r of each `count` is the row's.
            unsafe {
                let from = rows.x.add(r * k * gate.parts() + b * SIZE);
                let mut x = read::<SIZE>(from, len);
                if gate != Gate::None {
                    let second = read::<SIZE>(from.add(k), len);
                    for (x, second) in x.iter_mut().zip(second) {
                        *x = gated(gate, *x, second);
                    }
                }
                let to = rows.to.add(b * (words + ENDS) * count + r);
                let (sa, z) = quantize::<S, SIZE>(&x, top, to, count);
                let ends = to.add(words * count);
                ends.write(sa.to_bits());
                ends.add(count).write((offset * z) as u32);
                ends.add(2 * count).write((sa * z as f32).to_bits());
            }
        }
    }
}

/// The first `len` elements, 0 behind them.
///
/// # Safety
/// `len` is at most `SIZE`, and as many elements can be read.
#[inline(always)]
unsafe fn read<const SIZE: usize>(from: *const f32, len: usize) -> [f32; SIZE] {
    let mut x = [0.0; SIZE];
    // SAFETY: the conditions of this function; SIZE elements where there are as many.
    unsafe {
        match len == SIZE {
            true => x = from.cast::<[f32; SIZE]>().read(),
            false => x.as_mut_ptr().copy_from_nonoverlapping(from, len),
        }
    }
    x
}

/// Writes the words of a block, of each `stride` the first; gives the block's scale and the sum of its codes.
///
/// # Safety
/// `to` is valid for writes of so many words.
#[inline(always)]
unsafe fn quantize<S: Dot, const SIZE: usize>(x: &[f32; SIZE], top: f32, to: *mut u32, stride: usize) -> (f32, i32) {
    // Magnitudes are ordered as their bits are, infinity and then NaN above all.
    const INFINITY: u32 = f32::INFINITY.to_bits();
    let largest = x.iter().fold(LEAST_SIZE.to_bits(), |largest, x| largest.max(x.to_bits() & i32::MAX as u32));
    let (sa, codes) = if largest < INFINITY {
        let size = f32::from_bits(largest);
        let inverse = top / size;
        // Of a number below 2^22 in magnitude, this rounds to nearest, ties to even: units become those of the last bit.
        const ROUNDER: f32 = 1.5 * (1 << 23) as f32;
        (size / top, x.map(|x| (x * inverse + ROUNDER).to_bits() as i32 - ROUNDER.to_bits() as i32))
    } else {
        (f32::NAN, [0; SIZE])
    };
    let write = |i: usize, words: [u32; 4]| {
        for (j, word) in words.into_iter().enumerate() {
            // SAFETY: a block has SIZE codes, and a word 2 or 4.
            unsafe { to.add((4 * i + j) * stride).write(word) };
        }
    };
    if S::PAIRS {
        for (i, codes) in codes.as_chunks::<8>().0.iter().enumerate() {
            let [a, b, c, d] = staged(codes.map(|code| code as i16));
            // Of first and second, third and fourth: first and third, second and fourth.
            let [low, high] = [|a, b| a & 0xffff | b << 16, |a: u32, b: u32| a >> 16 | b & 0xffff_0000];
            write(i, [low(a, b), high(a, b), low(c, d), high(c, d)]);
        }
    } else {
        for (i, codes) in codes.as_chunks::<16>().0.iter().enumerate() {
            write(i, staged(codes.map(|code| code as i8)));
        }
    }
    (sa, codes.iter().sum())
}

/// The words of 16 bytes of codes.
///
/// They go through memory that the compiler does not know, so that it makes vectors of codes before it makes words of
/// them; so few bytes, because a processor makes a load wait that takes the bytes of several stores.
#[inline(always)]
fn staged<T>(codes: T) -> [u32; 4] {
    const { assert!(size_of::<T>() == 16) };
    let mut words = [0; 4];
    let memory = black_box(words.as_mut_ptr());
    // SAFETY: 16 bytes of `words`, which any bytes are.
    unsafe {
        memory.cast::<T>().write_unaligned(codes);
        *black_box(memory).cast()
    }
}
