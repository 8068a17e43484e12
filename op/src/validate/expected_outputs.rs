//! What the outputs of a checked call must be, and the call with them.

use kvcache_kernels::{Geometry, Problem, Stores};
use kvcache_schema::{ElementType, OUTPUTS};

use super::alias_check::{self, AliasCheck};
use super::shapes;
use super::types::equal_type;
use crate::error::Error;
use crate::operands::Outputs;
use crate::tensor::{Shape, TensorMut};

/// What the outputs of a call must be.
#[derive(Debug, Clone)]
pub(crate) struct ExpectedOutputs {
    pub(crate) num_repeat: usize,
    /// Output heads: H * `num_repeat`.
    pub(crate) heads: usize,
    pub(crate) shape: Shape,
    /// What decides the shape.
    reason: &'static str,
}

impl ExpectedOutputs {
    /// The outputs of dynamic batching, if their size fits.
    pub(crate) fn new(geometry: &Geometry, num_repeat: usize, total_kvlen: usize) -> Result<Self, Error> {
        let reason = "the shape (kvstarts[B], H * num_repeat, Dh) of this call";
        Self::of_rows(geometry, num_repeat, &[total_kvlen], reason)
    }

    /// Outputs with these axes before that of heads, if their size fits.
    pub(crate) fn of_rows(
        geometry: &Geometry,
        num_repeat: usize,
        rows: &[usize],
        reason: &'static str,
    ) -> Result<Self, Error> {
        let &Geometry { num_heads, head_dim, t1, .. } = geometry;
        let shape = |heads: &[usize]| Shape::from_iter(rows.iter().chain(heads).copied().chain([head_dim]));
        let heads = num_heads
            .checked_mul(num_repeat)
            .ok_or_else(|| alias_check::overflow("key", &shape(&[num_heads, num_repeat])))?;
        let shape = shape(&[heads]);
        alias_check::bytes("key", t1, &shape)?;
        Ok(Self { num_repeat, heads, shape, reason })
    }

    /// Checks type, shape and memory of outputs: they share none with the other tensors of the call.
    pub(crate) fn check(
        &self,
        t1: ElementType,
        mut aliases: AliasCheck,
        outputs: [&TensorMut<'_>; 2],
    ) -> Result<(), Error> {
        for (name, output) in OUTPUTS.into_iter().zip(outputs) {
            equal_type(name, output.element, t1)?;
            shapes::equal(name, &output.shape, &self.shape, self.reason)?;
            aliases.write(name, output.into())?;
        }
        Ok(())
    }

    /// The call with its outputs, which are checked here.
    pub(crate) fn problem<'a>(
        &self,
        stores: Stores<'a>,
        aliases: AliasCheck,
        Outputs { key, value }: Outputs<'a>,
    ) -> Result<Problem<'a>, Error> {
        self.check(stores.geometry().t1, aliases, [&key, &value])?;
        let outputs = kvcache_kernels::Outputs { num_repeat: self.num_repeat, pointers: [key.data, value.data] };
        // SAFETY: type, shape, alignment and overlap have been checked above; the memory is valid for writes for 'a, as
        // a slice or by `from_raw_parts`, and borrowed so that nobody else accesses it.
        Ok(unsafe { Problem::assume_checked(stores, outputs) })
    }
}
