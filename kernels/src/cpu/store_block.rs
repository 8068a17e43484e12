//! Stores of a block: values to the cache.
//!
//! ```text
//! plain stores:                        each row where it goes; quantized blocks of several heads as the last ones here
//! streaming, as they are or converted: whole lines where they go, others through the stream writer, which joins lines
//! streaming, quantized:                neighboring tokens as one long row, whose codes and scales pass through a
//!                                      staging buffer each and go from there where the layout has them
//! ```

use kvcache_simd::LINE;

use super::block::{Block, Operand, PerOperand, Prefetch, Row, Rows, RowsFunction, StridedCopy};
use super::call_plan::CallPlan;
use super::dispatch::{CacheFormat, Conversion};
use super::generic::stream_writer::{AT_ONCE_BYTES, DIRECT_BYTES, STAGE_BYTES, StagingBuffer, StreamWriter, Writers};

/// Bytes of values that are quantized together before their codes are streamed.
const QUANTIZED_BYTES: usize = 16 << 10;

impl CallPlan<'_> {
    /// Stores a block, with non-temporal stores if there are writers for the lines that rows share.
    ///
    /// # Safety
    /// The row functions' instruction set is supported. The rows of values are valid for reads, the rows of the cache
    /// and the scales of their groups for writes; what is written overlaps nothing else.
    pub(super) unsafe fn store_block(&self, block: &Block, writers: Option<&mut Writers<'_>>) {
        let bytes = self.bytes(block.rows.row);
        let whole_lines = || block.rows.cache.is_lines_each(block.outer_step.cache, bytes.cache);
        // SAFETY: see `# Safety`; lines are whole where that is checked here.
        unsafe {
            match (self.functions.conversion, writers) {
                (None, Some([writer, _])) => self.stream_copies(block, bytes.cache, writer),
                (Some(Conversion { format: CacheFormat::Quantized, store, .. }), writers)
                    if writers.is_some() || block.outer > 1 =>
                {
                    self.store_quantized(block, bytes, store.plain, writers);
                }
                (conversion, None) => self.store_each(block, bytes.cache, conversion.map(|each| each.store.plain)),
                (Some(Conversion { format: CacheFormat::Float, store, .. }), _)
                    if whole_lines() && block.rows.row.is_whole_registers() =>
                {
                    self.store_each(block, bytes.cache, Some(store.stream));
                }
                (Some(Conversion { store, .. }), Some([writer, _])) => self.store_joined(block, store.plain, writer),
            }
        }
    }

    /// Stores each row where it goes: by a function, or its `len` bytes as they are by plain stores.
    unsafe fn store_each(&self, block: &Block, len: usize, store: Option<RowsFunction>) {
        for outer in 0..block.outer {
            let rows = block.rows_from(outer, 0);
            // SAFETY: outer < block.outer, so these rows are the block's.
            unsafe {
                match store {
                    None => (self.functions.copy.plain)(&stored_copies(&rows, len)),
                    Some(store) => self.store_rows(store, &rows),
                }
            }
        }
    }

    /// Converts rows that share lines with their neighbors, in pieces.
    unsafe fn store_joined(&self, block: &Block, store: RowsFunction, writer: &mut StreamWriter<'_>) {
        for (outer, inner) in block.each_row() {
            for piece in self.pieces(block.rows_from(outer, inner), STAGE_BYTES * 8 / self.bits.cache) {
                let len = self.bytes(piece.row).cache;
                // Floats have no groups, and codes with a static scale are stored without them.
                let row = Row { order: piece.row.order, ..Row::new(piece.row.len, 1) };
                // SAFETY: the piece is of one of the block's rows; its bytes fit in the staging buffer.
                unsafe {
                    let cache = Operand { data: writer.reserve(piece.cache.data, len), ..piece.cache };
                    self.store_rows(store, &Rows { row, cache, ..piece });
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
        &self,
        block: &Block,
        bytes: PerOperand,
        store: RowsFunction,
        mut writers: Option<&mut Writers<'_>>,
    ) {
        let &Block { outer, outer_step, rows, .. } = block;
        // One step of the inner loop is a row of every outer step: these follow one another in values.
        let step = self.bytes(rows.row.times(outer));
        let largest = step.cache.max(step.scale);
        let contiguous = (outer == 1 || outer_step.values == bytes.values) && rows.values.step == step.values;
        if !contiguous || largest > STAGE_BYTES {
            // SAFETY: the rows are the block's, whose conditions are the caller's.
            return unsafe { self.store_each(block, bytes.cache, Some(store)) };
        }
        let at_once = (QUANTIZED_BYTES / step.values.max(1)).min(STAGE_BYTES / largest.max(1)).clamp(1, rows.count);
        let (mut codes, mut scales) = (StagingBuffer::new(), StagingBuffer::new());
        let [codes, scales] = [&mut codes, &mut scales].map(|stage| Operand { data: stage.as_mut_ptr(), step: 0 });
        for inner in (0..rows.count).step_by(at_once) {
            let count = at_once.min(rows.count - inner);
            debug_assert!(count * largest <= STAGE_BYTES, "a staging buffer would overflow");
            let Rows { values, cache, scale, prefetch, .. } = block.rows_from(0, inner);
            let prefetch = prefetch.map(|_| Prefetch { row: (count * step.values) as isize, scale: 0 });
            let row = rows.row.times(count * outer);
            // SAFETY: inner + count <= rows.count, so these rows are the block's; the staging buffers have room for
            // `at_once` steps.
            unsafe { self.store_rows(store, &Rows { count: 1, row, values, cache: codes, scale: scales, prefetch }) }
            // In a staging buffer the rows of all outer steps are interleaved.
            let parts = [(codes, cache, outer_step.cache, bytes.cache), (scales, scale, outer_step.scale, bytes.scale)];
            for (i, (staged, to, to_step, len)) in parts.into_iter().enumerate() {
                let values = Operand { step: outer * len, ..staged };
                let rows = Rows { count, row: rows.row, values, cache: to, scale: to, prefetch: None };
                let outer_step = PerOperand { values: len, cache: to_step, scale: 0 };
                let copies = Block { outer, outer_step, rows, copies: 1 };
                // SAFETY: the staging buffer holds these rows, whose places are the block's.
                unsafe {
                    match writers.as_deref_mut() {
                        Some(writers) => self.stream_copies(&copies, len, &mut writers[i]),
                        None => self.store_each(&copies, len, None),
                    }
                }
            }
        }
    }

    /// Copies rows of `len` bytes of values, or of codes or scales in a staging buffer, to the cache by non-temporal
    /// stores, where they are long enough.
    ///
    /// # Safety
    /// The rows of values are valid for reads, their places in the cache for writes; from a staging buffer all rows
    /// fit in another one.
    unsafe fn stream_copies(&self, block: &Block, len: usize, writer: &mut StreamWriter<'_>) {
        let (stream, plain) = (self.functions.copy.stream, self.functions.copy.plain);
        let &Block {
            outer, outer_step: PerOperand { cache: outer_step, .. }, rows: Rows { count, cache: to, .. }, ..
        } = block;
        let is_staged = self.functions.conversion.is_some();
        let (together, contiguous) = (count * len, to.step == len);
        let copies = |outer: usize, inner: usize| stored_copies(&block.rows_from(outer, inner), len);
        // SAFETY: outer < block.outer and inner < rows.count; lines are whole where that is checked, and what passes
        // through a staging buffer fits in it.
        unsafe {
            if to.is_lines_each(outer_step, len) {
                return (0..outer).for_each(|outer| stream(&copies(outer, 0)));
            }
            let by_outer_step = Operand { step: outer_step, ..to };
            if is_staged && contiguous && outer > 1 && by_outer_step.is_lines_each(0, together) {
                // In the order of the cache, the rows of an outer step are whole lines.
                let mut ordered = StagingBuffer::new();
                let ordered = Operand { data: ordered.as_mut_ptr(), step: together };
                for outer in 0..outer {
                    plain(&StridedCopy { to: ordered.row(outer), ..copies(outer, 0) });
                }
                return stream(&StridedCopy::rows(ordered, by_outer_step, together, outer));
            }
            let joined = contiguous && if is_staged { together >= LINE } else { len < DIRECT_BYTES };
            if is_staged && !joined && len < DIRECT_BYTES {
                return self.store_each(block, len, None);
            }
            let at_once = match joined {
                true if is_staged => count,
                true => (AT_ONCE_BYTES / len).clamp(1, count),
                false => 1,
            };
            for outer in 0..outer {
                for inner in (0..count).step_by(at_once) {
                    let rows = at_once.min(count - inner);
                    let copies = StridedCopy { rows, ..copies(outer, inner) };
                    if !joined {
                        writer.copy(copies.from, copies.to, len, copies.prefetch, stream);
                        continue;
                    }
                    let to = writer.reserve(copies.to, rows * len);
                    plain(&StridedCopy { to, to_step: len, ..copies });
                    writer.commit(rows * len, stream);
                }
            }
        }
    }
}

/// Rows of a block, to be copied.
fn stored_copies(rows: &Rows, len: usize) -> StridedCopy {
    let prefetch = rows.prefetch.map(|prefetch| prefetch.row);
    StridedCopy { prefetch, ..StridedCopy::rows(rows.values, rows.cache, len, rows.count) }
}
