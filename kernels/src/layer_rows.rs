//! The rows of one layer, and keys as numbers.

use std::ops::Range;

use bytemuck::{cast_slice, pod_read_unaligned};

use crate::cache_rows::{CacheRows, RowQuant, check_len};
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

    /// The parts of a canonical row of all layers that are this layer's row, one behind the other.
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

impl CacheRows {
    /// The rows of one layer.
    ///
    /// # Errors
    /// [`RowsError::Layer`].
    pub fn layer(&self, layer: usize) -> Result<LayerRows, RowsError> {
        let num_layer = self.dims().num_layer;
        if layer >= num_layer {
            return Err(RowsError::Layer { layer, num_layer });
        }
        let rows = self.of_layer(layer);
        let [cache, scale] = rows.row_lens();
        Ok(LayerRows { rows, in_row: [layer * cache, self.row_lens()[0] + layer * scale] })
    }

    /// The keys of one layer in a canonical row, as float32: `keys` has the shape (num_heads, head_dim). Codes are
    /// dequantized; int8 without scales is what it is, float8 without scales is refused.
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
            self.load_head(cells, of_head(scale.start, scale_strides.head_len), values);
        }
        Ok(())
    }

    /// The values of a head, given its bytes.
    pub(crate) fn load_head(&self, cells: &[u8], scales: &[u8], values: &mut [f32]) {
        match self.quant() {
            None if self.t2().is_float() => read_floats(self.t2(), cells, values),
            None => values.iter_mut().zip(cells).for_each(|(x, &code)| *x = f32::from(code as i8)),
            Some(RowQuant { bits, group, t3 }) => float_type!(t3, T => {
                let scales: Vec<T> = scales.chunks_exact(size_of::<T>()).map(pod_read_unaligned).collect();
                HeadCodec { bits, group }.decode(cells, &scales, values);
            }),
        }
    }
}
