//! What the benchmark measures without Python in the way.
//!
//! Two C interfaces, which the Python driver loads. [`operator_abi`] is one call of the operator in the caller's
//! memory, and knows nothing of measuring. [`bench_abi`] measures such a call phase by phase, beside the loops that it
//! is held against, on a [`Team`] of threads whose share of the processors is watched, and compares any contender's
//! answer with the reference kernel's. All memory is the driver's, so that every contender works on the same pages.
//!
//! [`attention_abi`] makes and measures calls of `MultiHeadCacheAttention`, for which the driver has an oracle of its
//! own.
//!
//! [`manager`] measures the cache manager: its cases have their own memory and check their own answers.

mod allocations;
mod answer;
mod attention;
pub mod attention_abi;
pub mod bench_abi;
mod c_call;
mod call;
mod description;
mod empty;
mod error_text;
mod limit;
mod line;
pub mod manager;
mod moved;
pub mod operator_abi;
mod roofline;
mod row_loop;
mod sample;
mod team;

pub use answer::Answer;
pub use attention::{AttentionDescription, BoundAttention};
pub use call::BoundCall;
pub use description::{CallDescription, TensorDescription};
pub use empty::RegisterCustomOps;
pub use error_text::{ErrorText, OK, REFUSED};
pub use moved::Moved;
pub use sample::Sample;
pub use team::Team;
