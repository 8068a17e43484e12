//! The embedded PTX in its interpreter: against golden cases, the reference kernel, and the rules for kernels.

mod arithmetic;
mod attention;
mod counts;
mod golden;
mod large_caches;
#[cfg(feature = "mutants")]
mod mutants;
mod rules;
