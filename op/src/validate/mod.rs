//! Validation: every rule is checked before the first byte is written.

mod checked_call;
pub(crate) mod indices;
pub(crate) mod memory;
pub(crate) mod shapes;
mod types;

pub(crate) use checked_call::{CURRENT, CheckedCall, call, layer, outputs, overflow, read_current};
#[cfg(feature = "cuda")]
pub(crate) use checked_call::{CheckedTensors, OUTPUT_SHAPE, output_shape, tensors};
#[cfg(feature = "cuda")]
pub(crate) use indices::{bounds_on_host, kvstarts_on_host};
pub(crate) use memory::Extents;
pub(crate) use types::{equal_type, equal_types, legal_types, types};
