//! Reads rows of floats as float32.

use std::marker::PhantomData;

use kvcache_simd::{Float, Function};

use super::rows::Rows;
use super::tiles::Tiles;

/// Rows, and where they are written to.
///
/// The rows can be read; in `to` whole registers can be written.
pub(crate) struct Read<'a> {
    pub(crate) rows: Rows<'a>,
    /// Where the first row is written, and how many elements behind it the next, a multiple of a register.
    pub(crate) to: *mut f32,
    pub(crate) to_step: usize,
}

/// Reads floats E.
pub(crate) struct ReadRows<E>(PhantomData<E>);

impl<S: Tiles, E: Float> Function<S> for ReadRows<E> {
    type Arguments<'a> = Read<'a>;
    type Output = ();

    #[inline(always)]
    unsafe fn run(&Read { ref rows, to, to_step }: &Read<'_>) {
        let len = rows.len;
        let (mut cursor, lines) = rows.next.prefetches(rows.offsets.len(), rows.offsets.len());
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
