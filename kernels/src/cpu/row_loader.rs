//! Loads of single rows, for kernels that read the cache by themselves.

use kvcache_schema::ElementType;
use kvcache_simd::InstructionSet;

use super::block::{Operand, Row, Rows, RowsFunction};
use super::dispatch;

/// Reads rows of a cache as values of T1, bit for bit as [`Kernel::load`](crate::Kernel::load) gives them: for kernels
/// that use a few rows at once, and keep no copy of them.
#[derive(Debug, Clone, Copy)]
pub struct RowLoader {
    load: RowsFunction,
    row: Row,
    /// Bytes of a row's values, its elements in the cache, and its scales.
    bytes: [usize; 3],
}

impl RowLoader {
    /// A loader of rows of `len` elements in groups of `group` (1 without quantization), for a legal combination of
    /// types (T1, T2, T3); none where the cache holds values as they are.
    pub fn new(
        instructions: InstructionSet,
        types: (ElementType, ElementType, Option<ElementType>),
        len: usize,
        group: usize,
    ) -> Option<Self> {
        let load = dispatch::row_functions(instructions, types, group).conversion?.load.plain;
        let row = Row::new(len, group);
        let (t1, t2, t3) = types;
        let bytes = [t1.byte_len(len), t2.byte_len(len), t3.map_or(0, |t3| t3.byte_len(row.groups))];
        Some(Self { load, row, bytes })
    }

    /// Writes the values of `count` rows of `cache` and their scales, any address without quantization. Each is where
    /// the first one is, and the bytes from one to the next.
    ///
    /// # Safety
    /// The instruction set is supported. The rows and their scales are valid for reads of T2 and T3, `values` is valid
    /// for writes of as many rows of T1, which overlap nothing else, and all are aligned for their types.
    pub unsafe fn load(
        &self,
        count: usize,
        (cache, cache_step): (*const u8, usize),
        (scale, scale_step): (*const u8, usize),
        (values, step): (*mut u8, usize),
    ) {
        // Rows that follow each other without gaps are one.
        let (count, row) = match [step, cache_step, scale_step] == self.bytes {
            true => (1, self.row.times(count)),
            false => (count, self.row),
        };
        // SAFETY: see `# Safety`: a load only reads the cache.
        unsafe {
            (self.load)(&Rows {
                count,
                row,
                values: Operand { data: values, step },
                cache: Operand { data: cache.cast_mut(), step: cache_step },
                scale: Operand { data: scale.cast_mut(), step: scale_step },
                prefetch: None,
            });
        }
    }
}
