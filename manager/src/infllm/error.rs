//! Why InfLLM refuses something.

use serde::Serialize;
use strum::IntoStaticStr;
use thiserror::Error;

use crate::error::{numbers, source, text};
use crate::memory::block::BlockError;
use crate::memory::store::StoreError;
use crate::sequences::SeqId;

/// Why an [`InfLlm`](super::InfLlm) refuses something.
#[derive(Debug, Error, IntoStaticStr, Serialize)]
#[strum(serialize_all = "snake_case")]
#[serde(untagged)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the texts say what the fields are")]
pub enum InfLlmError {
    /// A cache without pages.
    #[error("the cache has another mode, expected paged")]
    NotPaged,

    /// Blocks that are scored by their keys, in a cache whose keys' scales the manager does not have.
    #[error("blocks are scored by keys, which are float8e4m3fn with static scales")]
    StaticScales,

    /// A number of tokens that is no whole number of pages.
    #[error("{name} is {got}, expected a multiple of the page size {page_size}")]
    Multiple { name: &'static str, got: usize, page_size: usize },

    /// A number that is no part of a whole.
    #[error("{name} is {got}, expected a number from 0 to 1, and above 0 if it is alpha")]
    Fraction { name: &'static str, got: f64 },

    /// Far rows at a constant distance, in a cache whose keys are stored at their positions.
    #[error("far_constant needs keys that are stored before rotary embedding (raw), got roped")]
    RotatedKeys,

    /// A block that is named twice in a list of different ones.
    #[error("{name} has block {block} twice")]
    DuplicateBlock { name: &'static str, block: u32 },

    /// A layer that the cache does not have.
    #[error("layer is {layer}, expected one of {num_layer}")]
    Layer { layer: usize, num_layer: usize },

    /// An array of another shape.
    #[error("{name} has shape {got:?}, expected {expected:?}")]
    Shape {
        name: &'static str,
        #[serde(serialize_with = "numbers")]
        expected: Vec<usize>,
        #[serde(serialize_with = "numbers")]
        got: Vec<usize>,
    },

    /// Attention mass that is no mass.
    #[error("scores of layer {layer} have {got} at {index}, expected finite numbers from 0 on")]
    Mass { layer: usize, index: usize, got: f64 },

    /// Attention mass of a layer that the open step has already.
    #[error("layer {layer} was observed in this step already")]
    ObservedTwice { layer: usize },

    /// A commit of a step that lacks the attention mass of a layer.
    #[error("layer {layer} was not observed: representatives and decayed masses need the scores of every layer")]
    NotObserved { layer: usize },

    /// A second selection of a layer since the last step.
    #[error("layer {layer} has selected since the last step already")]
    SelectedTwice { layer: usize },

    /// There are more blocks than attention sees, and none was selected.
    #[error("sequence {seq} has {blocks} blocks, more than topk = {topk}, and layer {layer} has never selected")]
    NotSelected { seq: SeqId, layer: usize, blocks: usize, topk: usize },

    /// A selected block that the store does not return. The sequence can continue with others, which layers may select
    /// again, or be computed again.
    #[error("block {block} of sequence {seq} is lost: {why}")]
    BlockLost {
        seq: SeqId,
        block: u32,
        #[serde(serialize_with = "text")]
        why: Lost,
    },

    /// A store that failed.
    #[error("the store failed: {0}")]
    Store(
        #[from]
        #[serde(serialize_with = "source")]
        StoreError,
    ),
}

/// What is wrong with a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Lost {
    /// The store has none of its key.
    #[error("the store does not have it")]
    Missing,
    /// The store has other bytes.
    #[error(transparent)]
    Bad(#[from] BlockError),
}

impl InfLlmError {
    /// The variant's name in snake case.
    pub(crate) fn kind(&self) -> &'static str {
        self.into()
    }
}
