//! The cache manager, measured without Python in the way.

pub mod abi;
mod case;
mod cases;
mod cell_sets;
mod cells;
mod copies;
mod decode;
mod memory;
mod meter;
mod pages;
mod sessions;
mod setup;
mod shift;
