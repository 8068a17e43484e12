//! Loads of a block: the cache to values.
//!
//! ```text
//! plain stores:                 each row where it goes
//! streaming, whole lines:       copies and whole registers where they go, others through a staging buffer
//! streaming, 16 bytes past one: rows that follow each other likewise, 16 bytes at a time
//! streaming, shared lines:      some rows at a time through the stream writer, which joins lines
//! streaming, rows past a stage: copy by copy, piece by piece through the stream writer
//! ```

use kvcache_simd::LINE;

use super::block::{Block, CopyFunction, Operand, PerOperand, Row, Rows, RowsFunction, StridedCopy};
use super::call_plan::CallPlan;
use super::dispatch::{Conversion, RowFunctions};
use super::generic::stream_writer::{AT_ONCE_BYTES, DIRECT_BYTES, STAGE_BYTES, StagingBuffer, StreamWriter, Writers};

impl CallPlan<'_> {
    /// Loads a block, with non-temporal stores if there are writers for the lines that rows share.
    ///
    /// # Safety
    /// The row functions' instruction set is supported. The rows of the cache, and the scales of their groups, are
    /// valid for reads, and their copies in values for writes; what is written overlaps nothing else.
    pub(super) unsafe fn load_block(&self, block: &Block, writers: Option<&mut Writers<'_>>) {
        let bytes = self.bytes(block.rows.row);
        let (values, outer_step) = (&block.rows.values, block.outer_step.values);
        let RowFunctions { copy, copy_narrow, conversion, .. } = self.functions;
        // The parts of a line that two rows share are written one after the other, so memory gets whole lines.
        let is_narrow = || {
            values.step == bytes.values * block.copies
                && bytes.values.is_multiple_of(LINE)
                && values.begins_each(outer_step, 16)
                && conversion.is_none_or(|each| each.load_narrow.is_some())
        };
        // SAFETY: see `# Safety`; lines are whole, or 16 bytes aligned, where that is checked here.
        unsafe {
            match writers {
                None => self.load_each(block, bytes, copy.plain, conversion.map(|each| each.load.plain)),
                Some([writer, _]) if values.is_lines_each(outer_step, bytes.values) => {
                    self.load_lines(block, bytes, copy.stream, conversion.map(|each| each.load.stream), writer);
                }
                Some([writer, _]) if is_narrow() => {
                    self.load_lines(block, bytes, copy_narrow, conversion.and_then(|each| each.load_narrow), writer);
                }
                Some([writer, _]) => self.load_joined(block, bytes, writer),
            }
        }
    }

    /// Loads each row where it goes, by a function or as it is. Functions that stream to their addresses get rows that
    /// are whole lines, or as long and at multiples of 16 bytes; what is converted by one has a single copy.
    unsafe fn load_each(&self, block: &Block, bytes: PerOperand, copy: CopyFunction, load: Option<RowsFunction>) {
        for outer in 0..block.outer {
            let rows = block.rows_from(outer, 0);
            // SAFETY: outer < block.outer, so these rows are the block's.
            unsafe { self.load_copies(&rows, block.copies, bytes, copy, load) }
        }
    }

    /// Loads rows with their copies, one after the other.
    unsafe fn load_copies(
        &self,
        rows: &Rows,
        copies: usize,
        bytes: PerOperand,
        copy: CopyFunction,
        load: Option<RowsFunction>,
    ) {
        let Rows { count, values, cache, .. } = *rows;
        // SAFETY: the rows are the caller's; once the first copy is written, room for the others follows each.
        unsafe {
            let Some(load) = load else {
                let prefetch = rows.prefetch.map(|prefetch| prefetch.row);
                return copy(&StridedCopy {
                    copies,
                    prefetch,
                    ..StridedCopy::rows(cache, values, bytes.values, count)
                });
            };
            self.load_rows(load, rows);
            if copies > 1 {
                let others = StridedCopy::rows(values, values.skip(bytes.values), bytes.values, count);
                (self.functions.copy.plain)(&StridedCopy { copies: copies - 1, ..others });
            }
        }
    }

    /// Loads rows that are whole lines, or as long, by functions that stream to their addresses.
    unsafe fn load_lines(
        &self,
        block: &Block,
        bytes: PerOperand,
        copy: CopyFunction,
        load: Option<RowsFunction>,
        writer: &mut StreamWriter<'_>,
    ) {
        let whole_registers = block.copies == 1 && block.rows.row.is_whole_registers() && block.rows.row.order == 1;
        let plain = match self.functions.conversion {
            Some(Conversion { load, .. }) if !whole_registers => load.plain,
            // SAFETY: the rows are the block's; `load` has looked where they go.
            _ => return unsafe { self.load_each(block, bytes, copy, load) },
        };
        if bytes.values > STAGE_BYTES {
            // SAFETY: the rows are the caller's.
            return unsafe { self.load_long(block, bytes, writer) };
        }
        let mut stage = StagingBuffer::new();
        let staged = Operand { data: stage.as_mut_ptr(), step: bytes.values };
        let at_once = (AT_ONCE_BYTES / bytes.values).clamp(1, block.rows.count);
        for outer in 0..block.outer {
            for inner in (0..block.rows.count).step_by(at_once) {
                let rows = block.rows_from(outer, inner);
                let count = at_once.min(rows.count);
                let lines = StridedCopy::rows(staged, rows.values, bytes.values, count);
                // SAFETY: inner + count <= block.rows.count, so these rows are the block's; the staging buffer has room
                // for `at_once` rows.
                unsafe {
                    self.load_rows(plain, &Rows { count, values: staged, ..rows });
                    copy(&StridedCopy { copies: block.copies, ..lines });
                }
            }
        }
    }

    /// Loads rows that share lines with their neighbors.
    unsafe fn load_joined(&self, block: &Block, bytes: PerOperand, writer: &mut StreamWriter<'_>) {
        let together = bytes.values * block.copies;
        if together > STAGE_BYTES || (self.functions.conversion.is_none() && bytes.values >= DIRECT_BYTES) {
            // SAFETY: the rows are the block's, whose conditions are the caller's.
            return unsafe { self.load_long(block, bytes, writer) };
        }
        let RowFunctions { copy, conversion, .. } = self.functions;
        let load = conversion.map(|each| each.load.plain);
        let contiguous = block.rows.values.step == together;
        let at_once = if contiguous { (AT_ONCE_BYTES / together).clamp(1, block.rows.count) } else { 1 };
        for outer in 0..block.outer {
            for inner in (0..block.rows.count).step_by(at_once) {
                let rows = block.rows_from(outer, inner);
                let count = at_once.min(rows.count);
                // SAFETY: inner + count <= block.rows.count, so these rows are the block's; the writer has room for
                // `at_once` rows with their copies.
                unsafe {
                    let values = Operand { data: writer.reserve(rows.values.data, count * together), step: together };
                    let rows = Rows { count, values, ..rows };
                    self.load_copies(&rows, block.copies, bytes, copy.plain, load);
                    writer.commit(count * together, copy.stream);
                }
            }
        }
    }

    /// Loads long rows, copy by copy: rows that are not converted without a staging buffer, others in pieces.
    unsafe fn load_long(&self, block: &Block, bytes: PerOperand, writer: &mut StreamWriter<'_>) {
        let RowFunctions { copy, conversion, .. } = self.functions;
        let load = conversion.map(|each| each.load.plain);
        let Some(piece) = self.piece(block.rows.row) else {
            // SAFETY: the rows are the block's, whose conditions are the caller's.
            return unsafe { self.load_each(block, bytes, copy.plain, load) };
        };
        for (outer, inner) in block.each_row() {
            let rows = block.rows_from(outer, inner);
            for i in 0..block.copies {
                let values = rows.values.skip(i * bytes.values);
                let Some(load) = load else {
                    let ahead = rows.prefetch.map(|prefetch| prefetch.row);
                    // SAFETY: i < block.copies, so this is a copy of one of the block's rows.
                    unsafe { writer.copy(rows.cache.data, values.data, bytes.values, ahead, copy.stream) };
                    continue;
                };
                for piece in self.pieces(Rows { values, ..rows }, piece) {
                    let len = self.bytes(piece.row).values;
                    // SAFETY: the piece is of a copy of one of the block's rows; it fits in the staging buffer.
                    unsafe {
                        let values = Operand { data: writer.reserve(piece.values.data, len), ..values };
                        self.load_rows(load, &Rows { values, ..piece });
                        writer.commit(len, copy.stream);
                    }
                }
            }
        }
    }

    /// The longest piece of a row whose values fit in a staging buffer, in elements: whole groups and blocks of a
    /// Hadamard matrix, and whole registers where there are none. None if they do not fit.
    fn piece(&self, row: Row) -> Option<usize> {
        let unit = if row.group == 1 { 32 } else { row.unit() };
        let units = STAGE_BYTES * 8 / self.bits.values / unit;
        (units > 0).then_some(units * unit)
    }
}
