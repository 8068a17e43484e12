#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod breaker;
mod far;
mod file;
mod host;
mod index;
#[cfg(feature = "object_store")]
mod object;
mod rate;
#[cfg(feature = "redis")]
mod redis_server;
mod stats;
mod tiers;
mod worker;
mod writes;

pub use far::Tier;
pub use file::FileTier;
pub use host::HostTier;
#[cfg(feature = "object_store")]
pub use object::ObjectTier;
#[cfg(feature = "redis")]
pub use redis_server::RedisTier;
pub use stats::{Misses, TierStats};
pub use tiers::Tiers;
