//! The types of a cache, and what a script's cache is to a manager and to the model.

use kvcache_manager::schema::{ElementType, QuantBit};
use kvcache_manager::{CacheSpec, CacheSpecBuilder, Geometry, KeyForm, Mode, Rope};

use crate::manager::rows::{RowFormat, default_shift_limit};
use crate::manager::run::{HEAD_DIM, NUM_HEADS, NUM_LAYER};
use crate::manager::script::Cache;
use crate::manager::sequences::Rules;

/// Every type of a cache and its scales; without scales the first two are not used.
pub const TYPES: [(QuantBit, usize, Option<ElementType>, ElementType); 8] = {
    use ElementType::{Float8E4M3Fn, Float16, Float32, Int4, Int8};
    [
        (QuantBit::Eight, 0, None, Float32),
        (QuantBit::Eight, 0, None, Float16),
        (QuantBit::Eight, 0, None, Int8),
        (QuantBit::Eight, 2, Some(Float32), Int8),
        (QuantBit::Eight, 4, Some(Float16), Int8),
        (QuantBit::Four, 4, Some(Float32), Int4),
        (QuantBit::Four, 2, Some(Float16), Int4),
        (QuantBit::Float8, 4, Some(Float16), Float8E4M3Fn),
    ]
};

pub fn with_types(builder: CacheSpecBuilder, types: usize) -> CacheSpecBuilder {
    let (bit, group, scale_type, cache_type) = TYPES[types];
    match scale_type {
        Some(scale_type) => builder.quantized(bit, group, scale_type),
        None => builder.cache_type(cache_type),
    }
}

impl Cache {
    pub fn page_size(&self) -> usize {
        if let Mode::Paged { page_size } = self.mode { page_size } else { 1 }
    }

    pub fn paged(&self) -> bool {
        matches!(self.mode, Mode::Paged { .. })
    }

    pub fn spec(&self) -> CacheSpec {
        let geometry = Geometry { num_layer: NUM_LAYER, num_heads: NUM_HEADS, head_dim: HEAD_DIM, max_t: self.max_t };
        let mut builder = with_types(CacheSpec::builder(geometry).layout(self.layout), self.types)
            .mode(self.mode)
            .prefix_sharing(self.prefix_sharing)
            .key_form(if self.raw { KeyForm::Raw } else { KeyForm::Roped })
            .pad(self.pad);
        if let Some(max_pages) = self.max_pages {
            builder = builder.max_pages(max_pages);
        }
        if let Some(turns) = self.turns {
            let rope = if turns.neox { Rope::neox } else { Rope::gptj };
            builder = builder.rope(rope(turns.n_rot, turns.base).scaled(turns.scale));
        }
        if let Some(window) = self.window {
            builder = builder.window(window.width).sink(window.sink).slack(window.slack);
        }
        if let Some(threshold) = self.defrag_threshold {
            builder = builder.defrag_threshold(threshold);
        }
        if let Some(limit) = self.shift_limit {
            builder = builder.shift_limit(limit);
        }
        builder.build().unwrap()
    }

    pub fn rules(&self) -> Rules {
        Rules {
            format: RowFormat { num_layer: NUM_LAYER, num_heads: NUM_HEADS, head_dim: HEAD_DIM, types: self.types },
            page_size: self.page_size(),
            window: self.window,
            raw: self.raw,
            turns: self.turns,
            shift_limit: self.shift_limit.unwrap_or(default_shift_limit(self.types)),
        }
    }
}
