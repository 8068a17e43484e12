//! What loads and stores of a block have in common.

use kvcache_simd::LINE;

use super::super::block::{Block, Operand, Row, Rows};
use super::super::functions::RowFunctions;
use super::super::generic::stage::LineWriter;

/// Bytes that pass through a stage together: long enough to hide where a row begins, short enough that
/// prefetches come in small portions.
pub(super) const AT_ONCE_BYTES: usize = 4096;

/// Bytes of a row from which on its whole lines are copied without a stage, wherever they begin.
pub(super) const DIRECT_BYTES: usize = 1024;

/// The bytes of a call's elements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ElementBits {
    /// Of a value (T1).
    pub(crate) value: usize,
    /// Of an element of the cache (T2).
    pub(crate) cache: usize,
    /// Of a scale (T3); 0 without quantization.
    pub(crate) scale: usize,
}

impl ElementBits {
    /// The bytes of a row's values, of its elements in the cache, and of its scales.
    pub(super) fn bytes(self, row: Row) -> RowBytes {
        RowBytes {
            values: row.len * self.value / 8,
            cache: row.len * self.cache / 8,
            scale: row.groups * self.scale / 8,
        }
    }
}

/// The bytes of a row in each operand.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowBytes {
    pub(super) values: usize,
    pub(super) cache: usize,
    pub(super) scale: usize,
}

/// For keys or for values: the lines that a thread has not written yet, of the outputs, or of the cache and of its
/// scales.
pub(crate) type Writers<'s> = [LineWriter<'s>; 2];

/// Stores and loads the blocks of a call.
#[derive(Clone, Copy)]
pub(crate) struct BlockKernel<'a> {
    pub(super) functions: &'a RowFunctions,
    pub(super) bits: ElementBits,
}

impl<'a> BlockKernel<'a> {
    /// A kernel of these functions.
    pub(crate) fn new(functions: &'a RowFunctions, bits: ElementBits) -> Self {
        Self { functions, bits }
    }
}

/// The rows of an outer step from an inner step on, to be converted or quantized.
pub(super) fn rows(block: &Block, outer: usize, inner: usize) -> Rows {
    Rows {
        count: block.inner - inner,
        row: block.row,
        values: block.values.row(outer, inner),
        values_step: block.values.inner,
        cache: block.cache.row(outer, inner),
        cache_step: block.cache.inner,
        scale: block.scale.row(outer, inner),
        scale_step: block.scale.inner,
        prefetch: block.prefetch,
    }
}

/// Whether bytes at this address are whole lines.
pub(super) fn is_lines(data: *const u8, len: usize) -> bool {
    data.addr().is_multiple_of(LINE) && len.is_multiple_of(LINE)
}

/// Whether all rows of `len` bytes of an operand are whole lines.
pub(super) fn is_lines_each(operand: &Operand, len: usize) -> bool {
    is_lines(operand.data, len) && operand.outer.is_multiple_of(LINE) && operand.inner.is_multiple_of(LINE)
}
