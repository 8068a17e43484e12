//! What the kernel computes, over the vector registers of any instruction set.
//!
//! To read in this order: `tiles` (what an instruction set adds), `rows` and `stored` (rows in memory, and in
//! registers); for few queries `qk_rows` or, of integer codes, `qk_codes` over a `panel`, then `softmax`, then
//! `pv_rows`; for many `qk_panels`, `softmax_rows` and `pv_panels`; at last `merge`.

pub(super) mod exp;
pub(super) mod merge;
pub(super) mod panel;
pub(super) mod pv_panels;
pub(super) mod pv_rows;
pub(super) mod qk_codes;
pub(super) mod qk_panels;
pub(super) mod qk_rows;
pub(super) mod read_rows;
pub(super) mod rows;
pub(super) mod scales;
pub(super) mod softcap;
pub(super) mod softmax;
pub(super) mod softmax_rows;
pub(super) mod stored;
pub(super) mod tiles;
