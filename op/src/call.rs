//! A checked call, waiting for its outputs.

use kvcache_kernels::{Geometry, Indices, Pointers, Problem, Workers};

use crate::backend::Backend;
use crate::error::Error;
use crate::operator::Outputs;
use crate::validate::{self, Extents};

/// A call whose inputs, cache and scale have been checked, and which has written nothing yet.
#[derive(Debug)]
pub struct Call<'a> {
    pub(crate) backend: Backend,
    pub(crate) geometry: Geometry,
    pub(crate) indices: Indices<'a>,
    pub(crate) current: [*const u8; 2],
    pub(crate) cache: *mut u8,
    pub(crate) scale: *mut u8,
    /// The memory of everything checked so far.
    pub(crate) extents: Extents,
    pub(crate) output_shape: [usize; 3],
}

impl<'a> Call<'a> {
    /// The shape of `key` and of `value`: (`kvstarts[B]`, H * `num_repeat`, Dh).
    pub fn output_shape(&self) -> [usize; 3] {
        self.output_shape
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
        let both = [&outputs.key, &outputs.value];
        validate::outputs(self.geometry.t1, self.output_shape, self.extents, both)?;
        let pointers = Pointers {
            current: self.current,
            cache: self.cache,
            scale: self.scale,
            outputs: [outputs.key.data, outputs.value.data],
        };
        // SAFETY: `validate` has checked types, shapes, indices, alignment and overlap; the tensors promise valid memory
        // of their shapes for 'a, and that nobody else touches what the call writes.
        Ok(unsafe { Problem::assume_checked(self.geometry, self.indices, pointers) })
    }
}
