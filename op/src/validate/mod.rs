//! Validation: everything that can be wrong with a call, found before its first byte is written.

mod call;
mod indices;
mod memory;
mod shapes;
mod types;

pub(crate) use call::{call, outputs};
pub(crate) use memory::Extents;
pub(crate) use types::types;
