//! What the outputs of a checked call must be, and the call with them.

use kvcache_kernels::{Geometry, Problem, Stores};
use kvcache_schema::{ElementType, OUTPUTS};

use super::extents::{self, Extents};
use super::shapes;
use super::types::equal_type;
use crate::error::Error;
use crate::operands::Outputs;
use crate::tensor::TensorMut;

#[derive(Debug, Clone, Copy)]
pub(crate) struct ExpectedOutputs<const RANK: usize> {
    pub(crate) num_repeat: usize,
    pub(crate) shape: [usize; RANK],
    /// What decides the shape.
    reason: &'static str,
}

impl ExpectedOutputs<3> {
    /// The outputs of dynamic batching, of a size that fits.
    pub(crate) fn new(geometry: &Geometry, num_repeat: usize, total_kvlen: usize) -> Result<Self, Error> {
        let shape = |heads| [total_kvlen, heads, geometry.head_dim];
        Self::of(geometry, num_repeat, shape, "the shape (kvstarts[B], H * num_repeat, Dh) of this call")
    }
}

impl<const RANK: usize> ExpectedOutputs<RANK> {
    /// Outputs of the shape that they have with so many heads, if their size fits.
    pub(crate) fn of(
        geometry: &Geometry,
        num_repeat: usize,
        shape: impl Fn(usize) -> [usize; RANK],
        reason: &'static str,
    ) -> Result<Self, Error> {
        let heads = geometry.num_heads.checked_mul(num_repeat).ok_or_else(|| {
            let mut unmultiplied = shape(geometry.num_heads).to_vec();
            unmultiplied.insert(RANK - 1, num_repeat);
            extents::overflow("key", &unmultiplied[..].into())
        })?;
        let shape = shape(heads);
        extents::bytes("key", geometry.t1, &shape.into())?;
        Ok(Self { num_repeat, shape, reason })
    }

    /// Checks type, shape and memory of outputs: they share none with the other tensors of the call.
    pub(crate) fn check(
        &self,
        t1: ElementType,
        mut extents: Extents,
        outputs: [&TensorMut<'_>; 2],
    ) -> Result<(), Error> {
        for (name, output) in OUTPUTS.into_iter().zip(outputs) {
            equal_type(name, output.element, t1)?;
            shapes::equal(name, &output.shape, &self.shape, self.reason)?;
            extents.write(name, output.into())?;
        }
        Ok(())
    }

    /// The call with its outputs, which are checked here.
    pub(crate) fn problem<'a>(
        &self,
        stores: Stores<'a>,
        extents: Extents,
        Outputs { key, value }: Outputs<'a>,
    ) -> Result<Problem<'a>, Error> {
        self.check(stores.geometry().t1, extents, [&key, &value])?;
        let outputs = kvcache_kernels::Outputs { num_repeat: self.num_repeat, pointers: [key.data, value.data] };
        // SAFETY: type, shape, alignment and overlap have been checked above; the memory is valid for writes for 'a, as
        // a slice or by `from_raw_parts`, and borrowed so that nobody else accesses it.
        Ok(unsafe { Problem::assume_checked(stores, outputs) })
    }
}
