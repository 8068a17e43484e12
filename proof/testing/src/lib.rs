//! What the tests of several crates are made of. No product depends on this crate.

#![expect(missing_docs, reason = "only tests read it: what a name says is not said again")]

pub mod attention;
pub mod backends;
pub mod guarded;
#[cfg(feature = "manager")]
pub mod manager;
pub mod random;
