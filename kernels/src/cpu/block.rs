//! Moves a block row by row, whatever moves the rows.

use super::format::{Format, Mover};
use super::prefetch::{LINE, prefetch_row};
use super::rows::{Block, Row};
use super::stage::{STAGE_BYTES, Stage};

/// How far ahead of the row that is stored past the caches the next ones are asked for.
const AHEAD_BYTES: usize = 4096;

/// Bytes of rows that pass through the stage together: long enough to hide where a row begins, short enough that what is asked
/// for meanwhile comes in small portions.
const AT_ONCE_BYTES: usize = 2048;

/// Stores a block.
///
/// # Safety
/// The mover's instructions are enabled; else as for [`Move`](super::rows::Move).
#[inline(always)]
pub(super) unsafe fn store<M: Mover, F: Format>(block: &Block) {
    for s in 0..block.strips {
        // SAFETY: the caller's promise; this is strip s.
        unsafe {
            let values = block.values.add(s * block.values_strip).cast_const();
            let cache = block.cache.add(s * block.cache_strip);
            let scale = block.scale.wrapping_add(s * block.scale_strip);
            if F::COPIES {
                store_copies::<M, F>(block, values, cache);
            } else {
                store_converted::<M, F>(block, values, cache, scale);
            }
        }
    }
}

/// Stores a strip of a cache that holds the values' own bytes.
#[inline(always)]
unsafe fn store_copies<M: Mover, F: Format>(block: &Block, values: *const u8, cache: *mut u8) {
    let row_bytes = F::value_bytes(block.row.len);
    for r in 0..block.rows {
        // SAFETY: the caller's promise; this is row r.
        unsafe {
            let (values, cache) = (values.add(r * block.values_row), cache.add(r * row_bytes));
            if M::STREAMS && block.stream {
                // Current tokens follow one another: the processor sees them coming, but further ahead is better.
                M::stream(values, cache, row_bytes, 1, Some(values.wrapping_add(AHEAD_BYTES)));
            } else {
                M::copy(values, cache, row_bytes, 1, None);
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
            if rows > 1 {
                for r in 0..rows {
                    let from = values.add(r * block.values_row);
                    // The same row of the tokens after this block's.
                    let ahead = from.wrapping_add(block.rows * block.values_row);
                    M::copy(from, stage.add(r * row_bytes), row_bytes, 1, Some(ahead));
                }
                values = stage;
            }
            if stream && row.is_even() && cache.align_offset(LINE) == 0 {
                F::store::<M, true>(values, cache, scale, row);
            } else {
                F::store::<M, false>(values, cache, scale, row);
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
    for s in 0..block.strips {
        let (in_cache, in_scale) = (s * block.cache_strip, s * block.scale_strip);
        // SAFETY: the caller's promise; this is strip s.
        unsafe {
            let cache = block.cache.add(in_cache).cast_const();
            let scale = block.scale.wrapping_add(in_scale).cast_const();
            let ahead = block.ahead[usize::from(s + 1 < block.strips)]
                .map(|ahead| (cache.wrapping_offset(ahead.0), scale.wrapping_offset(ahead.1)));
            let values = block.values.add(s * block.values_strip);
            if F::COPIES {
                load_copies::<M, F>(block, cache, values, ahead.map(|(cache, _)| cache));
            } else {
                load_converted::<M, F>(block, cache, scale, values, ahead);
            }
        }
    }
}

/// Loads a strip of a cache that holds the values' own bytes.
#[inline(always)]
unsafe fn load_copies<M: Mover, F: Format>(block: &Block, cache: *const u8, values: *mut u8, ahead: Option<*const u8>) {
    let row_bytes = F::value_bytes(block.row.len);
    for r in 0..block.rows {
        // SAFETY: the caller's promise; this is row r.
        unsafe {
            let (cache, values) = (cache.add(r * row_bytes), values.add(r * block.values_row));
            let ahead = ahead.map(|ahead| ahead.wrapping_add(r * row_bytes));
            if M::STREAMS && block.stream {
                M::stream(cache, values, row_bytes, block.copies, ahead);
            } else {
                M::copy(cache, values, row_bytes, block.copies, ahead);
            }
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
                    M::copy(values, values.add(row_bytes), row_bytes, block.copies - 1, None);
                }
            }
            return;
        }
        let mut stage = Stage::new();
        let stage = stage.as_mut_ptr();
        let at_once = (AT_ONCE_BYTES / row_bytes.max(1)).clamp(1, block.rows);
        for first in (0..block.rows).step_by(at_once) {
            let rows = at_once.min(block.rows - first);
            let in_cache = first * F::cache_bytes(block.row.len);
            let in_scale = first * F::scale_bytes(block.row.groups);
            ask(block.row.times(rows), in_cache, in_scale);
            F::load::<M, false>(cache.add(in_cache), scale.wrapping_add(in_scale), stage, block.row.times(rows));
            for r in 0..rows {
                let (from, to) = (stage.add(r * row_bytes).cast_const(), values.add((first + r) * block.values_row));
                if stream {
                    M::stream(from, to, row_bytes, block.copies, None);
                } else {
                    M::copy(from, to, row_bytes, block.copies, None);
                }
            }
        }
    }
}
