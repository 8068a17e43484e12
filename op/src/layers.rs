//! The calls of all layers of one step, with indices that are checked once.

use kvcache_kernels::Stores;
use kvcache_schema::ElementType;

use crate::backend::Backends;
use crate::checked::{Checked, ExpectedOutputs, Work};
use crate::config::{self, Config};
use crate::error::Error;
use crate::operands::{Guards, IndexInputs, Operand};
use crate::tensor::{TensorMut, TensorRef};
use crate::validate::stores::{CURRENT, CheckedStores, StoreInputs, stores};
use crate::validate::{AliasCheck, equal_type, shapes};

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
    pub(crate) backends: Backends,
    pub(crate) step: StepStores<'a>,
    pub(crate) num_repeat: usize,
    pub(crate) outputs: ExpectedOutputs,
}

impl Layers<'_> {
    /// The shape of each layer's `key` and `value`: (`kvstarts[B]`, H * `num_repeat`, Dh).
    pub fn output_shape(&self) -> [usize; 3] {
        self.outputs[0].shape[..].try_into().expect("the outputs of dynamic batching have rank 3")
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
    ) -> Result<Checked<'c>, Error> {
        let (stores, aliases) = self.step.layer(layer_idx, [current_key, current_value])?;
        let checked = (Work::Stores { stores, num_repeat: self.num_repeat }, self.outputs.clone(), aliases);
        Ok(Checked::new(self.backends, checked, Guards::default()))
    }
}

/// The stores of any layer of a step, of which the current tokens are missing.
#[derive(Debug)]
pub(crate) struct StepStores<'a> {
    pub(crate) num_layer: usize,
    pub(crate) stores: Stores<'a>,
    /// The memory of every tensor checked so far.
    pub(crate) aliases: AliasCheck,
}

impl<'a> StepStores<'a> {
    /// Checks what the layers of a step, all on the host, have in common. The types of `cache` and `scale` go together
    /// with T1.
    pub(crate) fn check(
        config: &Config,
        t1: ElementType,
        indices: &IndexInputs<'a>,
        cache: TensorMut<'a>,
        scale: Option<TensorMut<'a>>,
    ) -> Result<Self, Error> {
        let (indices, _) = indices.clone().operands();
        let state = [Some(cache.into()), scale.map(Operand::from)];
        let (indices, state) = (indices.each_ref().map(Option::as_ref), state.each_ref().map(Option::as_ref));
        let inputs = StoreInputs::new(None, indices, state, None)?;
        inputs.check_index_types()?;
        match stores(config, t1, inputs)? {
            (CheckedStores::Host(stores), aliases) => Ok(Self { num_layer: config.cache.num_layer, stores, aliases }),
            #[cfg(feature = "cuda")]
            (CheckedStores::Device(_), _) => unreachable!("tensors of the host"),
        }
    }

    /// The stores of one layer, with the current tokens of the layer, which are checked here; and the memory of all.
    pub(crate) fn layer<'c>(
        &'c mut self,
        layer_idx: usize,
        current: [&TensorRef<'c>; 2],
    ) -> Result<(Stores<'c>, AliasCheck), Error> {
        let geometry = self.stores.geometry();
        let expected = [self.stores.total_seqlen(), geometry.num_heads, geometry.head_dim];
        config::layer_idx(layer_idx, self.num_layer)?;
        for (name, tensor) in CURRENT.into_iter().zip(current) {
            equal_type(name, tensor.element, geometry.t1)?;
            shapes::equal(name, &tensor.shape, &expected, "the shape (seqstarts[B], H, Dh) of this call")?;
        }
        let mut aliases = self.aliases.clone();
        for (name, tensor) in CURRENT.into_iter().zip(current) {
            aliases.read(name, tensor)?;
        }
        // SAFETY: the cache has `num_layer` layers, and this one is among them, checked above. The current tokens have
        // been checked, and their memory is valid for reads for 'c, as `TensorRef`s.
        Ok((unsafe { self.stores.layer(layer_idx, current.map(|tensor| tensor.data)) }, aliases))
    }
}
