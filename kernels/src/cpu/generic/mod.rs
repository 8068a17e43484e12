//! Row functions over vector registers, written once for every instruction set.

pub(super) mod convert;
pub(super) mod copy;
pub(super) mod dequantize;
pub(super) mod group;
pub(super) mod hadamard;
pub(super) mod lane_tables;
pub(super) mod quant_simd;
pub(super) mod quantize;
pub(super) mod stream_writer;
