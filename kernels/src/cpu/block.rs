//! Moves a block row by row, whatever moves the rows.

use super::format::{Format, Mover};
use super::lines::Copies;
use super::prefetch::{LINE, prefetch_row};
use super::rows::{Block, Row};
use super::stage::{STAGE_BYTES, Stage};

/// How far ahead of the row that is stored past the caches the next ones are asked for.
const AHEAD_BYTES: usize = 4096;

/// Bytes of rows that pass through the stage together: long enough to hide where a row begins, short enough that what is asked
/// for meanwhile comes in small portions.
const AT_ONCE_BYTES: usize = 2048;

/// Bytes of values that are quantized together, if their codes go past the caches; else how far ahead of a row values are asked
/// for.
const QUANTIZED_BYTES: usize = 8 << 10;

/// Stores a block.
///
/// # Safety
/// The mover's instructions are enabled; else as for [`Move`](super::rows::Move).
#[inline(always)]
pub(super) unsafe fn store<M: Mover, F: Format>(block: &Block) {
    let strips = if block.rows == 1 { 1 } else { block.strips };
    let staged = strips * F::cache_bytes(block.row.len).max(F::scale_bytes(block.row.groups));
    if F::CODES && M::STREAMS && block.stream && staged <= STAGE_BYTES {
        // SAFETY: the caller's promise.
        return unsafe { stream_codes::<M, F>(block) };
    }
    if F::COPIES {
        // SAFETY: the caller's promise.
        return unsafe { store_copies::<M, F>(block) };
    }
    for s in 0..block.strips {
        // SAFETY: the caller's promise; this is strip s.
        unsafe {
            let values = block.values.add(s * block.values_strip).cast_const();
            let cache = block.cache.add(s * block.cache_strip);
            let scale = block.scale.wrapping_add(s * block.scale_strip);
            store_converted::<M, F>(block, values, cache, scale);
        }
    }
}

/// Stores a block of a cache that holds the values' own bytes.
#[inline(always)]
unsafe fn store_copies<M: Mover, F: Format>(block: &Block) {
    let row_bytes = F::value_bytes(block.row.len);
    let stream = M::STREAMS && block.stream;
    // Current tokens follow one another: the processor sees them coming, but further ahead is better.
    let ahead = stream.then_some(AHEAD_BYTES as isize);
    let one = Copies { ahead, ..Copies::one(block.values, block.cache, row_bytes, 1) };
    // SAFETY: the caller's promise.
    unsafe {
        if block.rows == 1 {
            let (from_row, to_row) = (block.values_strip, block.cache_strip);
            return move_rows::<M>(&Copies { rows: block.strips, from_row, to_row, ..one }, stream);
        }
        for s in 0..block.strips {
            let from = block.values.add(s * block.values_strip).cast_const();
            let to = block.cache.add(s * block.cache_strip);
            let (from_row, to_row) = (block.values_row, row_bytes);
            move_rows::<M>(&Copies { from, to, rows: block.rows, from_row, to_row, ..one }, stream);
        }
    }
}

/// Copies rows, past the caches or not.
#[inline(always)]
unsafe fn move_rows<M: Mover>(rows: &Copies, stream: bool) {
    // SAFETY: the caller's promise.
    unsafe { if stream { M::stream(rows) } else { M::copy(rows) } }
}

