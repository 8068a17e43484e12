//! InfLLM: attention over the first tokens, the last tokens and a few blocks in between, which queries select.

pub(crate) mod config;
pub(crate) mod error;
mod form;
mod index;
mod partition;
mod plan;
mod residency;
mod scores;
mod select;
mod sequence;
mod sequences;
mod session;
mod step;

pub use config::{BlockScore, Eviction, FarPositions, InfLlmConfig};
pub use error::{InfLlmError, Lost};
pub use partition::{Partition, infllm_partition};
pub use residency::slot_stable;
pub use sequences::InfLlm;
pub use step::InfLlmStep;
