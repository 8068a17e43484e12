//! The operators: against golden cases, the reference and their schemas; refusals; memory.

mod agree;
mod attention;
mod concurrent;
mod extremes;
mod golden;
mod layers;
mod memory;
mod quantized;
mod refusals;
mod schemas;
mod static_batching;
mod tensor_bytes;
