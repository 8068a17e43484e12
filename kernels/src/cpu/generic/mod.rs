//! Row functions over vector registers, written once for every instruction set.

pub(super) mod codes;
pub(super) mod convert;
pub(super) mod copy;
pub(super) mod dequantize;
pub(super) mod group;
pub(super) mod lane_tables;
pub(super) mod quantize;
pub(super) mod rotate;
pub(super) mod stage;
pub(super) mod static_scales;
