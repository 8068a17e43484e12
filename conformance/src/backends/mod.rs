//! The operators of this project as implementations.

use kvcache_op::{TensorMut, TensorRef};

use crate::Tensor;

mod attention;
mod key_value_cache;

pub use attention::{Attention, check_attention, run_attention, stored};
pub use key_value_cache::{Operator, StaticOperator, inputs_of, run_calls, run_static_calls, static_inputs_of};

/// A golden tensor as the operator reads it.
pub fn read(tensor: &Tensor) -> TensorRef<'_> {
    // SAFETY: the tensor owns aligned bytes of its type and shape, borrowed as long as the result lives.
    unsafe { TensorRef::from_raw_parts(tensor.element(), tensor.shape(), tensor.bytes().as_ptr()) }
}

/// A golden tensor as the operator writes it.
pub fn write(tensor: &mut Tensor) -> TensorMut<'_> {
    let shape: kvcache_op::Shape = tensor.shape().into();
    // SAFETY: the tensor owns aligned bytes of its type and shape, borrowed mutably as long as the result lives.
    unsafe { TensorMut::from_raw_parts(tensor.element(), shape, tensor.bytes_mut().as_mut_ptr()) }
}
