//! Validation: everything that can be wrong with a call, found before its first byte is written.

mod call;
mod indices;
mod memory;
mod shapes;
mod types;

pub(crate) use call::{CheckedCall, call, layer};
#[cfg(feature = "cuda")]
pub(crate) use call::{CheckedTensors, output_shape, outputs, tensors};
#[cfg(feature = "cuda")]
pub(crate) use indices::{bounds_on_host, kvstarts_on_host};
#[cfg(feature = "cuda")]
pub(crate) use memory::Extents;
pub(crate) use types::{equal_types, types};
