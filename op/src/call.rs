//! A checked call, waiting for its outputs.

use kvcache_kernels::{Problem, Workers};

use crate::backend::Backend;
use crate::error::Error;
use crate::tensor::TensorMut;
use crate::validate::CheckedCall;

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
    pub(crate) checked: CheckedCall<'a>,
}

impl<'a> Call<'a> {
    /// The shape of `key` and of `value`: (`kvstarts[B]`, H * `num_repeat`, Dh).
    pub fn output_shape(&self) -> [usize; 3] {
        self.checked.output_shape
    }

    /// Stores the current tokens into the cache, then writes all tokens of all sequences to `outputs`, on the threads of
    /// `workers`.
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
    /// As for [`run`](Self::run).
    pub fn bind(self, outputs: Outputs<'a>) -> Result<Problem<'a>, Error> {
        let CheckedCall { geometry, indices, .. } = self.checked;
        let pointers = self.checked.pointers(&outputs.key, &outputs.value)?;
        // SAFETY: types, shapes, indices, alignment and overlap are those of a `CheckedCall` and of outputs that it has just
        // checked; each tensor's memory is valid for 'a, as a slice or by `from_raw_parts`, for reads or writes of its shape,
        // and borrowed so that no other call writes it. `Call`s come from `check` and `Layers::layer`, which have checked
        // current tokens.
        Ok(unsafe { Problem::assume_checked(geometry, indices, pointers) })
    }
}
