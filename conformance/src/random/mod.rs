//! Cases made on demand: legal calls over everything that the oracle's rules allow, and illegal ones of every kind.
//!
//! All are made of [`Entropy`]: the choices of a seed, or of a fuzzer's bytes. A case is made from a seed and its number
//! alone, so that it is the same on every machine, with however many others it is made. What its calls must do is what
//! the [oracle](crate::oracle) does. To give the cases to a program, [`write()`] them to a folder, as the committed ones
//! are.

mod attention;
mod defects;
mod dynamic;
mod entropy;
mod folder;
mod plan;
mod static_batching;

pub use attention::case as attention_case;
pub use defects::changed_case;
pub use dynamic::{any_case, cases};
pub use entropy::Entropy;
pub use folder::write;
pub use plan::{Plan, Planned};
pub use static_batching::{any_case as any_static_case, call as static_call, cases as static_cases};
