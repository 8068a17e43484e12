//! The types of a cache.

use kvcache_manager::CacheSpecBuilder;
use kvcache_manager::schema::{ElementType, QuantBit};

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
