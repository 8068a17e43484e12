//! The naive model of a manager: sequences as vectors of rows.

pub mod rows;
pub mod sequences;
