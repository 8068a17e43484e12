//! What the operators that store into a paged or offset cache have in common.

use kvcache_op::{IndexInputs, Inputs, TensorMut};

use crate::error::Error;
use crate::positions::StorePositions;
use crate::tensor::CallTensors;

/// The inputs of a call that are `KeyValueCache`'s.
pub(super) fn inputs<'a>(tensors: &CallTensors<'a>, at: &StorePositions) -> Result<Inputs<'a>, Error> {
    Ok(Inputs {
        current_key: tensors.read(at.current_key)?,
        current_value: tensors.read(at.current_value)?,
        indices: IndexInputs {
            seqstarts: tensors.read(at.seqstarts)?,
            kvstarts: tensors.read(at.kvstarts)?,
            cachestarts: tensors.read(at.cachestarts)?,
            start_pos: tensors.read(at.start_pos)?,
            max_seqlen: tensors.read(at.max_seqlen)?,
            max_kvlen: tensors.read(at.max_kvlen)?,
        },
    })
}

/// The cache of a call, and its scale if the node has one.
pub(super) fn state<'a>(
    tensors: &CallTensors<'a>,
    at: &StorePositions,
    has_scale: bool,
) -> Result<(TensorMut<'a>, Option<TensorMut<'a>>), Error> {
    let scale = has_scale.then(|| tensors.modify(at.scale)).transpose()?;
    Ok((tensors.modify(at.cache)?, scale))
}
