//! One call of `MultiHeadCacheAttention` in the caller's memory.

use kvcache_op::{
    AttentionAttributes, AttentionCall, Attributes, CacheAttentionAttributes, CacheAttentionInputs, Error, IndexInputs,
    Inputs, MultiHeadCacheAttention, Workers,
};

use crate::call::Tensor;
use crate::description::TensorDescription;

/// A call as the caller describes it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct AttentionDescription {
    /// The attributes: those of the attention, then `KeyValueCache`'s in their order but `num_repeat`.
    pub attributes: [i64; 12],
    /// The thirteen inputs in the specification's order, then `attn_output`.
    pub tensors: [TensorDescription; 14],
}

/// An operator with all tensors of a call, which may be made again and again.
pub struct BoundAttention {
    op: MultiHeadCacheAttention,
    inputs: CacheAttentionInputs<'static>,
    cache: Tensor,
    scale: Option<Tensor>,
    output: Tensor,
}

impl BoundAttention {
    /// The call that `description` describes, on the default kernels.
    ///
    /// # Errors
    /// If a number stands for nothing, or the operator would refuse the call.
    ///
    /// # Safety
    /// As long as the call lives, each tensor's `data` is valid for its type and shape: initialized, and for cache,
    /// scale and output also for writes. They do not overlap, and nobody else writes the index tensors, or any of them
    /// while the call runs.
    pub unsafe fn new(description: &AttentionDescription) -> Result<Self, String> {
        let mut attributes = CacheAttentionAttributes::default();
        for (name, value) in names().zip(description.attributes) {
            assert!(attributes.set(name, value), "{name} is an attribute");
        }
        let given = |i: usize| description.tensors[i].element != 0;
        let tensor = |i: usize| Tensor::new(&description.tensors[i]).map_err(|reason| format!("tensor {i}: {reason}"));
        // SAFETY: valid for its type and shape as long as the call lives, as this function requires.
        let read = |i: usize| tensor(i).map(|tensor| unsafe { tensor.borrow() });
        let inputs = CacheAttentionInputs {
            query: read(0)?,
            stored: Inputs {
                current_key: read(1)?,
                current_value: read(2)?,
                indices: IndexInputs {
                    seqstarts: read(3)?,
                    kvstarts: read(4)?,
                    cachestarts: read(5)?,
                    start_pos: read(6)?,
                    max_seqlen: read(8)?,
                    max_kvlen: read(9)?,
                },
            },
            decoding_batches: read(7)?,
            attn_mask: given(12).then(|| read(12)).transpose()?,
        };
        let scale = given(11).then(|| tensor(11)).transpose()?;
        let op = MultiHeadCacheAttention::new(attributes).map_err(|error| error.to_string())?;
        let mut call = Self { op, inputs, cache: tensor(10)?, scale, output: tensor(13)? };
        call.check().map_err(|error| error.to_string())?;
        Ok(call)
    }

    /// Checks the inputs, stores the current tokens and attends: what a user calls.
    ///
    /// # Errors
    /// If the operator refuses the call: somebody has changed its memory.
    pub(crate) fn run(&mut self, workers: &dyn Workers) -> Result<(), Error> {
        // SAFETY: `new` requires writable memory as long as the call lives, which nobody else uses while it runs.
        let output = unsafe { self.output.borrow_mut() };
        self.check()?.run(output, workers)
    }

    fn check(&mut self) -> Result<AttentionCall<'static>, Error> {
        // SAFETY: as in `run`; the results are used one at a time, as `&mut self` says.
        let (cache, scale) = unsafe { (self.cache.borrow_mut(), self.scale.as_ref().map(|scale| scale.borrow_mut())) };
        self.op.check(&self.inputs, cache, scale)
    }
}

/// The attributes' names, in the order of [`AttentionDescription`].
fn names() -> impl Iterator<Item = &'static str> {
    let attention = AttentionAttributes::SPEC.iter().map(|spec| spec.name);
    attention.chain(Attributes::NAMES.into_iter().filter(|&name| name != CacheAttentionAttributes::NOT_AN_ATTRIBUTE))
}
