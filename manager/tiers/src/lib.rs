#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

#[cfg(feature = "object_store")]
mod bounded_http;
mod breaker;
mod file;
mod host;
mod lru_index;
#[cfg(feature = "object_store")]
mod object;
mod rate;
#[cfg(feature = "redis")]
mod redis_server;
mod remote_tier;
mod stats;
mod tiers;
mod worker;
mod writes;

pub use file::FileTier;
pub use host::HostTier;
#[cfg(feature = "object_store")]
pub use object::ObjectTier;
#[cfg(feature = "redis")]
pub use redis_server::RedisTier;
pub use remote_tier::Tier;
pub use stats::TierStats;
pub use tiers::Tiers;
