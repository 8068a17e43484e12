//! Blocks that form: their rows go to the store, and what queries are compared with stays.

use std::ops::Range;

use bytemuck::cast_slice_mut;
use bytes::Bytes;
use kvcache_kernels::{CacheRows, Rotation};
use kvcache_op::Serial;
use kvcache_schema::{CacheDims, CacheLayout};
use ndarray::ArrayView2;

use super::config::{BlockScore, FarPositions};
use super::plan::Entry;
use super::scores::{bounds, representative};
use super::sequence::{Formed, Sequence, Setup};
use super::sequences::InfLlm;
use crate::error::{Error, MemoryError};
use crate::memory::CacheMemory;
use crate::memory::block::{Block, BlockKey, BlockKind};
use crate::memory::store::StoreError;
use crate::sequences::SeqId;
use crate::spec::{Geometry, KeyForm};

impl Setup {
    /// The attention mass of tokens after the blocks, a step's included: shape (tokens, heads of queries).
    /// `observed` has the scores of the entry's keys.
    pub(crate) fn merged(
        &self,
        sequence: &Sequence,
        entry: &Entry,
        layer: usize,
        observed: ArrayView2<'_, f32>,
        tokens: Range<usize>,
    ) -> Vec<f32> {
        let (heads, mass) = (self.query_heads(), &sequence.layers[layer].mass);
        // In front of these keys are the first tokens and the blocks.
        let first = self.config.init + entry.blocks[0].len() * self.config.block;
        let of_token = |token: usize| {
            let before = move |h: usize| mass.get(token * heads + h).copied().unwrap_or(0.0);
            (0..heads).map(move |h| before(h) + observed[[h, first + token]])
        };
        tokens.flat_map(of_token).collect()
    }

    /// Computes the numbers that queries are compared with, of a block of these rows and this mass of its tokens by
    /// layer.
    fn index(&self, rows: &[u8], mass: &[Vec<f32>]) -> Result<Vec<f32>, Error> {
        let Geometry { num_layer, num_heads, head_dim, .. } = self.spec.geometry;
        let (len, row_len) = (self.index_len(), self.spec.bytes_per_token());
        let (heads, width) = (self.query_heads(), num_heads * head_dim);
        let mut index = vec![0.0; num_layer * len];
        let mut keys = vec![0.0; self.config.block * width];
        for (layer, index) in index.chunks_exact_mut(len.max(1)).enumerate() {
            for (row, keys) in rows.chunks_exact(row_len).zip(keys.chunks_exact_mut(width)) {
                self.spec.rows().keys(layer, row, keys).map_err(Error::memory)?;
            }
            let key = |token: usize, h: usize| &keys[token * width + h * head_dim..][..head_dim];
            match self.config.score {
                BlockScore::Representatives => {
                    for (h, mean) in index.chunks_exact_mut(head_dim).enumerate() {
                        let scores: Vec<f32> = mass[layer].iter().skip(h).step_by(heads).copied().collect();
                        let of_head = |token| key(token, h / self.config.num_repeat);
                        representative(of_head, &scores, self.config.repr_topk, mean);
                    }
                }
                BlockScore::PageBounds => {
                    for (h, pair) in index.chunks_exact_mut(2 * head_dim).enumerate() {
                        let (min, max) = pair.split_at_mut(head_dim);
                        bounds((0..self.config.block).map(|token| key(token, h)), min, max);
                    }
                }
                BlockScore::None => {}
            }
        }
        Ok(index)
    }

    /// Rotates the keys of a block by `delta` positions.
    fn rotate(&self, rows: &mut [u8], delta: i64) -> Result<(), MemoryError> {
        let (Some(rope), true) = (self.spec.rope.as_ref(), delta != 0) else { return Ok(()) };
        let Geometry { num_layer, num_heads, head_dim, .. } = self.spec.geometry;
        let dims = CacheDims { max_t: self.config.block, num_layer, num_heads, inner: head_dim };
        let quant = self.spec.quant;
        let cache_rows = CacheRows::new(CacheLayout::TokenMajor, dims, self.spec.cache_type, quant)?
            .with_quant_rotation(self.spec.quant_rotation);
        // Aligned for every type.
        let memory = |len: usize| vec![0_u64; len.div_ceil(8)];
        let (mut cache, mut scale) = (memory(cache_rows.cache_len()), memory(cache_rows.scale_len()));
        let cache = &mut cast_slice_mut(&mut cache)[..cache_rows.cache_len()];
        let scale = &mut cast_slice_mut(&mut scale)[..cache_rows.scale_len()];
        let slots: Vec<usize> = (0..self.config.block).collect();
        cache_rows.write(cache, scale, &slots, rows)?;
        let rotation = Rotation { slot: 0, len: self.config.block, delta };
        cache_rows.rotate_keys(cache, scale, &[rotation], rope, &Serial)?;
        Ok(cache_rows.read(cache, scale, &slots, rows)?)
    }

