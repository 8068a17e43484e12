//! A checked call, waiting for its outputs.

use std::mem::MaybeUninit;

use kvcache_kernels::{Problem, Workers};
use kvcache_schema::shape;
use ndarray::{Array, IntoDimension};

use crate::backend::Backend;
use crate::error::Error;
use crate::tensor::{Element, Shape, TensorMut};
use crate::validate::{CheckedStores, ExpectedOutputs};

/// The operator's outputs, in memory of the caller.
#[derive(Debug)]
pub struct Outputs<'a> {
    /// T1, shape (`kvstarts[B]`, H * `num_repeat`, Dh).
    pub key: TensorMut<'a>,
    /// T1, shape (`kvstarts[B]`, H * `num_repeat`, Dh).
    pub value: TensorMut<'a>,
}

/// A call whose inputs, cache and scale have been checked, and which has written nothing yet.
#[derive(Debug)]
pub struct Call<'a> {
    pub(crate) backend: Backend,
    pub(crate) checked: CheckedStores<'a>,
    pub(crate) outputs: ExpectedOutputs<3>,
}

impl<'a> Call<'a> {
    /// The shape of `key` and of `value`: (`kvstarts[B]`, H * `num_repeat`, Dh).
    pub fn output_shape(&self) -> [usize; 3] {
        self.outputs.shape
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
        self.outputs.problem(self.checked.stores, self.checked.extents, outputs)
    }
}

/// Outputs of this shape and of type T that are allocated here, which `run` writes.
pub(crate) fn run_alloc<T: Element, S: IntoDimension + Into<Shape> + AsRef<[usize]> + Copy>(
    shape: S,
    run: impl FnOnce(Outputs<'_>) -> Result<(), Error>,
) -> Result<(Array<T, S::Dim>, Array<T, S::Dim>), Error> {
    let (mut key, mut value) = (allocate::<T, _>("key", shape)?, allocate::<T, _>("value", shape)?);
    // SAFETY: both are new arrays of `shape` elements of T in row-major order, used by nothing else until the call is
    // over; a call writes outputs and does not read them.
    let outputs = unsafe {
        Outputs {
            key: TensorMut::from_raw_parts(T::TYPE, shape, key.as_mut_ptr().cast()),
            value: TensorMut::from_raw_parts(T::TYPE, shape, value.as_mut_ptr().cast()),
        }
    };
    run(outputs)?;
    // SAFETY: `run` has returned `Ok`, so it has written every element of both outputs.
    Ok(unsafe { (key.assume_init(), value.assume_init()) })
}

/// An output of this shape, uninitialized. Its size is the caller's, so a failed allocation is an error, not an abort.
pub(crate) fn allocate<T, S>(output: &'static str, shape: S) -> Result<Array<MaybeUninit<T>, S::Dim>, Error>
where
    S: IntoDimension + AsRef<[usize]> + Copy,
{
    let out_of_memory = || Error::OutOfMemory { output, shape: shape.as_ref().into() };
    let len = shape::elements(shape.as_ref()).ok_or_else(out_of_memory)?;
    let mut elements = Vec::new();
    elements.try_reserve_exact(len).map_err(|_| out_of_memory())?;
    // SAFETY: `try_reserve_exact` has made room for `len` elements, and a `MaybeUninit` needs no value.
    unsafe { elements.set_len(len) };
    Array::from_shape_vec(shape.into_dimension(), elements).map_err(|_| out_of_memory())
}
