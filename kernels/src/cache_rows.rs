//! The rows of a whole cache: where their bytes are, and copies of them.
//!
//! The *row* of a slot is everything that the slot holds, of all layers, keys and values, codes and scales.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use kvcache_schema::{CacheDims, CacheLayout, ElementType, QuantBit, TypeCombination, rotation_order};

use crate::cache_bytes::TensorBytes;
use crate::rows_error::RowsError;
use crate::workers::{PARALLEL_BYTES, Workers};

/// One copy of the rows of neighboring slots. Source and destination may overlap, as in `memmove`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowCopy {
    /// The first slot that is read.
    pub src: usize,
    /// The first slot that is written.
    pub dst: usize,
    /// The number of slots.
    pub len: usize,
}

/// The rows of a whole cache: their bytes, copies within the cache, and rows in a form that no layout shows in.
///
/// Methods take the memory of `cache` and `scale` as bytes, `scale` empty without quantization. They check everything
/// before they write the first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheRows {
    layout: CacheLayout,
    dims: CacheDims,
    t2: ElementType,
    quant: Option<RowQuant>,
    has_quant_rotation: bool,
    pub(crate) cache: TensorRows,
    pub(crate) scale: TensorRows,
}

/// The bytes of some slots in `cache` or in `scale`: lines of one width, each `pitch` bytes behind the one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotLines {
    /// Where the first line begins.
    pub start: usize,
    /// From one line to the next.
    pub pitch: usize,
    /// Bytes of a line.
    pub width: usize,
    /// Lines.
    pub height: usize,
}

/// How the heads of rows are quantized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowQuant {
    /// The width of a code.
    pub(crate) bits: QuantBit,
    /// Neighbors that share a scale.
    pub(crate) group: usize,
    /// The type of `scale`.
    pub(crate) t3: ElementType,
}

/// The rows of `cache`, or of `scale`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct TensorRows {
    pub(crate) bytes: TensorBytes,
    /// Where layer 0 begins, for slot 0.
    pub(crate) start: usize,
    /// The lengths of the axes layer, key/value and head.
    pub(crate) dims: [usize; 3],
    /// Bytes of the tensor.
    len: usize,
    /// Bytes of a plane: neighboring slots are contiguous inside of one, since all axes outside the token axis are
    /// fixed.
    pub(crate) plane_len: usize,
}

impl CacheRows {
    /// The rows of a cache with these lengths, `inner` being `head_dim`, with `quant_group` and T3 if it is quantized.
    /// Without one, a float8 cache has static scales, which belong to no slot.
    ///
    /// # Errors
    /// [`RowsError::Types`], [`RowsError::QuantGroup`], [`RowsError::SizeOverflow`].
    pub fn new(
        layout: CacheLayout,
        dims: CacheDims,
        t2: ElementType,
        quant: Option<(usize, ElementType)>,
    ) -> Result<Self, RowsError> {
        let t3 = quant.map(|(_, t3)| t3);
        let has_static_scales = (t2, t3) == (ElementType::Float8E4M3Fn, None);
        if !has_static_scales && !TypeCombination::all().any(|legal| (legal.t2, legal.t3) == (t2, t3)) {
            return Err(RowsError::Types { t2, t3 });
        }
        let scale = match quant {
            None => TensorRows::default(),
            Some((group, t3)) => {
                let shared_bytes = t2 == ElementType::Int4 && !group.is_multiple_of(2);
                if group == 0 || !dims.inner.is_multiple_of(group) || shared_bytes {
                    return Err(RowsError::QuantGroup { group, head_dim: dims.inner });
                }
                TensorRows::new("scale", layout, CacheDims { inner: dims.inner / group, ..dims }, t3)?
            }
        };
        let cache = TensorRows::new("cache", layout, dims, t2)?;
        let quant = quant.and_then(|(group, t3)| Some(RowQuant { bits: QuantBit::of_element(t2)?, group, t3 }));
        Ok(Self { layout, dims, t2, quant, has_quant_rotation: false, cache, scale })
    }

    /// The rows of a cache whose keys were multiplied by a Hadamard matrix before they were quantized
    /// (`quant_rotation`). Without quantization there is no such cache.
    #[must_use]
    pub fn with_quant_rotation(self, has_quant_rotation: bool) -> Self {
        Self { has_quant_rotation, ..self }
    }

