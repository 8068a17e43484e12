#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod breaker;
mod far;
mod file;
mod host;
mod index;
mod rate;
mod stats;
mod tiers;
mod worker;
mod writes;

pub use far::Tier;
pub use file::FileTier;
pub use host::HostTier;
pub use stats::{Misses, TierStats};
pub use tiers::Tiers;
