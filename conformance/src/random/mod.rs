//! Cases made on demand: legal calls over everything that the rules allow, and illegal ones of every kind.
//!
//! All are made of [`Unstructured`]: the choices of a seed, or of a fuzzer's bytes. A case is made from a seed and its
//! number alone, so that it is the same on every machine, with however many others it is made.

mod cases;
mod changes;
mod plan;
mod static_batching;
mod unstructured;
mod values;

pub use cases::{any_case, cases, changed_case};
pub use changes::changed_input;
pub use plan::{Plan, index_inputs};
pub use static_batching::static_call;
pub use unstructured::Unstructured;
