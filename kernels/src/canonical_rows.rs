//! The rows of a cache in a form that no layout shows in.

use crate::cache_bytes::TensorBytes;
use crate::cache_rows::{CacheRows, TensorRows, check_len};
use crate::cpu::{Cpu, Parts};
use crate::rows_error::RowsError;

/// About so many neighboring bytes of a canonical row are read or written before those of the next row.
const TILE_BYTES: usize = 4096;

/// Bytes of rows from which on they are written by non-temporal stores: with as many that are read they are as much as
/// a second-level cache holds, so plain stores would find nothing there, and would drive out what others have there.
const STREAM_BYTES: usize = 512 << 10;

impl CacheRows {
    /// Reads the rows of some slots into `rows`, one after the other, each in canonical order: the heads of `cache` by
    /// layer, key/value and head, then those of `scale`.
    ///
    /// # Errors
    /// [`RowsError::Length`], [`RowsError::Slots`].
    pub fn read(&self, cache: &[u8], scale: &[u8], slots: &[usize], rows: &mut [u8]) -> Result<(), RowsError> {
        self.check_memory(cache, scale)?;
        self.check_rows(slots, rows)?;
        let stream = rows.len() >= STREAM_BYTES;
        for (tensor, memory, at) in [(self.cache, cache, 0), (self.scale, scale, self.cache.row_len())] {
            // What is prefetched is the next slot's, if the two are neighbors.
            let ahead = stream.then_some(tensor.bytes.token);
            Cpu::default().copy_parts(memory, rows, tensor.parts(slots, at, self.row_len()), ahead);
        }
        Ok(())
    }

    /// Writes rows in canonical order into some slots: the reverse of [`read`](Self::read). Where a slot is named
    /// twice, the later row remains.
    ///
    /// # Errors
    /// [`RowsError::Length`], [`RowsError::Slots`].
    pub fn write(&self, cache: &mut [u8], scale: &mut [u8], slots: &[usize], rows: &[u8]) -> Result<(), RowsError> {
        self.write_with(cache, scale, slots, rows, rows.len() >= STREAM_BYTES)
    }

    /// Writes rows, with non-temporal stores if `stream`.
    pub(crate) fn write_with(
        &self,
        cache: &mut [u8],
        scale: &mut [u8],
        slots: &[usize],
        rows: &[u8],
        stream: bool,
    ) -> Result<(), RowsError> {
        self.check_memory(cache, scale)?;
        self.check_rows(slots, rows)?;
        for (tensor, memory, at) in [(self.cache, cache, 0), (self.scale, scale, self.cache.row_len())] {
            let parts = tensor.parts(slots, at, self.row_len()).map(Parts::back);
            Cpu::default().copy_parts(rows, memory, parts, stream.then_some(TILE_BYTES));
        }
        Ok(())
    }

    /// Checks slots, and that `rows` has a row for each.
    fn check_rows(&self, slots: &[usize], rows: &[u8]) -> Result<(), RowsError> {
        slots.iter().try_for_each(|&slot| self.check_slots(slot, 1))?;
        check_len("rows", slots.len().saturating_mul(self.row_len()), rows)
    }
}

impl TensorRows {
    /// The copies that read some slots of the tensor into canonical rows of `row_len` bytes, of which this tensor's
    /// begin at `at`: in a plane a slot is contiguous, and in most layouts planes follow each other in canonical order.
    fn parts(self, slots: &[usize], at: usize, row_len: usize) -> impl Iterator<Item = Parts> {
        let TensorBytes { token, head_len, .. } = self.bytes;
        let [_, kvs, heads] = self.dims;
        // The slots of a single layer may be further apart than they are long.
        let len = token.min(self.row_len());
        let in_tile = TILE_BYTES.checked_div(len).unwrap_or(1).max(1);
        let mut tiles: Vec<Parts> = Vec::new();
        for i in 0..self.row_len().checked_div(len).unwrap_or(0) {
            let h = i * len / head_len;
            let from = self.start + self.bytes.offset(0, h / heads / kvs, h / heads % kvs, h % heads);
            match tiles.last_mut() {
                Some(tile) if tile.count < in_tile && from == tile.from[0] + tile.count * self.plane_len => {
                    tile.count += 1
                }
                _ => tiles.push(Parts { count: 1, len, from: [from, self.plane_len], to: [at + i * len, len] }),
            }
        }
        tiles.into_iter().flat_map(move |tile| {
            slots.iter().zip((0..).step_by(row_len)).map(move |(slot, row)| Parts {
                from: [tile.from[0] + slot * token, tile.from[1]],
                to: [tile.to[0] + row, tile.to[1]],
                ..tile
            })
        })
    }
}
