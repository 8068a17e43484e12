//! Loads of a block: the cache to values.

use super::super::block::{Block, Copies, Row, Rows};
use super::super::functions::{Conversion, RowsFunction, Stores};
use super::super::generic::stage::{LineWriter, STAGE_BYTES, Stage};
use super::block_kernel::{AT_ONCE_BYTES, BlockKernel, DIRECT_BYTES, RowBytes, Writers, is_lines_each, rows};

impl BlockKernel<'_> {
    /// Loads a block, with non-temporal stores if there are writers for what they leave over.
    ///
    /// # Safety
    /// The row functions' instruction set is supported. The rows of the cache, and the scales of their groups, are
    /// valid for reads, and their copies in values for writes; what is written overlaps nothing else.
    pub(crate) unsafe fn load(self, block: &Block, writers: Option<&mut Writers<'_>>) {
        let bytes = self.bits.bytes(block.row);
        // SAFETY: see `# Safety`; lines are whole where that is checked here.
        unsafe {
            match writers {
                None => self.load_plain(block, bytes),
                Some([writer, _]) if is_lines_each(&block.values, bytes.values) => {
                    self.load_lines(block, bytes, writer);
                }
                Some([writer, _]) => self.load_joined(block, bytes, writer),
            }
        }
    }

    unsafe fn load_plain(self, block: &Block, bytes: RowBytes) {
        for outer in 0..block.outer {
            // SAFETY: outer < block.outer, so these rows are the block's.
            unsafe {
                match self.load_function() {
                    None => (self.functions.copy.plain)(&loaded_copies(block, outer, 0, bytes)),
                    Some(load) => {
                        let rows = rows(block, outer, 0);
                        (load.plain)(&rows);
                        self.repeat(rows.values, block.values.inner, bytes.values, block.inner, block.copies);
                    }
                }
            }
        }
    }

    /// Loads rows that are whole lines.
    unsafe fn load_lines(self, block: &Block, bytes: RowBytes, writer: &mut LineWriter<'_>) {
        let Some(load) = self.load_function() else {
            for outer in 0..block.outer {
                // SAFETY: outer < block.outer, so these rows are the block's; they are whole lines.
                unsafe { (self.functions.copy.stream)(&loaded_copies(block, outer, 0, bytes)) }
            }
            return;
        };
        if block.copies == 1 && block.row.is_whole_registers() {
            for outer in 0..block.outer {
                // SAFETY: outer < block.outer, so these rows are the block's; they are whole registers and whole lines.
                unsafe { (load.stream)(&rows(block, outer, 0)) }
            }
            return;
        }
        if bytes.values > STAGE_BYTES {
            // SAFETY: the rows are the caller's.
            return unsafe { self.load_long(block, bytes, writer) };
        }
        let mut stage = Stage::new();
        let stage = stage.as_mut_ptr();
        let at_once = (AT_ONCE_BYTES / bytes.values).clamp(1, block.inner);
        for outer in 0..block.outer {
            for inner in (0..block.inner).step_by(at_once) {
                let count = at_once.min(block.inner - inner);
                // SAFETY: inner + count <= block.inner, so these rows are the block's; the stage has room for `at_once`
                // rows.
                unsafe {
                    (load.plain)(&Rows {
                        count,
                        values: stage,
                        values_step: bytes.values,
                        ..rows(block, outer, inner)
                    });
                    (self.functions.copy.stream)(&Copies {
                        from: stage,
                        from_step: bytes.values,
                        to: block.values.row(outer, inner),
                        to_step: block.values.inner,
                        len: bytes.values,
                        rows: count,
                        copies: block.copies,
                        prefetch: None,
                    });
                }
            }
        }
    }

    /// Loads rows that share lines with their neighbors.
    unsafe fn load_joined(self, block: &Block, bytes: RowBytes, writer: &mut LineWriter<'_>) {
        let together = bytes.values * block.copies;
        if together > STAGE_BYTES || (self.load_function().is_none() && bytes.values >= DIRECT_BYTES) {
            // SAFETY: the rows are the block's, whose conditions are the caller's.
            return unsafe { self.load_long(block, bytes, writer) };
        }
        let contiguous = block.values.inner == together;
        let at_once = if contiguous { (AT_ONCE_BYTES / together).clamp(1, block.inner) } else { 1 };
        for outer in 0..block.outer {
            for inner in (0..block.inner).step_by(at_once) {
                let count = at_once.min(block.inner - inner);
                // SAFETY: inner + count <= block.inner, so these rows are the block's; the writer has room for
                // `at_once` rows with their copies.
                unsafe {
                    let room = writer.reserve(block.values.row(outer, inner), count * together);
                    match self.load_function() {
                        None => (self.functions.copy.plain)(&Copies {
                            to: room,
                            to_step: together,
                            rows: count,
                            ..loaded_copies(block, outer, inner, bytes)
                        }),
                        Some(load) => {
                            let rows = rows(block, outer, inner);
                            (load.plain)(&Rows { count, values: room, values_step: together, ..rows });
                            self.repeat(room, together, bytes.values, count, block.copies);
                        }
                    }
                    writer.commit(count * together, self.functions.copy.stream);
                }
            }
        }
    }

    /// Loads long rows, copy by copy: those that are not converted without a stage, others in pieces.
    unsafe fn load_long(self, block: &Block, bytes: RowBytes, writer: &mut LineWriter<'_>) {
        let stream = self.functions.copy.stream;
        let Some(piece) = self.piece(block.row) else {
            // SAFETY: the rows are the block's, whose conditions are the caller's.
            return unsafe { self.load_plain(block, bytes) };
        };
        for (outer, inner) in block.rows() {
            let rows = rows(block, outer, inner);
            for copy in 0..block.copies {
                let to = rows.values.wrapping_add(copy * bytes.values);
                let Some(load) = self.load_function() else {
                    let ahead = rows.prefetch.map(|prefetch| prefetch.row);
                    // SAFETY: copy < block.copies, so this is a copy of one of the block's rows.
                    unsafe { writer.copy(rows.cache, to, bytes.values, ahead, stream) };
                    continue;
                };
                for at in (0..block.row.len).step_by(piece) {
                    let row = Row::new(piece.min(block.row.len - at), block.row.group);
                    let (skip, len) = (self.bits.bytes(Row::new(at, row.group)), self.bits.bytes(row).values);
                    let (cache, scale) = (rows.cache.wrapping_add(skip.cache), rows.scale.wrapping_add(skip.scale));
                    // SAFETY: at + row.len <= block.row.len, so the piece is of the row; it fits in the stage.
                    unsafe {
                        let values = writer.reserve(to.add(skip.values), len);
                        (load.plain)(&Rows { count: 1, row, values, cache, scale, ..rows });
                        writer.commit(len, stream);
                    }
                }
            }
        }
    }

    /// The function that makes values of the cache, if they are not copied.
    fn load_function(self) -> Option<Stores<RowsFunction>> {
        match self.functions.conversion {
            Conversion::None => None,
            Conversion::Float { load, .. }
            | Conversion::Quantized { load, .. }
            | Conversion::StaticScales { load, .. } => Some(load),
        }
    }

    /// The longest piece of a row whose values fit in a stage, in elements: whole groups, and whole registers where
    /// there are none. None if a group does not fit.
    fn piece(self, row: Row) -> Option<usize> {
        let unit = if row.group == 1 { 32 } else { row.group };
        let units = STAGE_BYTES * 8 / self.bits.value / unit;
        (units > 0).then_some(units * unit)
    }

    /// Writes the further copies of rows of which the first copy is written, all by plain stores.
    ///
    /// # Safety
    /// The `rows` rows of `len` bytes are initialized, and room for the other copies follows each.
    unsafe fn repeat(self, first: *mut u8, step: usize, len: usize, rows: usize, copies: usize) {
        if copies > 1 {
            let to = first.wrapping_add(len);
            let all = Copies {
                from: first,
                from_step: step,
                to,
                to_step: step,
                len,
                rows,
                copies: copies - 1,
                prefetch: None,
            };
            // SAFETY: the rows are there, and the room behind each: this function's condition.
            unsafe { (self.functions.copy.plain)(&all) }
        }
    }
}

/// The rows of an outer step from an inner step on, to be copied.
fn loaded_copies(block: &Block, outer: usize, inner: usize, bytes: RowBytes) -> Copies {
    Copies {
        from: block.cache.row(outer, inner),
        from_step: block.cache.inner,
        to: block.values.row(outer, inner),
        to_step: block.values.inner,
        len: bytes.values,
        rows: block.inner - inner,
        copies: block.copies,
        prefetch: block.prefetch.map(|prefetch| prefetch.row),
    }
}
