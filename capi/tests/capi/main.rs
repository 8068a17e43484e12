//! The header, and programs in C and C++ against the built library.

mod header;
mod program;
