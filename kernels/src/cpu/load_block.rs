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

use super::block::{Block, Operand, PerOperand, Row, Rows, StridedCopy};
use super::block_kernel::{AT_ONCE_BYTES, BlockKernel, DIRECT_BYTES, Writers, begins_each, is_lines_each};
use super::functions::{Conversion, CopyFunction, RowFunctions, RowsFunction, Stores};
use super::generic::stream_writer::{STAGE_BYTES, StagingBuffer, StreamWriter};

impl BlockKernel<'_> {
    /// Loads a block, with non-temporal stores if there are writers for the lines that rows share.
    ///
    /// # Safety
    /// The row functions' instruction set is supported. The rows of the cache, and the scales of their groups, are
    /// valid for reads, and their copies in values for writes; what is written overlaps nothing else.
    pub(crate) unsafe fn load(self, block: &Block, writers: Option<&mut Writers<'_>>) {
        let bytes = self.bytes(block.rows.row);
        let (values, outer_step) = (&block.rows.values, block.outer_step.values);
        let RowFunctions { copy, copy_narrow, conversion, .. } = *self.functions;
        // The parts of a line that two rows share are written one after the other, so memory gets whole lines.
        let is_narrow = || {
            values.step == bytes.values * block.copies
                && bytes.values.is_multiple_of(LINE)
                && begins_each(values, outer_step, 16)
                && conversion.is_none_or(|each| each.load_narrow.is_some())
        };
        // SAFETY: see `# Safety`; lines are whole, or 16 bytes aligned, where that is checked here.
        unsafe {
            match writers {
                None => self.load_plain(block, bytes),
                Some([writer, _]) if is_lines_each(values, outer_step, bytes.values) => {
                    self.load_lines(block, bytes, copy.stream, conversion.map(|each| each.load.stream), writer);
                }
                Some([writer, _]) if is_narrow() => {
                    self.load_lines(block, bytes, copy_narrow, conversion.and_then(|each| each.load_narrow), writer);
                }
                Some([writer, _]) => self.load_joined(block, bytes, writer),
            }
        }
    }

    unsafe fn load_plain(self, block: &Block, bytes: PerOperand) {
        for outer in 0..block.outer {
            let rows = block.rows_from(outer, 0);
            // SAFETY: outer < block.outer, so these rows are the block's.
            unsafe {
                match self.functions.conversion {
                    None => (self.functions.copy.plain)(&loaded_copies(&rows, block.copies, bytes)),
                    Some(Conversion { load, .. }) => {
                        self.load_rows(load.plain, &rows);
                        self.repeat(rows.values, bytes.values, rows.count, block.copies);
                    }
                }
            }
        }
    }

    /// Loads rows that are whole lines, or as long, by functions that stream to their addresses.
    unsafe fn load_lines(
        self,
        block: &Block,
        bytes: PerOperand,
        copy: CopyFunction,
        load: Option<RowsFunction>,
        writer: &mut StreamWriter<'_>,
    ) {
        let (Some(Conversion { load: Stores { plain, .. }, .. }), Some(load)) = (self.functions.conversion, load)
        else {
            for outer in 0..block.outer {
                let copies = loaded_copies(&block.rows_from(outer, 0), block.copies, bytes);
                // SAFETY: outer < block.outer, so these rows are the block's; they are whole lines, or, for a narrow
                // function, as long and at multiples of 16 bytes: `load` has looked.
                unsafe { copy(&copies) }
            }
            return;
        };
        if block.copies == 1 && block.rows.row.is_whole_registers() && self.order == 1 {
            for outer in 0..block.outer {
                // SAFETY: outer < block.outer, so these rows are the block's, of whole registers, and placed as for
                // copies.
                unsafe { load(&block.rows_from(outer, 0)) }
            }
            return;
        }
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
    unsafe fn load_joined(self, block: &Block, bytes: PerOperand, writer: &mut StreamWriter<'_>) {
        let together = bytes.values * block.copies;
        if together > STAGE_BYTES || (self.functions.conversion.is_none() && bytes.values >= DIRECT_BYTES) {
            // SAFETY: the rows are the block's, whose conditions are the caller's.
            return unsafe { self.load_long(block, bytes, writer) };
        }
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
                    match self.functions.conversion {
                        None => (self.functions.copy.plain)(&loaded_copies(&rows, block.copies, bytes)),
                        Some(Conversion { load, .. }) => {
                            self.load_rows(load.plain, &rows);
                            self.repeat(values, bytes.values, count, block.copies);
                        }
                    }
                    writer.commit(count * together, self.functions.copy.stream);
                }
            }
        }
    }

    /// Loads long rows, copy by copy: rows that are not converted without a staging buffer, others in pieces.
    unsafe fn load_long(self, block: &Block, bytes: PerOperand, writer: &mut StreamWriter<'_>) {
        let stream = self.functions.copy.stream;
        let Some(piece) = self.piece(block.rows.row) else {
            // SAFETY: the rows are the block's, whose conditions are the caller's.
            return unsafe { self.load_plain(block, bytes) };
        };
        for (outer, inner) in block.each_row() {
            let rows = block.rows_from(outer, inner);
            for copy in 0..block.copies {
                let to = rows.values.data.wrapping_add(copy * bytes.values);
                let Some(Conversion { load, .. }) = self.functions.conversion else {
                    let ahead = rows.prefetch.map(|prefetch| prefetch.row);
                    // SAFETY: copy < block.copies, so this is a copy of one of the block's rows.
                    unsafe { writer.copy(rows.cache.data, to, bytes.values, ahead, stream) };
                    continue;
                };
                for at in (0..rows.row.len).step_by(piece) {
                    let row = Row::new(piece.min(rows.row.len - at), rows.row.group);
                    let (skip, len) = (self.bytes(Row::new(at, row.group)), self.bytes(row).values);
                    let (cache, scale) = (rows.cache.skip(skip.cache), rows.scale.skip(skip.scale));
                    // SAFETY: at + row.len <= rows.row.len, so the piece is of the row; it fits in the staging buffer.
                    unsafe {
                        let values = Operand { data: writer.reserve(to.add(skip.values), len), ..rows.values };
                        self.load_rows(load.plain, &Rows { count: 1, row, values, cache, scale, ..rows });
                        writer.commit(len, stream);
                    }
                }
            }
        }
    }

    /// The longest piece of a row whose values fit in a staging buffer, in elements: whole groups and blocks of a
    /// Hadamard matrix, and whole registers where there are none. None if they do not fit.
    fn piece(self, row: Row) -> Option<usize> {
        let unit = if row.group == 1 { 32 } else { self.unit(row) };
        let units = STAGE_BYTES * 8 / self.bits.values / unit;
        (units > 0).then_some(units * unit)
    }

    /// Writes the further copies of `rows` rows of `len` bytes of which the first copy is written, all by plain stores.
    ///
    /// # Safety
    /// The rows are initialized, and room for the other copies follows each.
    unsafe fn repeat(self, first: Operand, len: usize, rows: usize, copies: usize) {
        if copies > 1 {
            let all = StridedCopy { copies: copies - 1, ..StridedCopy::rows(first, first.skip(len), len, rows) };
            // SAFETY: the rows are there, and the room after each: this function's condition.
            unsafe { (self.functions.copy.plain)(&all) }
        }
    }
}

/// Rows of a block, to be copied.
fn loaded_copies(rows: &Rows, copies: usize, bytes: PerOperand) -> StridedCopy {
    let prefetch = rows.prefetch.map(|prefetch| prefetch.row);
    StridedCopy { copies, prefetch, ..StridedCopy::rows(rows.cache, rows.values, bytes.values, rows.count) }
}
