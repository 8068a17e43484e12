//! What a call reads.

use kvcache_op::dlpack::DLTensor;
use kvcache_op::{IndexInputs, Inputs, TensorMut, TensorRef};

use crate::error::{Error, required};

/// The inputs of type int64: the lengths, positions and slots of the B sequences of a batch. They are the same for
/// every layer of a step.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct kvcache_indices {
    /// Shape (B + 1).
    pub seqstarts: *const DLTensor,
    /// Shape (B + 1).
    pub kvstarts: *const DLTensor,
    /// Shape (B) or, in cache_mode 1, (B, MaxP).
    pub cachestarts: *const DLTensor,
    /// Shape (B).
    pub start_pos: *const DLTensor,
    /// A scalar or of shape (1).
    pub max_seqlen: *const DLTensor,
    /// A scalar or of shape (1).
    pub max_kvlen: *const DLTensor,
}

/// The operator's inputs that are only read.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct kvcache_inputs {
    /// T1 (float32, float16 or int8), shape (`seqstarts[B]`, H, Dh).
    pub current_key: *const DLTensor,
    /// T1, shape (`seqstarts[B]`, H, Dh).
    pub current_value: *const DLTensor,
    /// The lengths, positions and slots of the sequences.
    pub indices: kvcache_indices,
}

/// # Safety
/// `tensor` is null or describes a tensor as [`TensorRef::from_dlpack`] requires.
pub(crate) unsafe fn read<'a>(input: &'static str, tensor: *const DLTensor) -> Result<TensorRef<'a>, Error> {
    // SAFETY: null or valid; then it describes a tensor as required.
    unsafe { Ok(TensorRef::from_dlpack(input, required(tensor, input, "a tensor")?)?) }
}

/// # Safety
/// `tensor` is null or describes a tensor as [`TensorMut::from_dlpack`] requires.
pub(crate) unsafe fn write<'a>(input: &'static str, tensor: *const DLTensor) -> Result<TensorMut<'a>, Error> {
    // SAFETY: null or valid; then it describes a tensor as required.
    unsafe { Ok(TensorMut::from_dlpack(input, required(tensor, input, "a tensor")?)?) }
}

/// A tensor to be written that need not be there.
///
/// # Safety
/// `tensor` is null or describes a tensor as [`TensorMut::from_dlpack`] requires.
pub(crate) unsafe fn write_optional<'a>(
    input: &'static str,
    tensor: *const DLTensor,
) -> Result<Option<TensorMut<'a>>, Error> {
    // SAFETY: as for `write`.
    (!tensor.is_null()).then(|| unsafe { write(input, tensor) }).transpose()
}

impl kvcache_indices {
    /// # Safety
    /// Each pointer is null or describes a tensor as [`TensorRef::from_dlpack`] requires.
    pub(crate) unsafe fn borrow<'a>(&self) -> Result<IndexInputs<'a>, Error> {
        // SAFETY: each is null or describes a tensor as required.
        unsafe {
            Ok(IndexInputs {
                seqstarts: read("seqstarts", self.seqstarts)?,
                kvstarts: read("kvstarts", self.kvstarts)?,
                cachestarts: read("cachestarts", self.cachestarts)?,
                start_pos: read("start_pos", self.start_pos)?,
                max_seqlen: read("max_seqlen", self.max_seqlen)?,
                max_kvlen: read("max_kvlen", self.max_kvlen)?,
            })
        }
    }
}

impl kvcache_inputs {
    /// # Safety
    /// Each pointer is null or describes a tensor as [`TensorRef::from_dlpack`] requires.
    pub(crate) unsafe fn borrow<'a>(&self) -> Result<Inputs<'a>, Error> {
        // SAFETY: each is null or describes a tensor as required.
        unsafe {
            Ok(Inputs {
                current_key: read("current_key", self.current_key)?,
                current_value: read("current_value", self.current_value)?,
                indices: self.indices.borrow()?,
            })
        }
    }
}
