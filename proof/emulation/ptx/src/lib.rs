//! An interpreter of the embedded PTX, to test what is shipped without a GPU.
//!
//! [`kernels`] decodes a module, an opcode that is not known being an error, and [`run`] runs a launch. It finds what a
//! GPU does not report, with the kernel, the line of the PTX and the thread: accesses outside of all memory or
//! misaligned; loads through the read-only cache of memory that the launch writes; registers and shared memory that are
//! read before they are written; barriers and shuffles that not all threads reach; and races, in shared memory and in
//! global memory: two accesses that no barrier orders, one of them a write, not both atomic. It counts
//! instructions, sectors of global memory and passes over the banks of shared memory. It shows nothing of the driver's
//! compiler, of the order in which a GPU makes one thread's accesses visible to others, and of time.
//!
//! The emulated driver runs launches here, as an [`Emulation`] says: in any order, and with any kernel in the place of
//! an embedded one. Tests must fail on a kernel with a bug: that proves the tests.

#![expect(missing_docs, reason = "only tests read it: what a name says is not said again")]

mod arithmetic;
mod code;
mod decode;
mod emulation;
mod machine;
mod memory;
mod shadow;
mod text;

pub use code::Code;
pub use decode::kernels;
pub use emulation::{Cost, Emulation};
pub use machine::{Counts, Fault, Order, Shape, run};
pub use memory::{Access, DeviceMemory, Memory};
pub use text::PtxError;
