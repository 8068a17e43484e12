//! Store and load kernels of a block: they choose between plain and non-temporal stores, and bring rows through a stage
//! where they need one.

mod block_kernel;
mod load;
mod store;

pub(super) use block_kernel::{BlockKernel, ElementBits, Writers};
