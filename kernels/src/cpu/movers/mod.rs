//! Moves a block: chooses between plain and non-temporal stores, and brings rows through a stage where they need one.

mod load;
mod mover;
mod store;

pub(super) use mover::{ElementBits, Mover, Writers};
