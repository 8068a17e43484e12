//! An implementation in any language: a program that runs cases.

mod command;
mod process;
mod server;

pub use command::{Program, ProgramError};
