//! Stores of a block: values to the cache.
//!
//! ```text
//! plain stores:                        each row where it goes; quantized blocks of several heads as the last ones here
//! streaming, as they are or converted: whole lines where they go, others through the stream writer, which joins lines
//! streaming, quantized:                neighboring tokens as one long row, whose codes and scales pass through a
//!                                      staging buffer each and go from there where the layout has them
//! ```

use kvcache_simd::LINE;

use super::block::{Block, Operand, PerOperand, Prefetch, Row, Rows, StridedCopy};
use super::block_kernel::{AT_ONCE_BYTES, BlockKernel, DIRECT_BYTES, Writers, is_lines, is_lines_each};
use super::functions::{CacheFormat, Conversion, RowsFunction};
use super::generic::stream_writer::{STAGE_BYTES, StagingBuffer, StreamWriter};

/// Bytes of values that are quantized together before their codes are streamed.
const QUANTIZED_BYTES: usize = 16 << 10;

impl BlockKernel<'_> {
    /// Stores a block, with non-temporal stores if there are writers for the lines that rows share.
    ///
    /// # Safety
    /// The row functions' instruction set is supported. The rows of values are valid for reads, the rows of the cache
    /// and the scales of their groups for writes; what is written overlaps nothing else.
    pub(crate) unsafe fn store(self, block: &Block, writers: Option<&mut Writers<'_>>) {
        let bytes = self.bytes(block.rows.row);
        let whole_lines = || is_lines_each(&block.rows.cache, block.outer_step.cache, bytes.cache);
        let Some(writers) = writers else {
            // SAFETY: the rows are the block's, whose conditions are the caller's.
            return unsafe {
                match self.functions.conversion {
                    Some(Conversion { format: CacheFormat::Quantized, store, .. }) if block.outer > 1 => {
                        self.store_quantized(block, bytes, store.plain, None);
                    }
                    _ => self.store_plain(block, bytes),
                }
            };
        };
        // SAFETY: see `# Safety`; lines are whole where that is checked here.
        unsafe {
            match self.functions.conversion {
                None if whole_lines() => {
                    for outer in 0..block.outer {
                        (self.functions.copy.stream)(&stored_copies(&block.rows_from(outer, 0), bytes));
                    }
                }
                None => self.store_joined(block, bytes, &mut writers[0]),
                Some(Conversion { format: CacheFormat::Quantized, store, .. }) => {
                    self.store_quantized(block, bytes, store.plain, Some(writers));
                }
                Some(Conversion { format: CacheFormat::Float, store, .. })
                    if whole_lines() && block.rows.row.is_whole_registers() =>
                {
                    for outer in 0..block.outer {
                        (store.stream)(&block.rows_from(outer, 0));
                    }
                }
                Some(Conversion { store, .. }) => self.store_converted(block, store.plain, &mut writers[0]),
            }
        }
    }

    unsafe fn store_plain(self, block: &Block, bytes: PerOperand) {
        for outer in 0..block.outer {
            let rows = block.rows_from(outer, 0);
            // SAFETY: outer < block.outer, so these rows are the block's.
            unsafe {
                match self.functions.conversion {
                    None => (self.functions.copy.plain)(&stored_copies(&rows, bytes)),
                    Some(conversion) => self.store_rows(conversion.store.plain, &rows),
                }
            }
        }
    }

    /// Copies rows that share lines with their neighbors.
    unsafe fn store_joined(self, block: &Block, bytes: PerOperand, writer: &mut StreamWriter<'_>) {
        let stream = self.functions.copy.stream;
        let contiguous = block.rows.cache.step == bytes.cache && bytes.cache < DIRECT_BYTES;
        let at_once = if contiguous { (AT_ONCE_BYTES / bytes.cache).clamp(1, block.rows.count) } else { 1 };
        for outer in 0..block.outer {
            for inner in (0..block.rows.count).step_by(at_once) {
                let copies = stored_copies(&block.rows_from(outer, inner), bytes);
                let count = at_once.min(copies.rows);
                // SAFETY: inner + count <= block.rows.count, so these rows are the block's; the writer has room for
                // `at_once` rows.
                unsafe {
                    if !contiguous {
                        writer.copy(copies.from, copies.to, copies.len, copies.prefetch, stream);
                        continue;
                    }
                    let together = count * copies.len;
                    let to = writer.reserve(copies.to, together);
                    (self.functions.copy.plain)(&StridedCopy { to, to_step: copies.len, rows: count, ..copies });
                    writer.commit(together, stream);
                }
            }
        }
    }

    /// Converts rows that share lines with their neighbors, in pieces.
    unsafe fn store_converted(self, block: &Block, store: RowsFunction, writer: &mut StreamWriter<'_>) {
        let piece = STAGE_BYTES * 8 / self.bits.cache;
        for (outer, inner) in block.each_row() {
            let rows = block.rows_from(outer, inner);
            for at in (0..rows.row.len).step_by(piece) {
                let row = Row::new(piece.min(rows.row.len - at), 1);
                let (skip, len) = (self.bytes(Row::new(at, 1)), self.bytes(row).cache);
                let values = rows.values.skip(skip.values);
                // SAFETY: at + row.len <= rows.row.len, so the piece is of the row; it fits in the staging buffer.
                unsafe {
                    let cache = Operand { data: writer.reserve(rows.cache.data.add(skip.cache), len), ..rows.cache };
                    self.store_rows(store, &Rows { count: 1, row, values, cache, ..rows });
                    writer.commit(len, self.functions.copy.stream);
                }
            }
        }
    }

    /// Quantizes through staging buffers, and streams the codes and scales if there are writers.
    ///
    /// Current tokens follow one another, so they are quantized in long rows, whatever the cache makes of them: their
    /// codes pass through a staging buffer, and their scales through another.
    unsafe fn store_quantized(
        self,
        block: &Block,
        bytes: PerOperand,
        store: RowsFunction,
        writers: Option<&mut Writers<'_>>,
    ) {
        let &Block { outer, outer_step, rows, .. } = block;
        // One step of the inner loop is a row of every outer step: these follow one another in values.
        let step = self.bytes(rows.row.times(outer));
        let largest = step.cache.max(step.scale);
        let contiguous = (outer == 1 || outer_step.values == bytes.values) && rows.values.step == step.values;
        if !contiguous || largest > STAGE_BYTES {
            // SAFETY: the rows are the block's, whose conditions are the caller's.
            return unsafe { self.store_plain(block, bytes) };
        }
        let at_once = (QUANTIZED_BYTES / step.values.max(1)).min(STAGE_BYTES / largest.max(1)).clamp(1, rows.count);
        let [mut codes_writer, mut scales_writer] = match writers {
            Some([codes, scales]) => [Some(codes), Some(scales)],
            None => [None, None],
        };
        let (mut codes, mut scales) = (StagingBuffer::new(), StagingBuffer::new());
        let [codes, scales] = [&mut codes, &mut scales].map(|stage| Operand { data: stage.as_mut_ptr(), step: 0 });
        for inner in (0..rows.count).step_by(at_once) {
            let count = at_once.min(rows.count - inner);
            debug_assert!(count * largest <= STAGE_BYTES, "a staging buffer would overflow");
            let Rows { values, cache, scale, prefetch, .. } = block.rows_from(0, inner);
            let staged =
                |to, outer_step, stage: Operand, len| Staged { to, outer: (outer, outer_step), count, stage, len };
            // SAFETY: inner + count <= rows.count, so these rows are the block's; the staging buffers have room for
            // `at_once` steps.
            unsafe {
                let prefetch = prefetch.map(|_| Prefetch { row: (count * step.values) as isize, scale: 0 });
                let row = rows.row.times(count * outer);
                self.store_rows(store, &Rows { count: 1, row, values, cache: codes, scale: scales, prefetch });
                self.write_staged(&staged(cache, outer_step.cache, codes, bytes.cache), codes_writer.as_deref_mut());
                self.write_staged(&staged(scale, outer_step.scale, scales, bytes.scale), scales_writer.as_deref_mut());
            }
        }
    }

    /// Writes the codes or scales of a staging buffer where they go, by non-temporal stores if there is a writer and
    /// they are long enough.
    ///
    /// # Safety
    /// The staging buffer holds them, and their places are valid for writes.
    unsafe fn write_staged(self, staged: &Staged, writer: Option<&mut StreamWriter<'_>>) {
        let &Staged { to, outer: (outers, outer_step), count, len, .. } = staged;
        let stream = self.functions.copy.stream;
        let rows = |outer: usize| staged.rows(outer);
        let (together, contiguous) = (count * len, to.step == len);
        // SAFETY: this function's conditions.
        let plain = || (0..outers).for_each(|outer| unsafe { (self.functions.copy.plain)(&rows(outer)) });
        let Some(writer) = writer else { return plain() };
        // SAFETY: the staging buffer holds `count` rows of every outer step: this function's condition. Lines are whole
        // where that is checked, and `together` is no more than a staging buffer.
        unsafe {
            if is_lines_each(&to, outer_step, len) {
                for outer in 0..outers {
                    stream(&rows(outer));
                }
            } else if contiguous && outers > 1 && is_lines(to.data, together) && outer_step.is_multiple_of(LINE) {
                // In the order of the cache, the rows of an outer step are whole lines.
                let mut ordered = StagingBuffer::new();
                let ordered = ordered.as_mut_ptr();
                for outer in 0..outers {
                    (self.functions.copy.plain)(&StridedCopy { to: ordered.add(outer * together), ..rows(outer) });
                }
                let from = Operand { data: ordered, step: together };
                stream(&StridedCopy::rows(from, Operand { step: outer_step, ..to }, together, outers));
            } else if contiguous && together >= LINE {
                for outer in 0..outers {
                    let rows = rows(outer);
                    let to = writer.reserve(rows.to, together);
                    (self.functions.copy.plain)(&StridedCopy { to, ..rows });
                    writer.commit(together, stream);
                }
            } else if len >= DIRECT_BYTES {
                for outer in 0..outers {
                    let rows = rows(outer);
                    for r in 0..count {
                        let (from, to) = (rows.from.add(r * rows.from_step), rows.to.add(r * rows.to_step));
                        writer.copy(from, to, len, None, stream);
                    }
                }
            } else {
                plain();
            }
        }
    }
}

/// Codes or scales in a staging buffer, in the order of the current tokens: the rows of all outer steps are
/// interleaved.
struct Staged {
    /// Where the rows of the first outer step go.
    to: Operand,
    /// The outer steps, and the bytes from the rows of one to the rows of the next.
    outer: (usize, usize),
    /// Rows of each outer step.
    count: usize,
    stage: Operand,
    /// Bytes of a row.
    len: usize,
}

impl Staged {
    /// The rows of an outer step, to be copied.
    fn rows(&self, outer: usize) -> StridedCopy {
        let &Self { to, outer: (outers, outer_step), count, stage, len } = self;
        let from = Operand { step: outers * len, ..stage.skip(outer * len) };
        StridedCopy::rows(from, to.skip(outer * outer_step), len, count)
    }
}

/// Rows of a block, to be copied.
fn stored_copies(rows: &Rows, bytes: PerOperand) -> StridedCopy {
    let prefetch = rows.prefetch.map(|prefetch| prefetch.row);
    StridedCopy { prefetch, ..StridedCopy::rows(rows.values, rows.cache, bytes.cache, rows.count) }
}
