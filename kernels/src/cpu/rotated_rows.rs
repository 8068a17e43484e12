//! Rows whose heads are multiplied by a Hadamard matrix on their way: before they are quantized, in a buffer, and after
//! they are dequantized, where they are. Both a part at a time, which stays in the first-level cache.

use std::mem::MaybeUninit;

use super::block::{Blocks, Operand, Row, Rows, RowsFunction};
use super::call_plan::CallPlan;
use super::generic::stream_writer::{STAGE_BYTES, StagingBuffer};

impl CallPlan<'_> {
    /// Stores rows by a function, their heads multiplied before it.
    ///
    /// # Safety
    /// The conditions of the functions, for these rows.
    pub(super) unsafe fn store_rows(&self, store: RowsFunction, rows: &Rows) {
        if rows.row.order == 1 {
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
    pub(super) unsafe fn load_rows(&self, load: RowsFunction, rows: &Rows) {
        if rows.row.order == 1 {
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
    unsafe fn multiply(&self, rows: &Rows, to: Operand, prefetch: Option<isize>) {
        let Rows { mut count, row: Row { mut len, order, .. }, values: from, .. } = *rows;
        let bytes = self.bytes(rows.row).values;
        if from.step == bytes && to.step == bytes {
            (len, count) = (count * len, 1); // without gaps: one row
        }
        // SAFETY: this function's conditions.
        unsafe { (self.functions.hadamard)(&Blocks { from, to, count, len, order, prefetch }) }
    }

    /// Calls `visit` with parts of rows whose values fit in a staging buffer, if a unit does: some rows, or of a longer
    /// row some units.
    fn for_each_part(&self, rows: &Rows, mut visit: impl FnMut(&Rows)) {
        let (row, fit) = (rows.row, STAGE_BYTES * 8 / self.bits.values);
        if row.len <= fit {
            let at_once = fit / row.len.max(1);
            for r in (0..rows.count).step_by(at_once) {
                let part = rows.skip(r);
                visit(&Rows { count: at_once.min(part.count), ..part });
            }
            return;
        }
        let piece = (fit / row.unit()).max(1) * row.unit();
        for r in 0..rows.count {
            self.pieces(rows.skip(r), piece).for_each(|piece| visit(&piece));
        }
    }
}
