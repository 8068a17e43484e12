//! Known mistakes of attention. Those of the cache that it reads are `KeyValueCache`'s.

pub(super) mod alibi;
pub(super) mod causal;
pub(super) mod mask_elements;
pub(super) mod masks;
pub(super) mod precision;
pub(super) mod refusals;
pub(super) mod scores;
pub(super) mod sequences;
pub(super) mod weights;
