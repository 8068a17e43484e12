//! Blocks of rows, and the functions that move them between a call's tensors and the cache.

use half::f16;
use kvcache_schema::ElementType::{self, Float16, Float32, Int4, Int8};

use super::format::{Converted, Copied, Quantised};
use super::portable::{Eight, Four};
use super::variant::Variant;

/// Rows of one token (or of several, if there is one row) for keys or for values: the same number of neighbouring elements
/// each, at equal distances. Distances and offsets are in bytes.
#[derive(Clone, Copy)]
pub(super) struct Block {
    /// The number of rows.
    pub(super) rows: usize,
    /// The elements of a row.
    pub(super) len: usize,
    /// Neighbours that share a scale; divides `len`, and is even for int4. 1 without quantisation.
    pub(super) group: usize,
    /// The first row of values: read by a store, written by a load.
    pub(super) values: *mut u8,
    /// Copies of each row that a load writes, one behind the other; rows of values are so many rows apart.
    pub(super) copies: usize,
    /// The first row in the cache: written by a store, read by a load.
    pub(super) cache: *mut u8,
    /// From one row in the cache to the next.
    pub(super) cache_step: usize,
    /// The scales of the first row; any address without quantisation.
    pub(super) scale: *mut u8,
    /// From the scales of one row to those of the next.
    pub(super) scale_step: usize,
    /// From a row's addresses in cache and scale to those that are asked for ahead; they may lie anywhere.
    pub(super) ahead: (isize, isize),
    /// Whether what is written goes past the caches, where the instruction set can.
    pub(super) stream: bool,
}

/// Moves a block.
///
/// # Safety
/// The block's memory is valid for the types that the function was chosen for, and aligned for them; what is written
/// overlaps nothing else.
pub(super) type Move = unsafe fn(&Block);

/// The functions for a combination of types.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    /// From values to the cache.
    pub(super) store: Move,
    /// From the cache to values.
    pub(super) load: Move,
    /// Orders what a thread streamed before whatever it writes next.
    pub(super) fence: fn(),
}

impl Rows {
    /// The functions of a variant for these types (T1, T2, T3).
    pub(super) fn of<R: Variant>(t1: ElementType, t2: ElementType, t3: Option<ElementType>) -> Self {
        match (t1, t2, t3) {
            (Float32, Float32, None) => R::rows::<Copied<f32>>(),
            (Float16, Float16, None) => R::rows::<Copied<f16>>(),
            (Int8, Int8, None) => R::rows::<Copied<i8>>(),
            (Float32, Float16, None) => R::rows::<Converted<f32, f16>>(),
            (Float16, Float32, None) => R::rows::<Converted<f16, f32>>(),
            (Float32, Int8, Some(Float32)) => R::rows::<Quantised<Eight, f32, f32>>(),
            (Float32, Int8, Some(Float16)) => R::rows::<Quantised<Eight, f32, f16>>(),
            (Float16, Int8, Some(Float32)) => R::rows::<Quantised<Eight, f16, f32>>(),
            (Float16, Int8, Some(Float16)) => R::rows::<Quantised<Eight, f16, f16>>(),
            (Float32, Int4, Some(Float32)) => R::rows::<Quantised<Four, f32, f32>>(),
            (Float32, Int4, Some(Float16)) => R::rows::<Quantised<Four, f32, f16>>(),
            (Float16, Int4, Some(Float32)) => R::rows::<Quantised<Four, f16, f32>>(),
            (Float16, Int4, Some(Float16)) => R::rows::<Quantised<Four, f16, f16>>(),
            types => unreachable!("a problem has a legal combination of types, not {types:?}"),
        }
    }
}
