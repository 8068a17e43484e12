//! Row functions: what moves neighbouring elements between a call's tensors and the cache.

use half::f16;
use kvcache_schema::ElementType::{self, Float16, Float32, Int4, Int8};

use super::portable::{self, Eight, Four};

/// Stores `len` neighbouring values.
///
/// # Safety
/// Arguments are the values, the cache's bytes, the scales (unused without quantisation), `len` and the group. The
/// pointers are aligned for the types the function was chosen for and valid for `len` values, `len` cache elements and
/// `len / group` scales; what is written overlaps nothing. `len` is a multiple of the group, of 2 for int4.
pub(super) type StoreRow = unsafe fn(*const u8, *mut u8, *mut u8, usize, usize);

/// Loads `len` neighbouring values.
///
/// # Safety
/// Arguments are the cache's bytes, the scales, the values to write, `len` and the group; else as for [`StoreRow`].
pub(super) type LoadRow = unsafe fn(*const u8, *const u8, *mut u8, usize, usize);

/// The row functions for a combination of types.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub(super) store: StoreRow,
    pub(super) load: LoadRow,
}

impl Rows {
    /// The fastest row functions for these types (T1, T2, T3) on this machine.
    pub(super) fn choose(t1: ElementType, t2: ElementType, t3: Option<ElementType>) -> Self {
        match (t1, t2, t3) {
            (Float32, Float32, None) => portable::copy::<f32>(),
            (Float16, Float16, None) => portable::copy::<f16>(),
            (Int8, Int8, None) => portable::copy::<i8>(),
            (Float32, Float16, None) => portable::convert::<f32, f16>(),
            (Float16, Float32, None) => portable::convert::<f16, f32>(),
            (Float32, Int8, Some(Float32)) => portable::quantised::<Eight, f32, f32>(),
            (Float32, Int8, Some(Float16)) => portable::quantised::<Eight, f32, f16>(),
            (Float16, Int8, Some(Float32)) => portable::quantised::<Eight, f16, f32>(),
            (Float16, Int8, Some(Float16)) => portable::quantised::<Eight, f16, f16>(),
            (Float32, Int4, Some(Float32)) => portable::quantised::<Four, f32, f32>(),
            (Float32, Int4, Some(Float16)) => portable::quantised::<Four, f32, f16>(),
            (Float16, Int4, Some(Float32)) => portable::quantised::<Four, f16, f32>(),
            (Float16, Int4, Some(Float16)) => portable::quantised::<Four, f16, f16>(),
            types => unreachable!("a problem has a legal combination of types, not {types:?}"),
        }
    }
}
