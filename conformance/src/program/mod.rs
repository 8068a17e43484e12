//! An implementation in any language: a program that runs one case.

mod command;
mod implementation;
mod results;

pub use command::{Program, ProgramError};
