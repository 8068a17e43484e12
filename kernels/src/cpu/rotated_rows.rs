//! Rows whose heads are multiplied by a Hadamard matrix on their way: before they are quantized, in a buffer, and after
//! they are dequantized, where they are. Both a part at a time, which stays in the first-level cache.

use std::mem::MaybeUninit;

use super::block::{Blocks, Operand, Row, Rows};
use super::block_kernel::BlockKernel;
use super::functions::{CacheFormat, Conversion, RowsFunction};
use super::generic::stream_writer::{STAGE_BYTES, StagingBuffer};

impl BlockKernel<'_> {
    /// Stores rows by a function, their heads multiplied before it.
    ///
    /// # Safety
    /// The conditions of the functions, for these rows.
    pub(super) unsafe fn store_rows(self, store: RowsFunction, rows: &Rows) {
        if self.order == 1 {
            // SAFETY: this function's conditions.
            return unsafe { store(rows) };
        }
        let (mut stage, mut long) = (StagingBuffer::new(), Vec::<MaybeUninit<u64>>::new());
        self.for_each_part(rows, |part| {
            let step = self.bytes(part.row).values;
            let data = match part.count * step {
                0..=STAGE_BYTES => stage.as_mut_ptr(),
                bytes => {
                    long.resize(bytes.div_ceil(size_of::<u64>()), MaybeUninit::uninit());
                    long.as_mut_ptr().cast()
                }
            };
            let values = Operand { data, step };
            // SAFETY: the part is of the caller's rows; the buffer has room for its values, and is aligned.
            unsafe {
                self.multiply(part, values, part.prefetch.map(|prefetch| prefetch.row));
                store(&Rows { values, prefetch: None, ..*part });
            }
        });
    }

    /// Loads rows by a function, their heads multiplied after it.
    ///
    /// # Safety
    /// The conditions of the functions, for these rows.
    pub(super) unsafe fn load_rows(self, load: RowsFunction, rows: &Rows) {
        if self.order == 1 {
            // SAFETY: this function's conditions.
            return unsafe { load(rows) };
        }
        self.for_each_part(rows, |part| {
            // SAFETY: the part is of the caller's rows.
            unsafe {
                load(part);
                self.multiply(part, part.values, None);
            }
        });
    }

    /// Multiplies the heads of rows of values, to other rows or to the same; prefetches what is that far from them.
    ///
    /// # Safety
    /// The conditions of `HadamardFunction`.
    unsafe fn multiply(self, rows: &Rows, to: Operand, prefetch: Option<isize>) {
        let Rows { mut count, row: Row { mut len, .. }, values: from, .. } = *rows;
        let bytes = self.bytes(rows.row).values;
        if from.step == bytes && to.step == bytes {
            (len, count) = (count * len, 1); // without gaps: one row
        }
        // SAFETY: this function's conditions.
        unsafe { (self.functions.hadamard)(&Blocks { from, to, count, len, order: self.order, prefetch }) }
    }

    /// The least part of a row that is whole blocks of the matrix and whole groups, in elements.
    pub(super) fn unit(self, row: Row) -> usize {
        // The order is a power of two.
        row.group * (self.order >> row.group.trailing_zeros().min(self.order.trailing_zeros()))
    }

    /// Calls `visit` with parts of rows whose values fit in a staging buffer, if a unit does: some rows, or of a longer
    /// row some units.
    fn for_each_part(self, rows: &Rows, mut visit: impl FnMut(&Rows)) {
        let Row { len, group, .. } = rows.row;
        let fit = STAGE_BYTES * 8 / self.bits.values;
        if len <= fit {
            let at_once = fit / len.max(1);
            for r in (0..rows.count).step_by(at_once) {
                let skip = |operand: Operand| operand.skip(r * operand.step);
                let [values, cache, scale] = [rows.values, rows.cache, rows.scale].map(skip);
                visit(&Rows { count: at_once.min(rows.count - r), values, cache, scale, ..*rows });
            }
            return;
        }
        let unit = self.unit(rows.row);
        let piece = (fit / unit).max(1) * unit;
        let by_groups = matches!(self.functions.conversion, Some(Conversion { format: CacheFormat::Quantized, .. }));
        for r in 0..rows.count {
            for at in (0..len).step_by(piece) {
                let skip = self.bytes(Row::new(at, group));
                let part = |operand: Operand, bytes| operand.skip(r * operand.step + bytes);
                visit(&Rows {
                    count: 1,
                    row: Row::new(piece.min(len - at), group),
                    values: part(rows.values, skip.values),
                    cache: part(rows.cache, skip.cache),
                    scale: part(rows.scale, if by_groups { skip.scale } else { 0 }),
                    ..*rows
                });
            }
        }
    }
}
