//! Moves a block: chooses between plain and non-temporal stores, and brings rows through a stage where they need one.

use super::block::{Block, Copies, Operand, Prefetch, Row, Rows};
use super::functions::{Conversion, RowFunctions, RowsFunction, Stores};
use super::generic::prefetch::LINE;
use super::generic::stage::{LineWriter, STAGE_BYTES, Stage};

/// Bytes that pass through a stage together: long enough to hide where a row begins, short enough that what is prefetched
/// meanwhile comes in small portions.
const AT_ONCE_BYTES: usize = 4096;

/// Bytes of a row from which on its whole lines are copied without a stage, wherever they begin.
const DIRECT_BYTES: usize = 1024;

/// Bytes of values that are quantized together before their codes are streamed.
const QUANTIZED_BYTES: usize = 16 << 10;

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
    fn bytes(self, row: Row) -> RowBytes {
        RowBytes {
            values: row.len * self.value / 8,
            cache: row.len * self.cache / 8,
            scale: row.groups * self.scale / 8,
        }
    }
}

/// The bytes of a row in each operand.
#[derive(Debug, Clone, Copy)]
struct RowBytes {
    values: usize,
    cache: usize,
    scale: usize,
}

/// For keys or for values: the lines that a thread has not written yet, of the outputs, or of the cache and of its scales.
pub(crate) type Writers<'s> = [LineWriter<'s>; 2];

/// Moves the blocks of a call.
#[derive(Clone, Copy)]
pub(crate) struct Mover<'a> {
    functions: &'a RowFunctions,
    bits: ElementBits,
}

impl<'a> Mover<'a> {
    /// A mover by these functions.
    pub(crate) fn new(functions: &'a RowFunctions, bits: ElementBits) -> Self {
        Self { functions, bits }
    }

