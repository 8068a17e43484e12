//! A `libcuda.so` for machines without CUDA: as much of the driver's interface as the launcher and its tests use, over the
//! kernels compiled for the CPU.
//!
//! Under the name `libcuda.so` in a folder of `LD_LIBRARY_PATH` it lets the tests run that need a GPU, and so the code under
//! test: opening the driver, contexts, loading modules, launches, graphs, status words. `make test-cuda` does that. Every
//! launch runs at once, on the calling thread, and every access is checked against the allocations that its parameters point
//! to.
//!
//! It is stricter than a driver where the launcher must keep a promise: while any stream is captured, whatever allocates,
//! waits or loads is refused and spoils the capture; a kernel is refused unless its context is current; memory of no bytes
//! cannot be allocated. What it cannot show: that a real driver takes the PTX, time, races between streams.

mod context;
mod event;
mod graph;
mod kernel;
mod memory;
mod out;
mod state;
mod stream;
