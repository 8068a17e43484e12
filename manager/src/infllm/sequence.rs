//! The state of a sequence, and what all sequences of an `InfLlm` have in common.

use std::ops::Range;
use std::sync::Arc;

use super::config::{BlockScore, FarPositions, InfLlmConfig};
use super::index::Index;
use super::partition::Partition;
use super::residency::Residency;
use crate::error::Error;
use crate::memory::block::BlockKey;
use crate::sequences::SeqId;
use crate::spec::CacheSpec;
use crate::state::State;

/// The cache and the configuration, which all sequences of an `InfLlm` have in common.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) spec: CacheSpec,
    pub(crate) config: InfLlmConfig,
}

/// A block, which never changes. Sequences share it.
#[derive(Debug)]
pub(crate) struct Formed {
    /// Where the store has its rows: all layers under one key, or each layer under its own.
    pub(crate) keys: Vec<BlockKey>,
}

/// The state of a layer of a sequence.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Layer {
    /// The attention mass of the tokens after the blocks, shape (tokens, heads of queries), for representatives.
    pub(crate) mass: Vec<f32>,
    /// The numbers that queries are compared with, [`Setup::index_len`] of a block: a representative for each head of
    /// queries, or for each head of the cache the least and the largest elements of its keys.
    pub(crate) index: Index,
    /// The scores of blocks, smoothed. Newer blocks may have none yet.
    pub(crate) scores: Vec<f32>,
}

#[derive(Debug, Clone)]
pub(crate) struct Sequence {
    /// Tokens.
    pub(crate) n: usize,
    /// All blocks, as far as they are kept.
    pub(crate) blocks: Vec<Arc<Formed>>,
    pub(crate) layers: Vec<Layer>,
    /// The latest selection of `topk` blocks, in ascending order: of all layers, or by layer.
    pub(crate) chosen: Vec<Option<Vec<u32>>>,
    /// The manager's sequence of the rows that every layer has in the cache: of the first tokens and after the blocks.
    pub(crate) rows: SeqId,
    /// The manager's sequence of resident blocks, slot by slot.
    pub(crate) resident: SeqId,
    /// The blocks in the slots: of all layers, or by layer.
    pub(crate) residency: Vec<Residency>,
    /// For each shift that moved one of the tokens after the blocks: the tokens that there were.
    pub(crate) shifts: Vec<usize>,
}

impl Setup {
    pub(crate) fn page_size(&self) -> usize {
        self.spec.page_size()
    }

    /// The pages of that many tokens, which are whole pages.
    pub(crate) fn pages(&self, tokens: usize) -> usize {
        tokens / self.page_size()
    }

    /// Selections: one, or one for each layer.
    pub(crate) fn groups(&self) -> usize {
        if self.config.per_layer { self.spec.geometry.num_layer } else { 1 }
    }

    /// The selection of a layer.
    pub(crate) fn group(&self, layer: usize) -> usize {
        if self.config.per_layer { layer } else { 0 }
    }

    /// The layers of a selection.
    pub(crate) fn layers(&self, group: usize) -> Range<usize> {
        if self.config.per_layer { group..group + 1 } else { 0..self.spec.geometry.num_layer }
    }

    pub(crate) fn check_layer(&self, layer: usize) -> Result<(), Error> {
        let num_layer = self.spec.geometry.num_layer;
        if layer < num_layer { Ok(()) } else { Err(Error::Layer { layer, num_layer }) }
    }

    /// Heads of queries.
    pub(crate) fn query_heads(&self) -> usize {
        self.spec.geometry.num_heads * self.config.num_repeat
    }

    /// The numbers that queries are compared with, of a block in a layer.
    pub(crate) fn index_len(&self) -> usize {
        let geometry = self.spec.geometry;
        match self.config.score {
            BlockScore::Representatives => self.query_heads() * geometry.head_dim,
            BlockScore::PageBounds => 2 * geometry.num_heads * geometry.head_dim,
            BlockScore::None => 0,
        }
    }

    pub(crate) fn partition(&self, n: usize) -> Partition {
        let InfLlmConfig { init, local, block, .. } = self.config;
        super::partition::infllm_partition(n, init, local, block)
            .unwrap_or_else(|_| unreachable!("a block is a page or more"))
    }

    /// The first token that is in no block and after the first ones, if `n` tokens have formed their blocks.
    pub(crate) fn rest_start(&self, n: usize) -> usize {
        self.config.init + self.partition(n).blocks * self.config.block
    }

    /// The rows of a layer, or of all.
    pub(crate) fn group_row_len(&self) -> usize {
        self.spec.bytes_per_token() / self.groups()
    }
}

impl Sequence {
    /// A sequence without tokens, of these sequences of the manager.
    pub(crate) fn new(setup: &Setup, [rows, resident]: [SeqId; 2]) -> Self {
        let residency = Residency::new(setup.config.max_cached, setup.config.eviction);
        Self {
            n: 0,
            blocks: Vec::new(),
            layers: vec![Layer::default(); setup.spec.geometry.num_layer],
            chosen: vec![None; setup.groups()],
            rows,
            resident,
            residency: vec![residency; setup.groups()],
            shifts: Vec::new(),
        }
    }

    /// Adds a block, and by layer what queries are compared with.
    pub(crate) fn push(&mut self, setup: &Setup, (formed, index): (Formed, Vec<f32>)) {
        for (layer, numbers) in self.layers.iter_mut().zip(index.chunks_exact(setup.index_len())) {
            layer.index.push(numbers);
        }
        self.blocks.push(Arc::new(formed));
    }

    /// The blocks that the next step sees, in ascending order.
    pub(crate) fn wanted(&self, setup: &Setup, seq: SeqId, group: usize) -> Result<Vec<u32>, Error> {
        let (blocks, topk) = (self.blocks.len(), setup.config.topk);
        if blocks <= topk {
            return Ok((0..blocks as u32).collect());
        }
        let layer = setup.layers(group).start;
        self.chosen[group].clone().ok_or(Error::NotSelected { seq, layer, blocks, topk })
    }

    /// The positions of the keys of an open step that sees these blocks, in order.
    pub(crate) fn key_positions(&self, setup: &Setup, state: &State, blocks: &[u32]) -> impl Iterator<Item = i64> {
        let InfLlmConfig { init, local, block: len, positions, .. } = setup.config;
        let rows = &state.sequences[self.rows].positions;
        let of_block = move |&block: &u32| {
            // In far_fixed all blocks are at the same positions.
            let before = if matches!(positions, FarPositions::FarFixed { .. }) { 0 } else { block as usize * len };
            init + before..init + before + len
        };
        let blocks: Vec<_> = blocks.iter().flat_map(of_block).map(|position| position as i64).collect();
        let nearest = match positions {
            FarPositions::FarConstant => (self.n + 1).saturating_sub(local) as i64,
            FarPositions::TrueDistance | FarPositions::FarFixed { .. } => 0,
        };
        let all = rows.iter().take(init).chain(blocks).chain(rows.iter().skip(init));
        all.map(move |position| position.max(nearest))
    }
}
