//! The operator: attributes in, calls out.

use std::mem::MaybeUninit;

use kvcache_kernels::Workers;
use kvcache_schema::{Attributes, ElementType, shape};
use ndarray::Array3;

use crate::attributes::Config;
use crate::backend::Backend;
use crate::call::Call;
use crate::error::Error;
use crate::infer::{self, Dim, InputDims};
use crate::inputs::{IndexInputs, Inputs};
use crate::layers::Layers;
use crate::tensor::{Element, TensorMut};
use crate::validate;

/// The operator `dynamic_batching.KeyValueCache` with checked attributes.
///
/// It holds no other state and can be used by several threads at once.
#[derive(Debug, Clone)]
pub struct KeyValueCache {
    attributes: Attributes,
    config: Config,
    backend: Backend,
}

/// The operator's outputs, in memory of the caller.
#[derive(Debug)]
pub struct Outputs<'a> {
    /// T1, shape (`kvstarts[B]`, H * `num_repeat`, Dh).
    pub key: TensorMut<'a>,
    /// T1, shape (`kvstarts[B]`, H * `num_repeat`, Dh).
    pub value: TensorMut<'a>,
}

impl KeyValueCache {
    /// The operator with these attributes, on the fast CPU kernel.
    ///
    /// # Errors
    /// [`Error::AttributeOutOfRange`].
    pub fn new(attributes: Attributes) -> Result<Self, Error> {
        Ok(Self { config: Config::new(&attributes)?, attributes, backend: Backend::default() })
    }

    /// The same operator on another kernel.
    #[must_use]
    pub fn with_backend(self, backend: Backend) -> Self {
        Self { backend, ..self }
    }

    /// The attributes as they were checked.
    #[cfg(feature = "cuda")]
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// The attributes that the operator was made with.
    pub fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    /// Checks whether the types of the inputs that are not indices go together; a graph executor can ask at load.
    ///
    /// # Errors
    /// [`Error::IllegalTypes`], [`Error::ScaleMissing`], [`Error::TypeMismatch`].
    pub fn check_types(
        &self,
        current_key: ElementType,
        current_value: ElementType,
        cache: ElementType,
        scale: Option<ElementType>,
    ) -> Result<(), Error> {
        validate::types(self.attributes.quant_bit, current_key, current_value, cache, scale)
    }

    /// The shape of `key` and of `value`, as far as it is known before a call.
    pub fn infer_shape(&self, inputs: &InputDims<'_>) -> [Dim; 3] {
        infer::infer(&self.config, inputs)
    }

    /// Checks a call; nothing is written yet. [`Call::output_shape`] is then known, and [`Call::run`] does the work.
    ///
    /// # Errors
    /// Every [`Error`] that concerns the inputs, `cache` or `scale`.
    pub fn check<'a>(
        &self,
        inputs: &Inputs<'a>,
        cache: TensorMut<'a>,
        scale: Option<TensorMut<'a>>,
    ) -> Result<Call<'a>, Error> {
        self.check_types(
            inputs.current_key.element,
            inputs.current_value.element,
            cache.element,
            scale.as_ref().map(|scale| scale.element),
        )?;
        let Inputs { current_key, current_value, indices } = inputs;
        let current = Some([current_key, current_value]);
        validate::call(&self.config, self.backend, current_key.element, current, indices, &cache, scale.as_ref())
    }

    /// Checks what the calls of all layers of one step have in common: indices, cache and scale; `t1` is the type of each
    /// layer's `current_key` and `current_value`. The attribute `layer_idx` is not used; [`Layers::layer`] makes the call of
    /// one layer, and checks what is its own.
    ///
    /// # Errors
    /// Every [`Error`] that concerns the index inputs, `cache` or `scale`. Where `current_key` would decide, `cache` does.
    pub fn check_layers<'a>(
        &self,
        t1: ElementType,
        indices: &IndexInputs<'a>,
        cache: TensorMut<'a>,
        scale: Option<TensorMut<'a>>,
    ) -> Result<Layers<'a>, Error> {
        self.check_types(t1, t1, cache.element, scale.as_ref().map(|scale| scale.element))?;
        let call = validate::call(&self.config, self.backend, t1, None, indices, &cache, scale.as_ref())?;
        Ok(Layers { num_layer: self.config.num_layer, call })
    }

    /// Stores the current tokens into `cache`, then writes all tokens of all sequences to `outputs`. Allocates nothing
    /// for usual batches.
    ///
    /// # Errors
    /// Any [`Error`]; nothing has then been written.
    pub fn run<'a>(
        &self,
        inputs: &Inputs<'a>,
        cache: TensorMut<'a>,
        scale: Option<TensorMut<'a>>,
        outputs: Outputs<'a>,
        workers: &dyn Workers,
    ) -> Result<(), Error> {
        self.check(inputs, cache, scale)?.run(outputs, workers)
    }

    /// As [`run`](Self::run), with outputs allocated here: `key` and `value`, of the type of `current_key`.
    ///
    /// # Errors
    /// Any [`Error`]; nothing has then been written.
    pub fn run_alloc<'a, T: Element>(
        &self,
        inputs: &Inputs<'a>,
        cache: TensorMut<'a>,
        scale: Option<TensorMut<'a>>,
        workers: &dyn Workers,
    ) -> Result<(Array3<T>, Array3<T>), Error> {
        let call = self.check(inputs, cache, scale)?;
        let shape = call.output_shape();
        let (mut key, mut value) = (allocate::<T>("key", shape)?, allocate::<T>("value", shape)?);
        // SAFETY: both are fresh arrays of T in row-major order, borrowed only by this call; outputs are not read.
        let outputs = unsafe {
            Outputs {
                key: TensorMut::from_raw_parts(T::TYPE, shape, key.as_mut_ptr().cast()),
                value: TensorMut::from_raw_parts(T::TYPE, shape, value.as_mut_ptr().cast()),
            }
        };
        call.run(outputs, workers)?;
        // SAFETY: a successful call has written every element of both outputs.
        Ok(unsafe { (key.assume_init(), value.assume_init()) })
    }
}

/// An output of this shape, not yet written. Sizes come from the caller, so a lack of memory is an error and no abort.
fn allocate<T>(output: &'static str, shape: [usize; 3]) -> Result<Array3<MaybeUninit<T>>, Error> {
    let out_of_memory = || Error::OutOfMemory { output, shape: shape.into() };
    let len = shape::elements(&shape).ok_or_else(out_of_memory)?;
    let mut elements = Vec::new();
    elements.try_reserve_exact(len).map_err(|_| out_of_memory())?;
    // SAFETY: there is room for so many, and elements that may be uninitialized need no more.
    unsafe { elements.set_len(len) };
    Array3::from_shape_vec(shape, elements).map_err(|_| out_of_memory())
}