/// Stores all strips as codes, past the caches.
///
/// Current tokens follow one another, so they are quantized in long rows, whatever the cache makes of them: their codes pass
/// through a stage, and their scales through another. At least one row of one strip fits there, or, where strips have several
/// rows, one row of every strip.
#[inline(always)]
unsafe fn stream_codes<M: Mover, F: Format>(block: &Block) {
    let Row { len, groups, .. } = block.row;
    let (value_bytes, cache_bytes, scale_bytes) = (F::value_bytes(len), F::cache_bytes(len), F::scale_bytes(groups));
    let at_once = (QUANTIZED_BYTES / value_bytes.max(1)).min(STAGE_BYTES / cache_bytes.max(scale_bytes).max(1));
    // Either strips are tokens, or tokens are the rows of all strips.
    let strips_at_once = if block.rows == 1 { at_once.max(1) } else { block.strips };
    let rows_at_once = (at_once / strips_at_once).max(1);
    let (mut codes, mut scales) = (Stage::new(), Stage::new());
    let (codes, scales) = (codes.as_mut_ptr(), scales.as_mut_ptr());
    for s in (0..block.strips).step_by(strips_at_once) {
        let strips = strips_at_once.min(block.strips - s);
        for r in (0..block.rows).step_by(rows_at_once) {
            let rows = rows_at_once.min(block.rows - r);
            debug_assert!(rows * strips * cache_bytes.max(scale_bytes) <= STAGE_BYTES, "a stage would overflow");
            // SAFETY: the caller's promise; these rows lie in the block, and the stages have room for theirs.
            unsafe {
                let values = block.values.add((r * block.strips + s) * value_bytes).cast_const();
                let cache = block.cache.add(s * block.cache_strip + r * cache_bytes);
                let scale = block.scale.add(s * block.scale_strip + r * scale_bytes);
                // Less than a line goes to the caches, which do better if they are asked for it before.
                if !scale_bytes.is_multiple_of(LINE) {
                    for strip in 0..strips {
                        prefetch_row(scale.add(strip * block.scale_strip), rows * scale_bytes);
                    }
                }
                let ahead = values.wrapping_add(rows * strips * value_bytes);
                F::store::<M, false>(values, codes, scales, block.row.times(rows * strips), ahead);
                for row in 0..rows {
                    let (from, to) = (codes.add(row * strips * cache_bytes), cache.add(row * cache_bytes));
                    let all = Copies { rows: strips, ..Copies::one(from, to, cache_bytes, 1) };
                    M::stream(&Copies { from_row: cache_bytes, to_row: block.cache_strip, ..all });
                    let (from, to) = (scales.add(row * strips * scale_bytes), scale.add(row * scale_bytes));
                    let all = Copies { rows: strips, ..Copies::one(from, to, scale_bytes, 1) };
                    M::stream(&Copies { from_row: scale_bytes, to_row: block.scale_strip, ..all });
                }
            }
        }
    }
}

/// Stores a strip of any other cache.
#[inline(always)]
unsafe fn store_converted<M: Mover, F: Format>(block: &Block, values: *const u8, cache: *mut u8, scale: *mut u8) {
    let row_bytes = F::value_bytes(block.row.len);
    let at_once = (STAGE_BYTES / row_bytes.max(1)).clamp(1, block.rows);
    let stream = M::STREAMS && !F::CODES && block.stream;
    let mut stage = Stage::new();
    let stage = stage.as_mut_ptr();
    for first in (0..block.rows).step_by(at_once) {
        let rows = at_once.min(block.rows - first);
        let row = block.row.times(rows);
        // SAFETY: the caller's promise; these rows lie in the strip, and the stage has room for them if they are several.
        unsafe {
            let cache = cache.add(first * F::cache_bytes(block.row.len));
            let scale = scale.wrapping_add(first * F::scale_bytes(block.row.groups));
            let mut values = values.add(first * block.values_row);
            let mut ahead = values.wrapping_add(QUANTIZED_BYTES);
            if rows > 1 {
                M::copy(&Copies {
                    from_row: block.values_row,
                    to_row: row_bytes,
                    rows,
                    // The same row of the tokens after this block's.
                    ahead: Some((block.rows * block.values_row) as isize),
                    ..Copies::one(values, stage, row_bytes, 1)
                });
                (values, ahead) = (stage, stage);
            }
            if stream && row.is_even() && cache.align_offset(LINE) == 0 {
                F::store::<M, true>(values, cache, scale, row, ahead);
            } else {
                F::store::<M, false>(values, cache, scale, row, ahead);
            }
        }
    }
}

/// Loads a block.
///
/// # Safety
/// The mover's instructions are enabled; else as for [`Move`](super::rows::Move).
#[inline(always)]
pub(super) unsafe fn load<M: Mover, F: Format>(block: &Block) {
    if F::COPIES {
        // SAFETY: the caller's promise.
        return unsafe { load_copies::<M, F>(block) };
    }
    for s in 0..block.strips {
        let (in_cache, in_scale) = (s * block.cache_strip, s * block.scale_strip);
        // SAFETY: the caller's promise; this is strip s.
        unsafe {
            let cache = block.cache.add(in_cache).cast_const();
            let scale = block.scale.wrapping_add(in_scale).cast_const();
            let ahead = block.ahead[usize::from(s + 1 < block.strips)]
                .map(|ahead| (cache.wrapping_offset(ahead.0), scale.wrapping_offset(ahead.1)));
            load_converted::<M, F>(block, cache, scale, block.values.add(s * block.values_strip), ahead);
        }
    }
}

