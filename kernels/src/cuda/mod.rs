//! CUDA kernels, and what launching them takes.
//!
//! The kernels come as PTX inside this crate; the driver of a machine is opened at run time and compiles them for its
//! device. A machine without one gets [`Error::NoDriver`].

mod context;
mod driver;
mod error;
mod loaded;
mod operands;
mod parameters;
mod ptx;
mod queue;
mod status;
mod status_word;

pub use context::primary_context;
pub use cudarc;
pub use driver::available;
pub use error::Error;
pub use operands::{BLOCK, Launch, Operands, Pages, TooLarge};
pub use parameters::{Divisor, Parameters, Strides};
pub use ptx::{MODULES, Module, module};
pub use queue::Queue;
pub use status::{Finding, Status};
pub use status_word::StatusWord;
