//! Known mistakes: what implementations of the operators get wrong, each a change of one decision of the
//! [oracle](crate::oracle).
//!
//! To add one, add an entry to the file of its subject. It must be wrong in some golden case that names its rule.

mod accepted;
mod accepted_inputs;
mod addressing;
mod arithmetic;
mod attention;
mod list;
mod mistake;
pub(crate) mod near;
mod nibbles;
mod order;
mod paging;
mod refused;
mod rounding;
mod scales;
mod storage;
mod values;

pub use list::{attention_rule, mistake, mistakes, mistakes_of};
pub use mistake::Mistake;