/// Loads a block of a cache that holds the values' own bytes.
#[inline(always)]
unsafe fn load_copies<M: Mover, F: Format>(block: &Block) {
    let row_bytes = F::value_bytes(block.row.len);
    let stream = M::STREAMS && block.stream;
    let [last, others] = block.ahead.map(|ahead| ahead.map(|(cache, _)| cache));
    let one = Copies { ahead: others, ..Copies::one(block.cache, block.values, row_bytes, block.copies) };
    // SAFETY: the caller's promise.
    unsafe {
        // Unless it is streamed, what follows the last strip is in the caches: to ask for something else does no harm.
        if block.rows == 1 && (last == others || !stream) {
            let (from_row, to_row) = (block.cache_strip, block.values_strip);
            return move_rows::<M>(&Copies { rows: block.strips, from_row, to_row, ..one }, stream);
        }
        for s in 0..block.strips {
            let from = block.cache.add(s * block.cache_strip).cast_const();
            let to = block.values.add(s * block.values_strip);
            let ahead = if s + 1 < block.strips { others } else { last };
            let (from_row, to_row) = (row_bytes, block.values_row);
            move_rows::<M>(&Copies { from, to, rows: block.rows, from_row, to_row, ahead, ..one }, stream);
        }
    }
}

/// Loads a strip of any other cache.
#[inline(always)]
unsafe fn load_converted<M: Mover, F: Format>(
    block: &Block,
    cache: *const u8,
    scale: *const u8,
    values: *mut u8,
    ahead: Option<(*const u8, *const u8)>,
) {
    let row_bytes = F::value_bytes(block.row.len);
    let ask = |Row { len, groups, .. }: Row, in_cache: usize, in_scale: usize| {
        if let Some((cache, scale)) = ahead {
            prefetch_row(cache.wrapping_add(in_cache), F::cache_bytes(len));
            prefetch_row(scale.wrapping_add(in_scale), F::scale_bytes(groups));
        }
    };
    let stream = M::STREAMS && block.stream;
    // SAFETY: the caller's promise; rows r and after lie in the strip, and a stage has room for those that go through it.
    unsafe {
        if block.rows == 1 && block.copies == 1 && stream && block.row.is_even() && values.align_offset(LINE) == 0 {
            ask(block.row, 0, 0);
            return F::load::<M, true>(cache, scale, values, block.row);
        }
        if row_bytes > STAGE_BYTES || (block.rows == 1 && block.copies == 1 && !stream) {
            for r in 0..block.rows {
                let in_cache = r * F::cache_bytes(block.row.len);
                let in_scale = r * F::scale_bytes(block.row.groups);
                let values = values.add(r * block.values_row);
                ask(block.row, in_cache, in_scale);
                F::load::<M, false>(cache.add(in_cache), scale.wrapping_add(in_scale), values, block.row);
                if block.copies > 1 {
                    M::copy(&Copies::one(values, values.add(row_bytes), row_bytes, block.copies - 1));
                }
            }
            return;
        }
        let mut stage = Stage::new();
        let stage = stage.as_mut_ptr();
        let at_once = if stream { AT_ONCE_BYTES } else { STAGE_BYTES } / row_bytes.max(1);
        let at_once = at_once.clamp(1, block.rows);
        for first in (0..block.rows).step_by(at_once) {
            let rows = at_once.min(block.rows - first);
            let in_cache = first * F::cache_bytes(block.row.len);
            let in_scale = first * F::scale_bytes(block.row.groups);
            ask(block.row.times(rows), in_cache, in_scale);
            F::load::<M, false>(cache.add(in_cache), scale.wrapping_add(in_scale), stage, block.row.times(rows));
            let to = values.add(first * block.values_row);
            let rows = Copies {
                from_row: row_bytes,
                to_row: block.values_row,
                rows,
                ..Copies::one(stage, to, row_bytes, block.copies)
            };
            move_rows::<M>(&rows, stream);
        }
    }
}
