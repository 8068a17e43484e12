//! A checked call, waiting for its outputs; and the calls of all layers of one step, with indices that are checked once.

use kvcache_kernels::{Problem, Workers};

use crate::backend::Backend;
use crate::error::Error;
use crate::operands::Outputs;
use crate::tensor::TensorRef;
use crate::validate::{CheckedStores, ExpectedOutputs};

/// A call whose inputs, cache and scale have been checked, and which has written nothing yet.
#[derive(Debug)]
pub struct Call<'a> {
    pub(crate) backend: Backend,
    pub(crate) checked: CheckedStores<'a>,
    pub(crate) outputs: ExpectedOutputs,
}

impl<'a> Call<'a> {
    /// The shape of `key` and of `value`: (`kvstarts[B]`, H * `num_repeat`, Dh).
    pub fn output_shape(&self) -> [usize; 3] {
        output_shape(&self.checked, &self.outputs)
    }

    /// Stores the current tokens into the cache, then writes all tokens of all sequences to `outputs`, on the threads
    /// of `workers`.
    ///
    /// # Errors
    /// An [`Error`] that concerns `key` or `value`; nothing has then been written.
    pub fn run(self, outputs: Outputs<'a>, workers: &dyn Workers) -> Result<(), Error> {
        let backend = self.backend;
        backend.kernel().run(&mut self.bind(outputs)?, workers);
        Ok(())
    }

    /// The call with its outputs, ready for a kernel: for callers that drive one themselves, phase by phase.
    ///
    /// # Errors
    /// An [`Error`] that concerns `key` or `value`.
    pub fn bind(self, outputs: Outputs<'a>) -> Result<Problem<'a>, Error> {
        self.outputs.problem(self.checked.stores, self.checked.aliases, outputs)
    }
}

/// The calls of all layers of one step: their indices, cache and scale have been checked, and nothing is written yet. A
/// step gives every layer the same indices and the same cache, so a model that runs layer by layer has them checked
/// once.
///
/// ```
/// use kvcache_op::{Attributes, ElementType, IndexInputs, KeyValueCache, Outputs, Serial};
/// use ndarray::{Array3, Array5};
///
/// # fn main() -> Result<(), kvcache_op::Error> {
/// let op = KeyValueCache::new(Attributes { num_layer: 2, ..Attributes::default() })?;
/// let mut cache = Array5::<f32>::zeros((1024, 2, 2, 8, 64)); // (MaxT, L, 2, H, Dh): cache_layout 0
/// let indices = IndexInputs {
///     seqstarts: (&[0, 2, 3]).into(),
///     kvstarts: (&[0, 2, 13]).into(),
///     cachestarts: (&[0, 512]).into(),
///     start_pos: (&[0, 10]).into(),
///     max_seqlen: (&2).into(),
///     max_kvlen: (&11).into(),
/// };
/// let mut layers = op.check_layers(ElementType::Float32, &indices, (&mut cache).into(), None)?;
/// let mut key = Array3::<f32>::zeros(layers.output_shape());
/// let mut value = key.clone();
/// for layer_idx in 0..2 {
///     let current = Array3::<f32>::from_elem((3, 8, 64), layer_idx as f32); // from this layer's projections
///     let outputs = Outputs { key: (&mut key).into(), value: (&mut value).into() };
///     layers.layer(layer_idx, &(&current).into(), &(&current).into())?.run(outputs, &Serial)?;
///     assert_eq!(value[[12, 7, 63]], layer_idx as f32);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Layers<'a> {
    pub(crate) num_layer: usize,
    pub(crate) backend: Backend,
    /// The stores of any layer, of which the current tokens are missing.
    pub(crate) checked: CheckedStores<'a>,
    pub(crate) outputs: ExpectedOutputs,
}

impl Layers<'_> {
    /// The shape of each layer's `key` and `value`: (`kvstarts[B]`, H * `num_repeat`, Dh).
    pub fn output_shape(&self) -> [usize; 3] {
        output_shape(&self.checked, &self.outputs)
    }

    /// The call of one layer; nothing is written yet. `current_key` and `current_value` are of type T1 and shape
    /// (`seqstarts[B]`, H, Dh). Layers can be called in any order, repeatedly, one at a time.
    ///
    /// # Errors
    /// [`Error::AttributeOutOfRange`] for a layer that the cache does not have, and every [`Error`] that concerns
    /// `current_key` or `current_value`.
    pub fn layer<'c>(
        &'c mut self,
        layer_idx: usize,
        current_key: &TensorRef<'c>,
        current_value: &TensorRef<'c>,
    ) -> Result<Call<'c>, Error> {
        let checked = self.checked.layer(self.num_layer, layer_idx, [current_key, current_value])?;
        Ok(Call { backend: self.backend, checked, outputs: self.outputs.clone() })
    }
}

fn output_shape(checked: &CheckedStores<'_>, outputs: &ExpectedOutputs) -> [usize; 3] {
    [checked.stores.total_kvlen(), outputs.heads, checked.stores.geometry().head_dim]
}
