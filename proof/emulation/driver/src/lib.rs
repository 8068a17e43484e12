//! An emulated CUDA driver, a `libcuda.so` for machines without a GPU: the part of the driver API that the launcher and
//! its tests use, over an interpreter of PTX.
//!
//! Under the name `libcuda.so` in a folder of `LD_LIBRARY_PATH` it runs the tests that need a GPU, and with them the
//! code under test: opening the driver, contexts, loading modules, launches, graphs, status words. `make test-cuda`
//! does that. A launch runs immediately, on the calling thread, and may access all allocations of its context: as
//! `cuMemSetAccess` has said of some, status words atomically. `kvcache_emulate` says how a context's device runs.
//!
//! It is stricter than a real driver where the launcher has rules to keep: while any stream is being captured, every
//! call that allocates (but in a stream's order), waits or loads fails and invalidates the capture, unless its thread
//! has relaxed that; a launch fails unless the kernel's context is current; allocations of no bytes, and copies to
//! where they read, fail. It cannot show whether a real driver accepts the PTX, how long anything takes, or races
//! between streams.

mod context;
mod kernel;
mod memory;
mod state;
mod stream;
