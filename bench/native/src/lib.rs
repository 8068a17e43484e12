//! What the benchmark measures without Python in the way.
//!
//! A C interface that the Python driver loads: copies of memory ([`bench_copy`]) and one call of the operator, phase by
//! phase ([`bench_case_measure`]), on a team of threads whose share of the processors is watched; and the judgment of
//! any contender's answer by the reference kernel ([`bench_case_expect`]). All memory is the driver's, so that every
//! contender works on the same pages.

mod case;
mod copy;
mod empty;
mod interface;
mod line;
mod mover;
mod sample;
mod team;
mod traffic;
mod verdict;

pub use case::{Case, Description, Phase, Tensor};
pub use empty::RegisterCustomOps;
pub use interface::*;
pub use sample::Sample;
pub use team::Team;
pub use traffic::Moved;
