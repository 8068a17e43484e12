//! How fast an implementation is on this machine, as ratios to a copying loop; no part of right and wrong.
//!
//! [`measure`] makes the calls of each [`Workload`] on an implementation that is [`Timed`], in turns with a loop that
//! reads and writes as many bytes as the operator must. Both times are medians of the rounds. An answer is checked
//! before it is timed, and the last timed one again: a wrong one has no figure.

mod copying;
mod rounds;
mod table;
mod timed;
mod workload;

pub use rounds::{Plan, Rounds, interleaved};
pub use table::{Measured, Row, Table, measure};
pub use timed::Timed;
pub use workload::{Traffic, Workload, workloads};
