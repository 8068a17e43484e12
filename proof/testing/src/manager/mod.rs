//! The manager's naive model, and scripts of operations that a manager and the model run side by side.
//!
//! ```text
//! cache     a random cache, for both              model     the specification's rules, on plain vectors of rows
//! memory    bytes that fail on request            script    random operations, from a seed or a fuzzer's bytes
//! managed   a manager and its memory, by hand     store     blocks that are lost, cut or altered on request
//!
//! run       apply(operation): the model predicts the result or the refusal, the manager acts, the two are compared;
//!           `step` is the largest operation, and `sessions` those that leave the cache and come back
//! check     after each operation: positions, slots, figures and rows of manager and model are equal
//! masks     the masks of a step
//! ```
//!
//! A script's cache has a tag in each slot: which row it is, and how its key was rotated. What a manager does not do,
//! quantizing and rotating, is proven elsewhere; manager/tests/manager/operator.rs runs the operator on its tensors.

pub mod cache;
pub mod check;
pub mod managed;
mod masks;
pub mod memory;
pub mod model;
pub mod run;
pub mod script;
mod sessions;
mod step;
pub mod store;
