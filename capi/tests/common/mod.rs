//! What the tests of programs share.

pub mod program;
