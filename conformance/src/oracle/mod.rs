//! The operators as programs that read like their specification: scalar, safe, and without a line of the kernels.
//!
//! [`Oracle::default`] does what the specification says. What it decides is a value in [`Behavior`]: how a quotient is
//! rounded, which slot a token has, what a mask adds. A [mistake](crate::mistakes) is another value of one of them.
//!
//! Each file needs those before it alone: the decisions; the `arithmetic` of a group; the `rules` of a legal call and the
//! plan of what it stores and loads where; `execute`, which follows the plan; `predict`, call by call.

mod arithmetic;
pub mod attention;
mod call;
pub mod decisions;
mod dynamic;
mod execute;
mod predict;
mod rules;
mod static_batching;

pub(crate) use call::indices;
pub use call::{Call, Inputs, SharedAttributes};
pub use decisions::{Behavior, Outside};
pub use execute::State;
pub use predict::{Oracle, PredictedOutcome, Prediction};
pub use rules::{ATTENTION_KINDS, KINDS};
