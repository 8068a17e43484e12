//! What the kernel computes, over the vector registers of any instruction set.

pub(super) mod exp;
pub(super) mod fold;
pub(super) mod panel;
pub(super) mod query_row;
pub(super) mod read_rows;
pub(super) mod rows;
pub(super) mod score_rows;
pub(super) mod scores;
pub(super) mod softmax;
pub(super) mod softmax_rows;
pub(super) mod stored;
pub(super) mod tiles;
pub(super) mod weigh;
pub(super) mod weigh_rows;
