//! The rows of a cache, or of one of its layers, in a form that no layout shows in.

use std::ops::Range;

use bytemuck::{cast_slice, pod_read_unaligned};
use kvcache_simd::hadamard;

use crate::cache_bytes::TensorBytes;
use crate::cache_rows::{CacheRows, RowQuant, TensorRows, check_len};
use crate::cpu::{Cpu, OffsetCopy};
use crate::float_type;
use crate::float_type::read_floats;
use crate::quantize::HeadCodec;
use crate::rows_error::RowsError;

/// The rows of one layer of a cache: made by [`CacheRows::layer`]. A row has what the slot holds of this layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerRows {
    rows: CacheRows,
    /// Where the layer's bytes of `cache` and of `scale` begin in a canonical row of all layers.
    in_row: [usize; 2],
}

impl LayerRows {
    /// The bytes of a row of this layer, scales included.
    pub fn row_len(&self) -> usize {
        self.rows.row_len()
    }

    /// The parts of a canonical row of all layers that are this layer's row, one after the other.
    pub fn in_row(&self) -> [Range<usize>; 2] {
        let ([cache, scale], [cache_len, scale_len]) = (self.in_row, self.rows.row_lens());
        [cache..cache + cache_len, scale..scale + scale_len]
    }

    /// Writes rows of this layer into some slots, whose other layers keep their bytes: as [`CacheRows::write`], with
    /// the memory of the whole cache.
    ///
    /// # Errors
    /// [`RowsError::Length`], [`RowsError::Slots`].
    pub fn write(&self, cache: &mut [u8], scale: &mut [u8], slots: &[usize], rows: &[u8]) -> Result<(), RowsError> {
        // Attention reads them next.
        self.rows.write_with(cache, scale, slots, rows, false)
    }
}

/// About this many neighboring bytes of a canonical row are read or written before the next row's.
const TILE_BYTES: usize = 4096;

/// Bytes of rows from which on they are written by non-temporal stores: with as many that are read they are as much as
/// a second-level cache holds, so plain stores would find nothing there, and would drive out what others have there.
const STREAM_BYTES: usize = 512 << 10;

impl CacheRows {
    /// Reads the rows of some slots into `rows`, one after the other, each in canonical order: the heads of `cache` by
    /// layer, key/value and head, then the rows of `scale`.
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
            Cpu::default().copy_bytes(memory, rows, tensor.copies(slots, at, self.row_len()), ahead);
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
            let copies = tensor.copies(slots, at, self.row_len()).map(OffsetCopy::back);
            Cpu::default().copy_bytes(rows, memory, copies, stream.then_some(TILE_BYTES));
        }
        Ok(())
    }

    /// The rows of one layer.
    ///
    /// # Errors
    /// [`RowsError::Layer`].
    pub fn layer(&self, layer: usize) -> Result<LayerRows, RowsError> {
        self.check_layer(layer)?;
        let rows = self.of_layer(layer);
        let [cache, scale] = rows.row_lens();
        Ok(LayerRows { rows, in_row: [layer * cache, self.row_lens()[0] + layer * scale] })
    }

    /// The keys of one layer in a canonical row, as float32: `keys` has the shape (num_heads, head_dim). Codes are
    /// dequantized, and keys that were multiplied by a Hadamard matrix are multiplied once more; int8 without scales is
    /// what it is, float8 without scales is refused.
    ///
    /// # Errors
    /// [`RowsError::Layer`], [`RowsError::Length`], [`RowsError::Types`].
    pub fn keys(&self, layer: usize, row: &[u8], keys: &mut [f32]) -> Result<(), RowsError> {
        let [cache, scale] = self.layer(layer)?.in_row();
        let (dims, [cache_strides, scale_strides]) = (self.dims(), self.strides());
        if self.has_static_scales() {
            return Err(RowsError::Types { t2: self.t2(), t3: None });
        }
        check_len("rows", self.row_len(), row)?;
        check_len("keys", dims.num_heads * dims.inner * size_of::<f32>(), cast_slice(keys))?;
        for (h, values) in keys.chunks_exact_mut(dims.inner.max(1)).enumerate() {
            let of_head = |start: usize, len: usize| &row[start + h * len..][..len];
            let cells = of_head(cache.start, cache_strides.head_len);
            let scales = of_head(scale.start, scale_strides.head_len);
            match self.quant() {
                None if self.t2().is_float() => read_floats(self.t2(), cells, values),
                None => values.iter_mut().zip(cells).for_each(|(x, &code)| *x = f32::from(code as i8)),
                Some(RowQuant { bits, group, t3 }) => float_type!(t3, T => {
                    let scales: Vec<T> = scales.chunks_exact(size_of::<T>()).map(pod_read_unaligned).collect();
                    HeadCodec { bits, group }.decode(cells, &scales, values);
                    hadamard(values, self.rotation_order());
                }),
            }
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
    fn copies(self, slots: &[usize], at: usize, row_len: usize) -> impl Iterator<Item = OffsetCopy> {
        let TensorBytes { token, head_len, .. } = self.bytes;
        let [_, kvs, heads] = self.dims;
        // The slots of a single layer may be further apart than they are long.
        let len = token.min(self.row_len());
        let in_tile = TILE_BYTES.checked_div(len).unwrap_or(1).max(1);
        let mut tiles: Vec<OffsetCopy> = Vec::new();
        for i in 0..self.row_len().checked_div(len).unwrap_or(0) {
            let h = i * len / head_len;
            let from = self.start + self.bytes.offset(0, h / heads / kvs, h / heads % kvs, h % heads);
            match tiles.last_mut() {
                Some(tile) if tile.rows < in_tile && from == tile.from + tile.rows * self.plane_len => tile.rows += 1,
                _ => tiles.push(OffsetCopy {
                    from,
                    from_step: self.plane_len,
                    to: at + i * len,
                    to_step: len,
                    len,
                    rows: 1,
                    copies: 1,
                    prefetch: None,
                }),
            }
        }
        tiles.into_iter().flat_map(move |tile| {
            slots.iter().zip((0..).step_by(row_len)).map(move |(slot, row)| OffsetCopy {
                from: tile.from + slot * token,
                to: tile.to + row,
                ..tile
            })
        })
    }
}
