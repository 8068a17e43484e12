//! The calls of all layers of one step, whose sequences and cache are checked once.

use std::marker::PhantomData;

use super::checked_sequences::CheckedCall;
use super::static_call::StaticCall;
use crate::backend::Backend;
use crate::error::Error;
use crate::tensor::TensorRef;

/// The calls of all layers of one step of static batching: their sequences, cache and scale have been checked, and
/// nothing is written yet.
#[derive(Debug)]
pub struct StaticLayers<'a> {
    num_layer: usize,
    backend: Backend,
    /// The call of any layer, of which the current tokens are missing.
    checked: CheckedCall,
    memory: PhantomData<&'a mut [u8]>,
}

impl<'a> StaticLayers<'a> {
    /// The layers of a checked call whose cache and scale are borrowed for `'a`.
    pub(super) fn new(num_layer: usize, backend: Backend, checked: CheckedCall) -> Self {
        Self { num_layer, backend, checked, memory: PhantomData }
    }

    /// The shape of each layer's `key` and `value`: (B, `start_pos` + S, H * `num_repeat`, Dh).
    pub fn output_shape(&self) -> [usize; 4] {
        self.checked.outputs.shape
    }

    /// The call of one layer; nothing is written yet. `current_key` and `current_value` are of type T1 and shape
    /// (B, S, H, Dh). Layers can be called in any order, again too, and one at a time.
    ///
    /// # Errors
    /// [`Error::AttributeOutOfRange`] for a layer that the cache does not have, and every [`Error`] that concerns
    /// `current_key` or `current_value`.
    pub fn layer<'c>(
        &'c mut self,
        layer_idx: usize,
        current_key: &TensorRef<'c>,
        current_value: &TensorRef<'c>,
    ) -> Result<StaticCall<'c>, Error> {
        let checked = self.checked.layer(self.num_layer, layer_idx, [current_key, current_value])?;
        Ok(StaticCall::new(self.backend, checked))
    }
}
