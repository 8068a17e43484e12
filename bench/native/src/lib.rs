//! What the benchmark measures without Python in the way.
//!
//! A C interface that the Python driver loads: the loop that is a case's limit ([`bench_limit`]) and one call of the operator, phase by
//! phase ([`bench_case_measure`]), on a team of threads whose share of the processors is watched; and the judgment of
//! any contender's answer by the reference kernel ([`bench_case_expect`]). All memory is the driver's, so that every
//! contender works on the same pages.

mod case;
mod empty;
mod interface;
mod limit;
mod line;
mod moved;
mod mover;
mod sample;
mod team;
mod traffic;
mod verdict;

pub use case::{Case, Description, Phase, Tensor};
pub use empty::RegisterCustomOps;
pub use interface::*;
pub use moved::Moved;
pub use sample::Sample;
pub use team::Team;
