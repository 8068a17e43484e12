//! The configuration of an `InfLlm`, checked once.

use crate::error::Error;
use crate::spec::{CacheSpec, KeyForm, Mode};

/// The score of a block for a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockScore {
    /// Dot products with the mean of the keys that got the most attention while they were local, as the authors do it.
    /// Steps have to be [observed](super::InfLlmStep::observe).
    Representatives,
    /// The largest dot product that a key between the block's smallest and largest elements can have (Quest). Needs no
    /// attention mass.
    PageBounds,
    /// No score: blocks are dropped, and attention sees the first and the last tokens (StreamingLLM).
    None,
}

/// The positions at which attention sees far rows: the rows of blocks, and in [`FarConstant`](Self::FarConstant) all
/// rows that left the local tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FarPositions {
    /// Far rows keep their own positions.
    TrueDistance,
    /// Far rows are `local` - 1 in front of the first new token of the step, as the authors do it. Keys are stored
    /// before rotary embedding ([`KeyForm::PreRope`]), which the graph applies by `key_positions`.
    FarConstant,
    /// Every block is rotated once to the positions right after the first tokens, and the other rows are kept below
    /// `n_ctx`: where these would pass it, they move back, right after the positions of blocks (K-shift).
    FarFixed {
        /// The positions that the model was trained for.
        n_ctx: usize,
    },
}

/// The resident block that goes when another one is loaded. A block that is wanted never goes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Eviction {
    /// The least recently wanted.
    Lru,
    /// The one with the least attention mass. In every step the mass is multiplied by `decay`, and what the block got
    /// is added. Steps have to be [observed](super::InfLlmStep::observe).
    Decayed {
        /// 0 to 1; the authors use 0.1.
        decay: f32,
    },
}

/// The configuration of an [`InfLlm`](super::InfLlm). Numbers count tokens, unless they say otherwise.
#[derive(Debug, Clone, PartialEq)]
pub struct InfLlmConfig {
    /// The first tokens, which attention always sees: a multiple of the page size.
    pub init: usize,
    /// The last tokens, which attention always sees: a multiple of the page size.
    pub local: usize,
    /// The tokens of a block: a multiple of the page size.
    pub block: usize,
    /// The blocks that attention sees; 0 with [`BlockScore::None`], and only then.
    pub topk: usize,
    /// The tokens that a representative is the mean of.
    pub repr_topk: usize,
    /// The blocks of a sequence that are resident, at most: `topk` or more.
    pub max_cached: usize,
    /// The weight of the newest score of a block, above 0 and up to 1; the score before has the rest.
    pub alpha: f32,
    /// The score of blocks.
    pub score: BlockScore,
    /// The positions of far rows.
    pub positions: FarPositions,
    /// The block that goes.
    pub eviction: Eviction,
    /// Whether each layer has blocks of its own. Otherwise all layers have the same, by the mean of the scores of those
    /// layers that have selected.
    pub per_layer: bool,
    /// Heads of queries for each head of the cache.
    pub num_repeat: usize,
}

impl InfLlmConfig {
    /// A configuration with the least that has to be said: representatives of 4 tokens, `topk` resident blocks, no
    /// smoothing, true distances, the least recently used block goes, one selection for all layers, as many heads of
    /// queries as of keys.
    pub fn new(init: usize, local: usize, block: usize, topk: usize) -> Self {
        Self {
            init,
            local,
            block,
            topk,
            repr_topk: 4.min(block),
            max_cached: topk,
            alpha: 1.0,
            score: BlockScore::Representatives,
            positions: FarPositions::TrueDistance,
            eviction: Eviction::Lru,
            per_layer: false,
            num_repeat: 1,
        }
    }

    /// Whether steps have to be observed.
    pub(crate) fn needs_mass(&self) -> bool {
        self.score == BlockScore::Representatives
            || self.has_blocks() && matches!(self.eviction, Eviction::Decayed { .. })
    }

    /// Whether blocks are kept.
    pub(crate) fn has_blocks(&self) -> bool {
        self.score != BlockScore::None
    }

    /// The pages that a sequence has at most, when no step gives it more than `n` tokens.
    ///
    /// # Errors
    /// [`Error::SpecRange`], if they are more than can be counted.
    pub fn max_pages(&self, page_size: usize, n: usize) -> Result<usize, Error> {
        let Self { init, local, block, max_cached, .. } = *self;
        let count = || {
            // Before a block forms, a rest has up to block - 1 tokens more than `local`; pages end anywhere.
            let rows = init.checked_add(local)?.checked_add(block.checked_sub(1)?)?.checked_add(n)?;
            let blocks = max_cached.checked_mul(block)?.checked_div(page_size)?;
            rows.div_ceil(page_size).checked_add(blocks)
        };
        count().ok_or(Error::SpecRange { name: "max_pages", got: usize::MAX, min: 0, max: usize::MAX - 1 })
    }

    /// Checks everything against a cache.
    pub(crate) fn check(&self, spec: &CacheSpec) -> Result<(), Error> {
        let Self { init, local, block, topk, repr_topk, max_cached, num_repeat, .. } = *self;
        let Mode::Paged { page_size } = spec.mode else { return Err(Error::NotPaged) };
        let slots = spec.geometry.max_t;
        let range = Error::check_spec;
        for (name, got, min) in [("init", init, 0), ("local", local, page_size), ("block", block, page_size)] {
            range(name, got, min, slots)?;
            if !got.is_multiple_of(page_size) {
                return Err(Error::Multiple { name, got, page_size });
            }
        }
        if self.score != BlockScore::None && spec.rows().has_static_scales() {
            return Err(Error::StaticScales);
        }
        let topk_range = if self.has_blocks() { (1, slots / block) } else { (0, 0) };
        range("topk", topk, topk_range.0, topk_range.1)?;
        range("max_cached", max_cached, topk, slots / block)?;
        range("repr_topk", repr_topk, 1, block)?;
        range("num_repeat", num_repeat, 1, (usize::MAX >> 1) / spec.geometry.num_heads)?;
        let fraction = |name, got: f32, legal: bool| {
            if legal { Ok(()) } else { Err(Error::Fraction { name, got: f64::from(got) }) }
        };
        fraction("alpha", self.alpha, self.alpha > 0.0 && self.alpha <= 1.0)?;
        if let Eviction::Decayed { decay } = self.eviction {
            fraction("decay", decay, (0.0..=1.0).contains(&decay))?;
        }
        match self.positions {
            FarPositions::TrueDistance => Ok(()),
            FarPositions::FarConstant if spec.key_form == KeyForm::PreRope => Ok(()),
            FarPositions::FarConstant => Err(Error::RotatedKeys),
            FarPositions::FarFixed { n_ctx } => {
                // Slots of a cache, so the sum does not overflow: one step of one token, and a shift moves rows.
                range("n_ctx", n_ctx, init + 2 * block + local, crate::sequences::positions::MAX_POSITION as usize)?;
                match spec.not_shiftable().filter(|_| spec.key_form == KeyForm::Roped) {
                    Some(why) => Err(Error::NotShiftable { why }),
                    None => Ok(()),
                }
            }
        }
    }
}