    /// The rows of a selection's layers in canonical rows.
    fn group_rows(&self, group: usize, rows: &Bytes) -> Result<Bytes, MemoryError> {
        if !self.config.per_layer {
            return Ok(rows.clone());
        }
        let layer = self.spec.rows().layer(group)?;
        let mut of_group = Vec::with_capacity(self.config.block * layer.row_len());
        for row in rows.chunks_exact(self.spec.bytes_per_token()) {
            layer.in_row().into_iter().for_each(|part| of_group.extend_from_slice(&row[part]));
        }
        Ok(of_group.into())
    }
}

impl InfLlm {
    /// Forms the first block after those that the sequence of an entry had, or the `nth` after these, and puts it
    /// into the store. `observed` has the scores of the entry's keys by layer, where mass is needed.
    /// After an error nothing of it is in the store.
    pub(crate) fn form(
        &mut self,
        memory: &(impl CacheMemory + ?Sized),
        entry: &Entry,
        nth: usize,
        observed: &[ArrayView2<'_, f32>],
    ) -> Result<(Formed, Vec<f32>), Error> {
        let Self { setup, sequences, .. } = &*self;
        let sequence = &sequences[&entry.seq];
        let block = setup.config.block;
        let first = setup.config.init + nth * block;
        let slots = self.slots(sequence.rows, first..first + block);
        let mut rows = vec![0; block * setup.spec.bytes_per_token()];
        memory.read_rows(&slots, &mut rows).map_err(Error::memory)?;
        if let (FarPositions::FarFixed { .. }, KeyForm::Roped) = (setup.config.positions, setup.spec.key_form) {
            let position = self.manager.state.sequences[sequence.rows].positions.at(first);
            setup.rotate(&mut rows, setup.config.init as i64 - position).map_err(Error::memory)?;
        }
        let tokens = nth * block..(nth + 1) * block;
        let mass = |(layer, observed): (usize, &ArrayView2<'_, f32>)| {
            setup.merged(sequence, entry, layer, observed.view(), tokens.clone())
        };
        let mass: Vec<_> = observed.iter().enumerate().map(mass).collect();
        let index = setup.index(&rows, &mass)?;
        let (groups, rows) = (setup.groups(), Bytes::from(rows));
        let mut formed = Formed { keys: Vec::with_capacity(groups) };
        for group in 0..groups {
            let of_group = self.setup.group_rows(group, &rows).map_err(Error::memory)?;
            match self.put(of_group) {
                Ok(key) => formed.keys.push(key),
                Err(error) => {
                    self.forget(formed);
                    return Err(error);
                }
            }
        }
        Ok((formed, index))
    }

    /// Puts rows of a block into the store, under a key that nobody else has: rows of all layers, or of one.
    pub(crate) fn put(&mut self, rows: Bytes) -> Result<BlockKey, Error> {
        let key = self.blocks.private_key();
        let block = Block::new(BlockKind::Private, &key, rows, self.setup.group_row_len()).map_err(StoreError::from)?;
        self.blocks.store.put(&key, block)?;
        Ok(key)
    }

    /// The slots of some rows of a sequence of the manager.
    pub(crate) fn slots(&self, seq: SeqId, rows: Range<usize>) -> Vec<usize> {
        let sequence = &self.manager.state.sequences[seq];
        rows.map(|row| sequence.slot(row, self.setup.page_size())).collect()
    }

    /// Removes a block that no sequence has from the store. Where that fails, the store keeps bytes that are never
    /// read.
    pub(crate) fn forget(&self, formed: Formed) {
        for key in formed.keys {
            let _ = self.blocks.store.delete(&key);
        }
    }
}
