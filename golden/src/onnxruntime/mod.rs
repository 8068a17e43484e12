//! A library of custom operators, run in ONNX Runtime.
//!
//! A [`Library`] makes a model of one node for each case, and its calls in a session of the runtime. The sessions are in
//! a process of their own, so a library that crashes or does not return fails one case, and the others still run. That
//! process is this program again: its `main` begins with [`worker`].

mod client;
mod library;
mod open;
mod protocol;
mod session;
mod worker;

pub use library::{Library, OpenError, Options, Provider};
pub use open::{Runtime, RuntimeError, runtime_path};
pub use worker::worker;
