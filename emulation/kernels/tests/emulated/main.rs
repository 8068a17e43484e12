//! The CUDA kernels on the CPU: against golden cases, the reference kernel, and the rules for kernels.

mod arithmetic;
mod attention;
mod golden;
mod large_caches;
#[cfg(feature = "mutants")]
mod mutants;
