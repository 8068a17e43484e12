//! The operator of static batching, whose sequences are alike: all of a batch have the same length and the same
//! position.
//!
//! A front-end: it checks the shapes of rank 4 and 6, and makes the index inputs of `KeyValueCache`, which does the
//! work.

mod static_call;
mod static_key_value_cache;

pub(crate) use static_call::StaticIndices;
pub use static_key_value_cache::{StaticInputDims, StaticInputs, StaticKeyValueCache};
