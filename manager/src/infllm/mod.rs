//! InfLLM: attention over the first tokens, the last tokens and a few blocks in between, which queries select.

pub(crate) mod config;
mod form;
mod index;
mod partition;
pub(crate) mod plan;
mod residency;
mod scores;
mod select;
mod sequence;
mod sequences;
mod session;
mod step;

pub use config::{BlockScore, Eviction, FarPositions, InfLlmConfig};
pub use partition::{Partition, infllm_partition};
pub use plan::Lost;
pub use residency::slot_stable;
pub use sequences::InfLlm;
pub use step::InfLlmStep;
