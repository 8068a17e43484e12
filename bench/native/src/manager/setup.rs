//! What the cases have in common: small specifications, a memory without bytes, steps.

use kvcache_manager::schema::ElementType;
use kvcache_manager::{Append, CacheMemory, CacheSpec, CacheSpecBuilder, Geometry, Manager, MemoryError, Mode, RowCopy};

/// A memory that moves nothing, for what the manager itself costs.
pub(crate) struct NoBytes;

impl CacheMemory for NoBytes {
    fn copy_rows(&mut self, _: &[RowCopy]) -> Result<(), MemoryError> {
        Ok(())
    }
}

/// A paged cache of so many slots, whose bytes do not matter.
pub(crate) fn paged(max_t: usize, page_size: usize) -> CacheSpecBuilder {
    let geometry = Geometry { num_layer: 1, num_heads: 1, head_dim: 2, max_t };
    CacheSpec::builder(geometry).cache_type(ElementType::Float32).mode(Mode::Paged { page_size })
}

/// One step, without bytes.
///
/// # Errors
/// If the manager refuses it.
pub(crate) fn step(manager: &mut Manager, appends: &[Append<'_>]) -> Result<(), String> {
    manager.begin_step(appends).and_then(|planned| planned.apply(&mut NoBytes)).map_err(text)?.commit();
    Ok(())
}

/// An error's text.
pub(crate) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Numbers that look random: SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// Puts elements in another order.
    pub(crate) fn shuffle<T>(&mut self, elements: &mut [T]) {
        for i in (1..elements.len()).rev() {
            elements.swap(i, self.below(i + 1));
        }
    }
}
