//! The cache manager, measured without Python in the way.

mod case;
mod cells;
mod copies;
mod decode;
mod memory;
mod pages;
mod sessions;
mod setup;
mod shift;

pub(crate) use case::ManagerCase;
