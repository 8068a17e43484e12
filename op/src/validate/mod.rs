//! Validation: everything that can be wrong with a call, found before its first byte is written.

mod call;
mod indices;
mod memory;
mod shapes;
mod types;

#[cfg(feature = "cuda")]
pub(crate) use call::{Operands, operands, output_shape};
pub(crate) use call::{call, layer, outputs};
#[cfg(feature = "cuda")]
pub(crate) use indices::{bounds_on_host, kvstarts_on_host};
pub(crate) use memory::Extents;
pub(crate) use types::types;
