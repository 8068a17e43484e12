//! Sequences: their rows and positions, and the edits between steps.

pub(crate) mod edit;
pub(crate) mod positions;
pub(crate) mod sequence;

pub use sequence::SeqId;
