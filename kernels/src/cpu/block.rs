//! Moves a block row by row, whatever moves the rows.

use super::format::{Format, Mover};
use super::prefetch::prefetch_row;
use super::rows::Block;
use super::stage::{STAGE_BYTES, Stage};

/// Stores a block.
///
/// # Safety
/// The mover's instructions are enabled; else as for [`Move`](super::rows::Move).
#[inline(always)]
pub(super) unsafe fn store<M: Mover, F: Format>(block: &Block) {
    let row_bytes = F::value_bytes(block.len);
    for r in 0..block.rows {
        // SAFETY: the caller's promise; this is row r.
        unsafe {
            let values = block.values.add(r * row_bytes);
            let cache = block.cache.add(r * block.cache_step);
            let scale = block.scale.wrapping_add(r * block.scale_step);
            if M::STREAMS && F::COPIES && block.stream {
                M::stream(values, cache, row_bytes, 1, values.wrapping_offset(block.ahead.0));
            } else {
                F::store::<M>(values, cache, scale, block.len, block.group);
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
    let row_bytes = F::value_bytes(block.len);
    let stream = M::STREAMS && block.stream && (F::COPIES || row_bytes <= STAGE_BYTES);
    let mut stage = Stage::new();
    let stage = stage.as_mut_ptr();
    for r in 0..block.rows {
        // SAFETY: the caller's promise; this is row r. A stage has room for a row that is streamed from it.
        unsafe {
            let cache = block.cache.add(r * block.cache_step).cast_const();
            let scale = block.scale.wrapping_add(r * block.scale_step).cast_const();
            let values = block.values.add(r * block.copies * row_bytes);
            let ahead = cache.wrapping_offset(block.ahead.0);
            if stream && F::COPIES {
                M::stream(cache, values, row_bytes, block.copies, ahead);
                continue;
            }
            prefetch_row(ahead, F::cache_bytes(block.len));
            prefetch_row(scale.wrapping_offset(block.ahead.1), F::scale_bytes(block.len, block.group));
            if stream {
                F::load::<M>(cache, scale, stage, block.len, block.group);
                M::stream(stage, values, row_bytes, block.copies, stage);
            } else {
                F::load::<M>(cache, scale, values, block.len, block.group);
                for copy in 1..block.copies {
                    M::copy(values, values.add(copy * row_bytes), row_bytes);
                }
            }
        }
    }
}
