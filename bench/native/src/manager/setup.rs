//! What the cases have in common: small specifications, a memory without bytes, steps.

use kvcache_manager::schema::ElementType;
use kvcache_manager::{
    Append, CacheMemory, CacheSpec, CacheSpecBuilder, Geometry, Manager, MemoryError, Mode, Rope, Rotation, RowCopy,
};

/// A memory that moves nothing, for what the manager itself costs. It keeps the copies that it is asked for.
#[derive(Default)]
pub(crate) struct NoBytes(pub(crate) Vec<RowCopy>);

impl CacheMemory for NoBytes {
    fn copy_rows(&mut self, copies: &[RowCopy]) -> Result<(), MemoryError> {
        self.0.extend_from_slice(copies);
        Ok(())
    }

    fn rotate_keys(&mut self, _: &[Rotation], _: &Rope) -> Result<(), MemoryError> {
        Err("there are no keys".into())
    }

    fn read_rows(&self, _: &[usize], _: &mut [u8]) -> Result<(), MemoryError> {
        Err("there are no rows".into())
    }

    fn write_rows(&mut self, _: &[usize], _: &[u8]) -> Result<(), MemoryError> {
        Err("there are no rows".into())
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
    manager.begin_step(appends).and_then(|planned| planned.apply(&mut NoBytes::default())).map_err(text)?.commit();
    Ok(())
}

/// An error's text.
pub(crate) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
