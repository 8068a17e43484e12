//! Validation: every rule is checked before the first byte is written.

pub(crate) mod checked_stores;
mod expected_outputs;
pub(crate) mod extents;
pub(crate) mod indices;
pub(crate) mod shapes;
mod types;

pub(crate) use checked_stores::{CheckedStores, CheckedTensors, Sizes, stores, tensors};
pub(crate) use expected_outputs::ExpectedOutputs;
pub(crate) use extents::Extents;
pub(crate) use types::{equal_type, equal_types, legal_types, types};
