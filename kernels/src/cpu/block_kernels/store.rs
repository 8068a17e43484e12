//! Stores of a block: values to the cache.

use kvcache_simd::LINE;

use super::super::block::{Block, Copies, Operand, Prefetch, Row, Rows};
use super::super::functions::{Conversion, RowsFunction};
use super::super::generic::stage::{LineWriter, STAGE_BYTES, Stage};
use super::block_kernel::{AT_ONCE_BYTES, BlockKernel, DIRECT_BYTES, RowBytes, Writers, is_lines, is_lines_each, rows};

/// Bytes of values that are quantized together before their codes are streamed.
const QUANTIZED_BYTES: usize = 16 << 10;

impl BlockKernel<'_> {
    /// Stores a block, with non-temporal stores if there are writers for what they leave over.
    ///
    /// # Safety
    /// The row functions' instruction set is supported. The rows of values are valid for reads, those of the cache and
    /// the scales of their groups for writes; what is written overlaps nothing else.
    pub(crate) unsafe fn store(self, block: &Block, writers: Option<&mut Writers<'_>>) {
        let bytes = self.bits.bytes(block.row);
        // SAFETY: see `# Safety`; lines are whole where that is checked here.
        unsafe {
            match (writers, self.functions.conversion) {
                (None, conversion) => self.store_plain(block, bytes, conversion),
                (Some(writers), Conversion::Quantized { store, .. }) => {
                    self.store_quantized(block, bytes, store, writers);
                }
                (Some([writer, _]), Conversion::StaticScales { store, .. }) => {
                    self.store_converted(block, store, writer);
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
                    Conversion::Quantized { store, .. } | Conversion::StaticScales { store, .. } => {
                        store(&rows(block, outer, 0));
                    }
                }
            }
        }
    }

    /// Copies rows that share lines with their neighbors.
    unsafe fn store_joined(self, block: &Block, bytes: RowBytes, writer: &mut LineWriter<'_>) {
        let stream = self.functions.copy.stream;
        let contiguous = block.cache.inner == bytes.cache && bytes.cache < DIRECT_BYTES;
        let at_once = if contiguous { (AT_ONCE_BYTES / bytes.cache).clamp(1, block.inner) } else { 1 };
        for outer in 0..block.outer {
            for inner in (0..block.inner).step_by(at_once) {
                let rows = stored_copies(block, outer, inner, bytes);
                let count = at_once.min(rows.rows);
                // SAFETY: inner + count <= block.inner, so these rows are the block's; the writer has room for
                // `at_once` rows.
                unsafe {
                    if !contiguous {
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
    /// Current tokens follow one another, so they are quantized in long rows, whatever the cache makes of them: their
    /// codes pass through a stage, and their scales through another.
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
        let contiguous = (block.outer == 1 || block.values.outer == bytes.values) && block.values.inner == step.values;
        if !contiguous || largest > STAGE_BYTES {
            // SAFETY: the rows are the block's, whose conditions are the caller's.
            return unsafe { self.store_plain(block, bytes, self.functions.conversion) };
        }
        let at_once = (QUANTIZED_BYTES / step.values.max(1)).min(STAGE_BYTES / largest.max(1)).clamp(1, block.inner);
        let (mut codes, mut scales) = (Stage::new(), Stage::new());
        let (codes, scales) = (codes.as_mut_ptr(), scales.as_mut_ptr());
        for inner in (0..block.inner).step_by(at_once) {
            let count = at_once.min(block.inner - inner);
            debug_assert!(count * largest <= STAGE_BYTES, "a stage would overflow");
            // SAFETY: inner + count <= block.inner, so these rows are the block's; the stages have room for `at_once`
            // steps.
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

    /// Writes `count` inner steps of codes or scales from a stage, where those of all outer steps are interleaved, by
    /// non-temporal stores if they are long enough.
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
        let (together, contiguous) = (count * len, to.inner == len);
        // SAFETY: the stage holds `count * step` bytes, of valid rows: this function's condition. Lines are
        // whole where that is checked, and `together` is no more than a stage.
        unsafe {
            if is_lines_each(to, len) {
                for outer in 0..block.outer {
                    (self.functions.copy.stream)(&rows(outer));
                }
            } else if contiguous
                && block.outer > 1
                && is_lines(to.row(0, inner), together)
                && to.outer.is_multiple_of(LINE)
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
            } else if contiguous && together >= LINE {
                for outer in 0..block.outer {
                    let room = writer.reserve(to.row(outer, inner), together);
                    (self.functions.copy.plain)(&Copies { to: room, ..rows(outer) });
                    writer.commit(together, self.functions.copy.stream);
                }
            } else if len >= DIRECT_BYTES {
                for (outer, r) in (0..block.outer).flat_map(|outer| (0..count).map(move |r| (outer, r))) {
                    let from = rows(outer).from.add(r * step);
                    writer.copy(from, to.row(outer, inner + r), len, None, self.functions.copy.stream);
                }
            } else {
                for outer in 0..block.outer {
                    (self.functions.copy.plain)(&rows(outer));
                }
            }
        }
    }
}

/// The rows of an outer step from an inner step on, to be copied.
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
