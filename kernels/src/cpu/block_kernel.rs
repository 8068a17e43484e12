//! What loads and stores of a block have in common.

use kvcache_simd::LINE;

use super::block::{Operand, PerOperand, Row, Rows};
use super::functions::RowFunctions;
use super::generic::stream_writer::StreamWriter;

/// Bytes that pass through a staging buffer together: long enough to hide where a row begins, short enough that
/// prefetches come in small portions.
pub(super) const AT_ONCE_BYTES: usize = 4096;

/// Bytes of a row from which on its whole lines are copied without a staging buffer, wherever they begin.
pub(super) const DIRECT_BYTES: usize = 1024;

/// The writers of a thread, for keys or for values: of the outputs, or of the cache and of its scales.
pub(crate) type Writers<'s> = [StreamWriter<'s>; 2];

/// Stores and loads the blocks of a call.
#[derive(Clone, Copy)]
pub(crate) struct BlockKernel<'a> {
    pub(super) functions: &'a RowFunctions,
    /// The bits of an element.
    pub(super) bits: PerOperand,
    /// The order of the Hadamard matrix that heads are multiplied by; 1 where they are not.
    pub(super) order: usize,
}

impl BlockKernel<'_> {
    /// The bytes of a row in each operand.
    pub(super) fn bytes(self, row: Row) -> PerOperand {
        PerOperand {
            values: row.len * self.bits.values / 8,
            cache: row.len * self.bits.cache / 8,
            scale: row.groups * self.bits.scale / 8,
        }
    }

    /// The first one of some rows in pieces of at most `len` elements, which are whole groups unless a group is longer.
    pub(super) fn pieces(self, rows: Rows, len: usize) -> impl Iterator<Item = Rows> {
        let Row { len: all, group, .. } = rows.row;
        (0..all).step_by(len).map(move |at| {
            let skip = self.bytes(Row::new(at, group));
            Rows {
                count: 1,
                row: Row::new(len.min(all - at), group),
                values: rows.values.skip(skip.values),
                cache: rows.cache.skip(skip.cache),
                scale: rows.scale.skip(skip.scale),
                ..rows
            }
        })
    }
}

/// Whether bytes at this address are whole lines.
pub(super) fn is_lines(data: *const u8, len: usize) -> bool {
    data.addr().is_multiple_of(LINE) && len.is_multiple_of(LINE)
}

/// Whether all rows of `len` bytes of an operand are whole lines, in every outer step.
pub(super) fn is_lines_each(operand: &Operand, outer_step: usize, len: usize) -> bool {
    is_lines(operand.data, len) && begins_each(operand, outer_step, LINE)
}

/// Whether all rows of an operand begin at a multiple of `align` bytes, in every outer step.
pub(super) fn begins_each(operand: &Operand, outer_step: usize, align: usize) -> bool {
    operand.data.addr().is_multiple_of(align) && outer_step.is_multiple_of(align) && operand.step.is_multiple_of(align)
}
