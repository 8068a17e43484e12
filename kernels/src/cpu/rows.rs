//! Blocks of rows, and the functions that move them between a call's tensors and the cache.

use half::f16;
use kvcache_schema::ElementType::{self, Float16, Float32, Int4, Int8};

use super::format::{Converted, Copied, Quantized};
use super::portable::{Eight, Four};
use super::variant::Variant;

/// Rows for keys or for values, in strips. The rows of a strip are neighbors in the cache; strips lie at equal distances, and
/// have equal rows. Distances and offsets are in bytes.
#[derive(Clone, Copy)]
pub(super) struct Block {
    /// The number of strips.
    pub(super) strips: usize,
    /// The rows of a strip.
    pub(super) rows: usize,
    /// The elements of each row.
    pub(super) row: Row,
    /// The first row of values: read by a store, written by a load.
    pub(super) values: *mut u8,
    /// From the values of one strip to those of the next.
    pub(super) values_strip: usize,
    /// From one row of values to the next of its strip.
    pub(super) values_row: usize,
    /// Copies of each row that a load writes, one behind the other.
    pub(super) copies: usize,
    /// The first row in the cache: written by a store, read by a load.
    pub(super) cache: *mut u8,
    /// From one strip in the cache to the next.
    pub(super) cache_strip: usize,
    /// The scales of the first row; any address without quantization.
    pub(super) scale: *mut u8,
    /// From the scales of one strip to those of the next.
    pub(super) scale_strip: usize,
    /// From a strip's addresses in cache and scale to those that a load asks for meanwhile, which may lie anywhere: for the
    /// last strip, and for those before it.
    pub(super) ahead: [Option<(isize, isize)>; 2],
    /// Whether what is written goes past the caches, where the instruction set can.
    pub(super) stream: bool,
}

/// The elements of a row.
#[derive(Clone, Copy)]
pub(super) struct Row {
    /// How many they are.
    pub(super) len: usize,
    /// Neighbors that share a scale; even for int4, and 1 without quantization.
    pub(super) group: usize,
    /// Groups, which are the whole row: given since a division takes longer than a short row.
    pub(super) groups: usize,
}

impl Row {
    /// Whether registers of up to 32 elements divide the row, and groups or registers each other.
    pub(super) fn is_even(self) -> bool {
        self.len.is_multiple_of(32) && (self.group.is_multiple_of(32) || 32 % self.group == 0)
    }

    /// So many neighboring rows as one.
    pub(super) fn times(self, rows: usize) -> Self {
        Self { len: rows * self.len, groups: rows * self.groups, ..self }
    }
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
            (Float32, Int8, Some(Float32)) => R::rows::<Quantized<Eight, f32, f32>>(),
            (Float32, Int8, Some(Float16)) => R::rows::<Quantized<Eight, f32, f16>>(),
            (Float16, Int8, Some(Float32)) => R::rows::<Quantized<Eight, f16, f32>>(),
            (Float16, Int8, Some(Float16)) => R::rows::<Quantized<Eight, f16, f16>>(),
            (Float32, Int4, Some(Float32)) => R::rows::<Quantized<Four, f32, f32>>(),
            (Float32, Int4, Some(Float16)) => R::rows::<Quantized<Four, f32, f16>>(),
            (Float16, Int4, Some(Float32)) => R::rows::<Quantized<Four, f16, f32>>(),
            (Float16, Int4, Some(Float16)) => R::rows::<Quantized<Four, f16, f16>>(),
            types => unreachable!("a problem has a legal combination of types, not {types:?}"),
        }
    }
}
