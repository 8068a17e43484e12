//! Rows of floats in another float type.

use std::marker::PhantomData;

use kvcache_simd::{Float, Function, Simd};

use super::super::block::Rows;
use super::super::portable;
use super::quant_simd::{last_inside, prefetch_bytes};

/// Converts A to B: values to the cache with `STORE`, else the cache to values. With `STREAM` rows are whole registers,
/// at addresses that non-temporal stores need.
pub(crate) struct Convert<A, B, const STORE: bool, const STREAM: bool>(PhantomData<(A, B)>);

impl<S: Simd, A: Float, B: Float, const STORE: bool, const STREAM: bool> Function<S> for Convert<A, B, STORE, STREAM> {
    type Arguments<'a> = Rows;
    type Output = ();

    #[inline(always)]
    unsafe fn run(rows: &Rows) {
        let (from, to) = if STORE { (rows.values, rows.cache) } else { (rows.cache, rows.values) };
        for r in 0..rows.count {
            let (from, to) = (from.row(r), to.row(r));
            if let Some(prefetch) = rows.prefetch {
                prefetch_bytes::<S>(from.wrapping_offset(prefetch.row), rows.row.len * size_of::<A>());
            }
            // SAFETY: r < count, so this is one of the caller's rows, valid for its types: RowsFunction's condition.
            unsafe { convert::<S, A, B, STREAM>(from.cast(), to.cast(), rows.row.len) }
        }
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