    /// The types of `cache` and, with quantization, `scale`.
    pub fn types(&self) -> (ElementType, Option<ElementType>) {
        (self.t2, self.quant.map(|quant| quant.t3))
    }

    /// Whether these are rows of float8 with static scales, which are not among the rows.
    pub fn has_static_scales(&self) -> bool {
        self.types() == (ElementType::Float8E4M3Fn, None)
    }

    /// The bytes of `cache`.
    pub fn cache_len(&self) -> usize {
        self.cache.len
    }

    /// The bytes of `scale`; 0 without quantization.
    pub fn scale_len(&self) -> usize {
        self.scale.len
    }

    /// The bytes of a row, scales included; 0 in a cache without slots.
    pub fn row_len(&self) -> usize {
        self.cache.row_len() + self.scale.row_len()
    }

    /// The rows of a cache that has `max_t` slots, and is otherwise this one.
    ///
    /// # Errors
    /// [`RowsError::SizeOverflow`].
    pub fn with_max_t(&self, max_t: usize) -> Result<Self, RowsError> {
        let quant = self.quant.map(|quant| (quant.group, quant.t3));
        let rows = Self::new(self.layout, CacheDims { max_t, ..self.dims }, self.t2, quant)?;
        Ok(rows.with_quant_rotation(self.has_quant_rotation))
    }

    /// The bytes of some slots, of one layer or of all, in `cache` and in `scale`: line `i` of those in a cache of
    /// another `max_t` holds the same elements.
    ///
    /// # Errors
    /// [`RowsError::Layer`], [`RowsError::Slots`].
    pub fn lines(&self, layer: Option<usize>, slots: Range<usize>) -> Result<[SlotLines; 2], RowsError> {
        self.check_slots(slots.start, slots.len())?;
        layer.map_or(Ok(()), |layer| self.check_layer(layer))?;
        Ok([self.cache, self.scale].map(|tensor| tensor.lines(layer, slots.clone())))
    }

    /// Copies rows of slots to other slots, one copy after the other: a later one reads what an earlier one has
    /// written. Large copies are split among the workers, by layer, by key and value, or by head, as far as the layout
    /// has these outside of the slots.
    ///
    /// # Errors
    /// [`RowsError::Length`], [`RowsError::Slots`].
    pub fn copy(
        &self,
        cache: &mut [u8],
        scale: &mut [u8],
        copies: &[RowCopy],
        workers: &dyn Workers,
    ) -> Result<(), RowsError> {
        self.check_memory(cache, scale)?;
        for &RowCopy { src, dst, len } in copies {
            self.check_slots(src, len)?;
            self.check_slots(dst, len)?;
        }
        self.cache.copy(cache, copies, workers);
        self.scale.copy(scale, copies, workers);
        Ok(())
    }

    /// The rows of a layer that the cache has, in the memory of the whole cache.
    pub(crate) fn of_layer(&self, layer: usize) -> Self {
        let dims = CacheDims { num_layer: 1, ..self.dims };
        Self { dims, cache: self.cache.layer(layer), scale: self.scale.layer(layer), ..*self }
    }

    /// The bytes of a row in `cache` and in `scale`.
    pub(crate) fn row_lens(&self) -> [usize; 2] {
        [self.cache.row_len(), self.scale.row_len()]
    }

    /// The lengths of the axes.
    pub(crate) fn dims(&self) -> CacheDims {
        self.dims
    }

    /// The type of `cache`.
    pub(crate) fn t2(&self) -> ElementType {
        self.t2
    }

    /// The quantization.
    pub(crate) fn quant(&self) -> Option<RowQuant> {
        self.quant
    }

    /// The order of the Hadamard matrix that keys were multiplied by, block by block; 1 where they were not.
    pub(crate) fn rotation_order(&self) -> usize {
        match self.quant {
            Some(quant) if self.has_quant_rotation => rotation_order(self.dims.inner, quant.group),
            _ => 1,
        }
    }

    /// The strides of `cache` and of `scale`.
    pub(crate) fn strides(&self) -> [TensorBytes; 2] {
        [self.cache.bytes, self.scale.bytes]
    }

