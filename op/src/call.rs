//! A checked call, waiting for its outputs.

use kvcache_kernels::{Problem, Workers};

use crate::backend::Backend;
use crate::error::Error;
use crate::tensor::TensorMut;
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
