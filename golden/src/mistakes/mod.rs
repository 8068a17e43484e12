//! Known mistakes: what implementations of the operators get wrong, each a change of one decision of the
//! [oracle](crate::oracle).
//!
//! To add one, add an entry to the file of its subject. It must be wrong in some golden case that names its rule.

mod addressing;
mod arithmetic;
mod list;
mod mistake;
mod order;
mod refusals;
mod rounding;
mod storage;

pub use list::{mistake, mistakes, mistakes_of};
pub use mistake::Mistake;
