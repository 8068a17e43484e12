//! The operator `dynamic_batching.KeyValueCache` for C and C++: a shared and a static library with the functions of
//! `include/kvcache.h`.
//!
//! Types and functions are named as C names them. Every function catches panics, so that none crosses into C, and
//! refuses null pointers where it needs an object.
#![expect(non_camel_case_types, reason = "the types are C's")]

mod attributes;
mod error;
mod inputs;
mod operator;
mod step;
mod version;
mod workers;

pub use attributes::{kvcache_attributes, kvcache_attributes_default};
pub use error::{kvcache_error, kvcache_error_free, kvcache_error_kind, kvcache_error_message};
pub use inputs::{kvcache_indices, kvcache_inputs};
pub use operator::{kvcache_check, kvcache_create, kvcache_free, kvcache_operator, kvcache_run};
pub use step::{kvcache_step, kvcache_step_begin, kvcache_step_end, kvcache_step_layer, kvcache_step_shape};
pub use version::kvcache_version;
pub use workers::{
    kvcache_parallel_for, kvcache_task, kvcache_workers, kvcache_workers_free, kvcache_workers_from,
    kvcache_workers_new,
};