    /// Loads a block, with non-temporal stores if there are writers for what they leave over.
    ///
    /// # Safety
    /// The row functions' instruction set is supported. The rows of the cache, and the scales of their groups, are valid for
    /// reads, and their copies in values for writes; what is written overlaps nothing else.
    pub(crate) unsafe fn load(self, block: &Block, writers: Option<&mut Writers<'_>>) {
        let bytes = self.bits.bytes(block.row);
        // SAFETY: the same conditions; lines are whole where that is checked here.
        unsafe {
            match writers {
                None => self.load_plain(block, bytes),
                Some(_) if is_lines_each(&block.values, bytes.values) => self.load_lines(block, bytes),
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
    unsafe fn load_lines(self, block: &Block, bytes: RowBytes) {
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
            // SAFETY: the same conditions.
            return unsafe { self.load_plain(block, bytes) };
        }
        let mut stage = Stage::new();
        let stage = stage.as_mut_ptr();
        let at_once = (AT_ONCE_BYTES / bytes.values).clamp(1, block.inner);
        for outer in 0..block.outer {
            for inner in (0..block.inner).step_by(at_once) {
                let count = at_once.min(block.inner - inner);
                // SAFETY: inner + count <= block.inner, so these rows are the block's; the stage has room for `at_once` rows.
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
            // SAFETY: the same conditions.
            return unsafe { self.load_long(block, bytes, writer) };
        }
        let follow = block.values.inner == together;
        let at_once = if follow { (AT_ONCE_BYTES / together).clamp(1, block.inner) } else { 1 };
        for outer in 0..block.outer {
            for inner in (0..block.inner).step_by(at_once) {
                let count = at_once.min(block.inner - inner);
                // SAFETY: inner + count <= block.inner, so these rows are the block's; the writer has room for `at_once` rows
                // with their copies.
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
            // SAFETY: the same conditions.
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

    /// Stores a block, with non-temporal stores if there are writers for what they leave over.
    ///
    /// # Safety
    /// The row functions' instruction set is supported. The rows of values are valid for reads, those of the cache and the
    /// scales of their groups for writes; what is written overlaps nothing else.
    pub(crate) unsafe fn store(self, block: &Block, writers: Option<&mut Writers<'_>>) {
        let bytes = self.bits.bytes(block.row);
        // SAFETY: the same conditions; lines are whole where that is checked here.
        unsafe {
            match (writers, self.functions.conversion) {
                (None, conversion) => self.store_plain(block, bytes, conversion),
                (Some(writers), Conversion::Quantized { store, .. }) => {
                    self.store_quantized(block, bytes, store, writers);
                }
                (Some(_), Conversion::None) if is_lines_each(&block.cache, bytes.cache) => {
                    for outer in 0..block.outer {
                        (self.functions.copy.stream)(&stored_copies(block, outer, 0, bytes));
                    }
                }
                (Some([writer, _]), Conversion::None) => self.store_joined(block, bytes, writer),
                (Some([writer, _]), Conversion::Float { store, .. }) => {
                    if is_lines_each(&block.cache, bytes.cache) && block.row.is_whole_registers() {
                        for outer in 0..block.outer {
                            (store.stream)(&rows(block, outer, 0));
                        }
                    } else {
                        self.store_converted(block, store.plain, writer);
                    }
                }
            }
        }
    }

    unsafe fn store_plain(self, block: &Block, bytes: RowBytes, conversion: Conversion) {
        for outer in 0..block.outer {
            // SAFETY: outer < block.outer, so these rows are the block's.
            unsafe {
                match conversion {
                    Conversion::None => (self.functions.copy.plain)(&stored_copies(block, outer, 0, bytes)),
                    Conversion::Float { store, .. } => (store.plain)(&rows(block, outer, 0)),
                    Conversion::Quantized { store, .. } => store(&rows(block, outer, 0)),
                }
            }
        }
    }

    /// Copies rows that share lines with their neighbors.
    unsafe fn store_joined(self, block: &Block, bytes: RowBytes, writer: &mut LineWriter<'_>) {
        let stream = self.functions.copy.stream;
        let follow = block.cache.inner == bytes.cache && bytes.cache < DIRECT_BYTES;
        let at_once = if follow { (AT_ONCE_BYTES / bytes.cache).clamp(1, block.inner) } else { 1 };
        for outer in 0..block.outer {
            for inner in (0..block.inner).step_by(at_once) {
                let rows = stored_copies(block, outer, inner, bytes);
                let count = at_once.min(rows.rows);
                // SAFETY: inner + count <= block.inner, so these rows are the block's; the writer has room for `at_once` rows.
                unsafe {
                    if !follow {
                        writer.copy(rows.from, rows.to, rows.len, rows.prefetch, stream);
                        continue;
                    }
                    let (room, together) = (writer.reserve(rows.to, count * rows.len), count * rows.len);
                    (self.functions.copy.plain)(&Copies { to: room, to_step: rows.len, rows: count, ..rows });
                    writer.commit(together, stream);
                }
            }
        }
    }

    /// Converts rows that share lines with their neighbors, in pieces.
    unsafe fn store_converted(self, block: &Block, store: RowsFunction, writer: &mut LineWriter<'_>) {
        let piece = STAGE_BYTES * 8 / self.bits.cache;
        for (outer, inner) in block.rows() {
            let rows = rows(block, outer, inner);
            for at in (0..block.row.len).step_by(piece) {
                let row = Row::new(piece.min(block.row.len - at), 1);
                let (skip, len) = (self.bits.bytes(Row::new(at, 1)), self.bits.bytes(row).cache);
                let values = rows.values.wrapping_add(skip.values);
                // SAFETY: at + row.len <= block.row.len, so the piece is of the row; it fits in the stage.
                unsafe {
                    let cache = writer.reserve(rows.cache.add(skip.cache), len);
                    store(&Rows { count: 1, row, values, cache, ..rows });
                    writer.commit(len, self.functions.copy.stream);
                }
            }
        }
    }

    /// Quantizes and streams the codes and scales.
    ///
    /// Current tokens follow one another, so they are quantized in long rows, whatever the cache makes of them: their codes
    /// pass through a stage, and their scales through another.
    unsafe fn store_quantized(
        self,
        block: &Block,
        bytes: RowBytes,
        store: RowsFunction,
        [codes_writer, scales_writer]: &mut Writers<'_>,
    ) {
        // One step of the inner loop is a row of every outer step: these follow one another in values.
        let step = self.bits.bytes(block.row.times(block.outer));
        let largest = step.cache.max(step.scale);
        let follow = (block.outer == 1 || block.values.outer == bytes.values) && block.values.inner == step.values;
        if !follow || largest > STAGE_BYTES {
            // SAFETY: the same conditions.
            return unsafe { self.store_plain(block, bytes, self.functions.conversion) };
        }
        let at_once = (QUANTIZED_BYTES / step.values.max(1)).min(STAGE_BYTES / largest.max(1)).clamp(1, block.inner);
        let (mut codes, mut scales) = (Stage::new(), Stage::new());
        let (codes, scales) = (codes.as_mut_ptr(), scales.as_mut_ptr());
        for inner in (0..block.inner).step_by(at_once) {
            let count = at_once.min(block.inner - inner);
            debug_assert!(count * largest <= STAGE_BYTES, "a stage would overflow");
            // SAFETY: inner + count <= block.inner, so these rows are the block's; the stages have room for `at_once` steps.
            unsafe {
                store(&Rows {
                    count: 1,
                    row: block.row.times(count * block.outer),
                    values: block.values.row(0, inner),
                    values_step: 0,
                    cache: codes,
                    cache_step: 0,
                    scale: scales,
                    scale_step: 0,
                    prefetch: Some(Prefetch { row: (count * step.values) as isize, scale: 0 }),
                });
                self.write_rows(block, &block.cache, inner, count, codes, bytes.cache, codes_writer);
                self.write_rows(block, &block.scale, inner, count, scales, bytes.scale, scales_writer);
            }
        }
    }

    /// Writes `count` inner steps of codes or scales from a stage, where those of all outer steps are in turns, by non-temporal
    /// stores if they are a line or more.
    #[expect(clippy::too_many_arguments, reason = "codes and scales differ in all of them")]
    unsafe fn write_rows(
        self,
        block: &Block,
        to: &Operand,
        inner: usize,
        count: usize,
        stage: *mut u8,
        len: usize,
        writer: &mut LineWriter<'_>,
    ) {
        let step = block.outer * len;
        let rows = |outer: usize| Copies {
            from: stage.wrapping_add(outer * len),
            from_step: step,
            to: to.row(outer, inner),
            to_step: to.inner,
            len,
            rows: count,
            copies: 1,
            prefetch: None,
        };
        let (together, follow) = (count * len, to.inner == len);
        // SAFETY: the stage holds `count * step` bytes, of rows that the caller vouches for; lines are whole where that is
        // checked, and `together` is no more than a stage.
        unsafe {
            if is_lines_each(to, len) {
                for outer in 0..block.outer {
                    (self.functions.copy.stream)(&rows(outer));
                }
            } else if follow && block.outer > 1 && is_lines(to.row(0, inner), together) && to.outer.is_multiple_of(LINE)
            {
                // In the order of the cache, the rows of an outer step are whole lines.
                let mut ordered = Stage::new();
                let ordered = ordered.as_mut_ptr();
                for outer in 0..block.outer {
                    (self.functions.copy.plain)(&Copies { to: ordered.add(outer * together), ..rows(outer) });
                }
                (self.functions.copy.stream)(&Copies {
                    from: ordered,
                    from_step: together,
                    to_step: to.outer,
                    len: together,
                    rows: block.outer,
                    ..rows(0)
                });
            } else if follow && together >= LINE {
                for outer in 0..block.outer {
                    let room = writer.reserve(to.row(outer, inner), together);
                    (self.functions.copy.plain)(&Copies { to: room, ..rows(outer) });
                    writer.commit(together, self.functions.copy.stream);
                }
            } else {
                for outer in 0..block.outer {
                    (self.functions.copy.plain)(&rows(outer));
                }
            }
        }
    }

    /// The function that makes values of the cache, if they are not copied.
    fn load_function(self) -> Option<Stores<RowsFunction>> {
        match self.functions.conversion {
            Conversion::None => None,
            Conversion::Float { load, .. } | Conversion::Quantized { load, .. } => Some(load),
        }
    }

    /// The longest piece of a row whose values fit in a stage, in elements: whole groups, and whole registers where there are
    /// none. None if a group does not fit.
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
            // SAFETY: the caller vouches for the rows and for the room behind each.
            unsafe { (self.functions.copy.plain)(&all) }
        }
    }
}

/// The rows of an outer step from an inner step on, to be converted or quantized.
fn rows(block: &Block, outer: usize, inner: usize) -> Rows {
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

/// The same, to be copied by a load.
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

/// The same, to be copied by a store.
fn stored_copies(block: &Block, outer: usize, inner: usize, bytes: RowBytes) -> Copies {
    Copies {
        from: block.values.row(outer, inner),
        from_step: block.values.inner,
        to: block.cache.row(outer, inner),
        to_step: block.cache.inner,
        len: bytes.cache,
        rows: block.inner - inner,
        copies: 1,
        prefetch: block.prefetch.map(|prefetch| prefetch.row),
    }
}

/// Whether bytes at this address are whole lines.
fn is_lines(data: *const u8, len: usize) -> bool {
    data.addr().is_multiple_of(LINE) && len.is_multiple_of(LINE)
}

/// Whether all rows of `len` bytes of an operand are whole lines.
fn is_lines_each(operand: &Operand, len: usize) -> bool {
    is_lines(operand.data, len) && operand.outer.is_multiple_of(LINE) && operand.inner.is_multiple_of(LINE)
}
