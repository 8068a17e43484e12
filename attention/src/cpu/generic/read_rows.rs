//! Reads rows of floats as float32, and rows of scales.

use std::marker::PhantomData;

use kvcache_simd::{Float, Function};

use super::rows::Rows;
use super::tiles::Tiles;

/// Rows, and where they are written to.
///
/// The rows can be read; in `to` whole registers can be written.
pub(crate) struct ReadInto<'a> {
    pub(crate) rows: Rows<'a>,
    /// Where the first row is written, and how many elements after it the next, a multiple of a register.
    pub(crate) to: *mut f32,
    pub(crate) to_step: usize,
}

/// Reads floats E.
pub(crate) struct ReadRows<E>(PhantomData<E>);

impl<S: Tiles, E: Float> Function<S> for ReadRows<E> {
    type Arguments<'a> = ReadInto<'a>;
    type Output = ();

    #[inline(always)]
    unsafe fn run(&ReadInto { ref rows, to, to_step }: &ReadInto<'_>) {
        let len = rows.len;
        let (mut cursor, lines) = rows.prefetch.in_steps(rows.offsets.len(), rows.offsets.len());
        for (i, &offset) in rows.offsets.iter().enumerate() {
            // SAFETY: the row can be read, and whole registers be written; as many rows are next.
            unsafe {
                cursor.advance(lines);
                let (from, to) = (rows.from.add(offset).cast::<E>(), to.add(i * to_step));
                let mut at = 0;
                while at + S::LANES <= len {
                    S::write_f32(to.add(at), E::read::<S>(from.add(at)));
                    at += S::LANES;
                }
                if at < len {
                    S::write_f32(to.add(at), E::read_some::<S>(from.add(at), len - at));
                }
            }
        }
    }
}

/// Reads rows of scales E, one row after the other without a gap, and any numbers after the last up to a register's
/// end.
pub(crate) struct ReadScales<E>(PhantomData<E>);

impl<S: Tiles, E: Float> Function<S> for ReadScales<E> {
    type Arguments<'a> = ReadInto<'a>;
    type Output = ();

    #[inline(always)]
    unsafe fn run(&ReadInto { ref rows, to, .. }: &ReadInto<'_>) {
        let numbers = (rows.offsets.len() * rows.len).next_multiple_of(S::LANES);
        // SAFETY: the rows can be read, and as many float32 be written, in whole registers. The numbers end where the
        // float32 do: none is written over one that has not been read.
        unsafe {
            let packed = to.add(numbers).cast::<E>().sub(numbers);
            match rows.len {
                1 => copy::<E, 1>(rows, packed),
                2 => copy::<E, 2>(rows, packed),
                4 => copy::<E, 4>(rows, packed),
                8 => copy::<E, 8>(rows, packed),
                len => {
                    for (t, &offset) in rows.offsets.iter().enumerate() {
                        packed.add(t * len).copy_from_nonoverlapping(rows.from.add(offset).cast(), len);
                    }
                }
            }
            for at in (0..numbers).step_by(S::LANES) {
                S::write_f32(to.add(at), E::read::<S>(packed.add(at)));
            }
        }
    }
}

/// Copies rows of N numbers.
#[inline(always)]
unsafe fn copy<E: Float, const N: usize>(rows: &Rows<'_>, to: *mut E) {
    for (t, &offset) in rows.offsets.iter().enumerate() {
        // SAFETY: the rows can be read, and as many numbers be written.
        unsafe { to.cast::<[E; N]>().add(t).write(rows.from.add(offset).cast::<[E; N]>().read()) }
    }
}
