//! The manager's naive model, and scripts of operations that a manager and the model run side by side.
//!
//! ```text
//! rows      what a row's bytes are                model     the specification's rules, on plain vectors of rows
//! cache     a random cache, for both              script    random operations, from a seed or a fuzzer's bytes
//! memory    bytes that fail on request            store     blocks that are lost, cut or altered on request
//! managed   a manager and its memory, by hand
//!
//! run       apply(operation): the model predicts the result or the refusal, the manager acts, the two are compared;
//!           `step` is the largest operation, and `sessions` those that leave the cache and come back
//! check     after each operation: positions, slots, figures and bytes of manager and model are equal
//! ```

pub mod cache;
pub mod check;
pub mod managed;
pub mod memory;
pub mod model;
mod outputs;
pub mod rows;
pub mod run;
pub mod script;
mod sessions;
mod step;
pub mod store;
