//! Rows of floats in another float type.

use std::marker::PhantomData;

use kvcache_simd::{Float, Function, Simd};

use super::super::block::{Operand, Rows};
use super::super::portable;
use super::quant_simd::{last_inside, prefetch_bytes};

/// Stores values V in a cache of C; with `STREAM` rows are whole registers, at addresses that non-temporal stores need.
pub(crate) struct StoreConverted<V, C, const STREAM: bool>(PhantomData<(V, C)>);

/// Loads values V from a cache of C; with `STREAM` rows are whole registers, at addresses that non-temporal stores
/// need.
pub(crate) struct LoadConverted<V, C, const STREAM: bool>(PhantomData<(V, C)>);

impl<S: Simd, V: Float, C: Float, const STREAM: bool> Function<S> for StoreConverted<V, C, STREAM> {
    type Arguments<'a> = Rows;
    type Output = ();

    #[inline(always)]
    unsafe fn run(rows: &Rows) {
        // SAFETY: every row is valid for its types: RowsFunction's condition.
        unsafe { convert_rows::<S, V, C, STREAM>(rows, rows.values, rows.cache) }
    }
}

impl<S: Simd, V: Float, C: Float, const STREAM: bool> Function<S> for LoadConverted<V, C, STREAM> {
    type Arguments<'a> = Rows;
    type Output = ();

    #[inline(always)]
    unsafe fn run(rows: &Rows) {
        // SAFETY: every row is valid for its types: RowsFunction's condition.
        unsafe { convert_rows::<S, C, V, STREAM>(rows, rows.cache, rows.values) }
    }
}

/// Converts rows from one operand to the other.
#[inline(always)]
unsafe fn convert_rows<S: Simd, A: Float, B: Float, const STREAM: bool>(rows: &Rows, from: Operand, to: Operand) {
    for r in 0..rows.count {
        let (from, to) = (from.row(r), to.row(r));
        if let Some(prefetch) = rows.prefetch {
            prefetch_bytes::<S>(from.wrapping_offset(prefetch.row), rows.row.len * size_of::<A>());
        }
        // SAFETY: r < count, so this is one of the caller's rows.
        unsafe { convert::<S, A, B, STREAM>(from.cast(), to.cast(), rows.row.len) }
    }
}

/// Converts one row.
#[inline(always)]
unsafe fn convert<S: Simd, A: Float, B: Float, const STREAM: bool>(from: *const A, to: *mut B, len: usize) {
    // SAFETY: `len` elements are there; i < len, and last_inside keeps the last register inside the row.
    unsafe {
        if len < S::LANES {
            return portable::convert_row::<A, B>(from, to, len);
        }
        let mut i = 0;
        while i < len {
            let at = last_inside::<S>(i, len);
            B::write::<S, STREAM>(to.add(at), A::read::<S>(from.add(at)));
            i += S::LANES;
        }
    }
}
