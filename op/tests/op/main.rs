//! The operators: against golden cases, an oracle, the reference and their schemas; refusals; memory.

mod agree;
mod attention;
mod concurrent;
mod extremes;
mod golden;
#[cfg(unix)]
mod guarded;
mod layers;
mod oracle;
mod refusals;
mod schemas;
mod static_batching;
mod tensor_bytes;
