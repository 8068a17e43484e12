//! Validation: every rule is checked before the first byte is written.

pub(crate) mod alias_check;
pub(crate) mod checked_stores;
mod expected_outputs;
pub(crate) mod indices;
pub(crate) mod shapes;
mod types;

pub(crate) use alias_check::AliasCheck;
pub(crate) use checked_stores::{CheckedStores, CheckedTensors, stores, tensors};
pub(crate) use expected_outputs::ExpectedOutputs;
pub(crate) use types::{equal_type, types};
