//! The operators as programs that read like their specification: scalar, safe, and without a line of the kernels.
//!
//! [`Oracle::default`] does what the specification says. What it decides is taken apart into single decisions, each a
//! function or a value in [`Behavior`]: which values a group has, how a quotient is rounded, which slot a token has,
//! which call is refused. A [mistake](crate::mistakes) is a change of one of them.
//!
//! A call goes through four files: its [rules](Inputs::broken_rules) in `rules` and `static_rules`, a [`Plan`] of what
//! is stored and loaded where in `dynamic` and `static_batching`, the [`arithmetic`] of a head, and `execute`, which
//! follows the plan.

pub mod arithmetic;
pub mod attention;
mod behavior;
pub mod dynamic;
mod execute;
mod inputs;
mod plan;
mod predict;
mod refusal;
mod rules;
mod shared_rules;
pub mod static_batching;
mod static_rules;

pub use behavior::{Behavior, CurrentTokens, Outside, Pass, Sources, Verdict};
pub use inputs::{Call, Inputs, SharedAttributes};
pub use plan::{Axis, Load, Place, Plan, Rows, Sequence, Store};
pub use predict::{Oracle, PredictedOutcome, PredictedState, Prediction};
pub use refusal::{ATTENTION_KINDS, KINDS, Refusal};