    pub(crate) fn check_layer(&self, layer: usize) -> Result<(), RowsError> {
        let num_layer = self.dims.num_layer;
        if layer < num_layer { Ok(()) } else { Err(RowsError::Layer { layer, num_layer }) }
    }

    pub(crate) fn check_memory(&self, cache: &[u8], scale: &[u8]) -> Result<(), RowsError> {
        check_len("cache", self.cache.len, cache)?;
        check_len("scale", self.scale.len, scale)
    }

    /// Checks that slots are inside the cache.
    ///
    /// # Errors
    /// [`RowsError::Slots`].
    pub fn check_slots(&self, start: usize, len: usize) -> Result<(), RowsError> {
        match start.checked_add(len) {
            Some(end) if end <= self.dims.max_t => Ok(()),
            _ => Err(RowsError::Slots { start, len, max_t: self.dims.max_t }),
        }
    }
}

pub(crate) fn check_len(memory: &'static str, expected: usize, bytes: &[u8]) -> Result<(), RowsError> {
    match bytes.len() {
        got if got == expected => Ok(()),
        got => Err(RowsError::Length { memory, expected, got }),
    }
}

impl TensorRows {
    fn new(
        tensor: &'static str,
        layout: CacheLayout,
        dims: CacheDims,
        element: ElementType,
    ) -> Result<Self, RowsError> {
        let shape = layout.shape(dims);
        let overflow = RowsError::SizeOverflow { tensor, shape };
        let strides = layout.strides(dims).ok_or(overflow)?;
        // From the innermost axis on, as the strides have shown not to overflow.
        let elements = shape.iter().rev().product();
        let len = element.bytes(elements).ok_or(overflow)?;
        let bytes = TensorBytes::new(element, dims.inner, strides, elements);
        let axes = [dims.num_layer, 2, dims.num_heads];
        Ok(Self { bytes, start: 0, dims: axes, len, plane_len: dims.max_t * bytes.token })
    }

    /// One of its layers. Only [`visit`](Self::visit) sees that.
    fn layer(&self, layer: usize) -> Self {
        let [_, kvs, heads] = self.dims;
        Self { start: layer * self.bytes.layer, dims: [1, kvs, heads], ..*self }
    }

    /// The bytes that a slot has here.
    pub(crate) fn row_len(&self) -> usize {
        // The axes of an empty tensor may have any length.
        if self.len == 0 { 0 } else { self.dims.iter().product::<usize>() * self.bytes.head_len }
    }

    fn lines(self, layer: Option<usize>, slots: Range<usize>) -> SlotLines {
        let TensorBytes { token, layer: layer_len, .. } = self.bytes;
        let planes = |bytes: usize| bytes.checked_div(self.plane_len).unwrap_or(0);
        let (start, width) = (slots.start * token, slots.len() * token);
        match layer {
            None => SlotLines { start, pitch: self.plane_len, width, height: planes(self.len) },
            // The layers of a slot are neighbors.
            Some(layer) if layer_len <= token => {
                SlotLines { start: start + layer * layer_len, pitch: token, width: layer_len, height: slots.len() }
            }
            Some(layer) => {
                SlotLines { start: start + layer * layer_len, pitch: self.plane_len, width, height: planes(layer_len) }
            }
        }
    }

    /// Copies slots that are inside the tensor, whose bytes are given.
    fn copy(&self, bytes: &mut [u8], copies: &[RowCopy], workers: &dyn Workers) {
        let token = self.bytes.token;
        let slots = copies.iter().fold(0usize, |slots, copy| slots.saturating_add(copy.len));
        let moved = slots.saturating_mul(self.row_len()).saturating_mul(2);
        let planes = Mutex::new(bytes.chunks_exact_mut(self.plane_len.max(1)));
        let next = || planes.lock().unwrap_or_else(PoisonError::into_inner).next();
        let take = |_: usize| {
            while let Some(plane) = next() {
                for &RowCopy { src, dst, len } in copies {
                    plane.copy_within(src * token..(src + len) * token, dst * token);
                }
            }
        };
        if moved >= PARALLEL_BYTES && workers.threads() > 1 {
            workers.run(workers.threads(), &take);
        }
        take(0);
    }
}
