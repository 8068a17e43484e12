//! CUDA kernels, and what launching them takes.

mod parameters;
mod ptx;
mod status;

pub use parameters::{BLOCK, Divisor, Launch, Operands, Pages, Parameters, Strides, TooLarge};
pub use ptx::{MODULES, Module, module};
pub use status::{Finding, Status};
