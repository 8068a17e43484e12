//! The reference: the specification as code, safe, scalar and single-threaded. Every other kernel must match it bit for
//! bit, so it is never optimized.

mod kernel;
mod rotate_keys;

pub use kernel::Reference;
