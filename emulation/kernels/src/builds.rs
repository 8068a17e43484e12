//! The kernels that the build script has compiled for the CPU.

use std::fmt;

use crate::shim::{Entry, ShimLaunch};

/// The kernels for one combination of types.
pub struct Build {
    /// The types or, for a mutant, its name.
    pub name: &'static str,
    /// The types, as in the names of the kernels.
    pub types: &'static str,
    pub(crate) launch: Entry,
}

impl fmt::Debug for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

// FAITHFUL, ATTENTION and ROWS, the kernels as they are; MUTANTS, ATTENTION_MUTANTS and ROWS_MUTANTS, those with one bug
// each.
include!(concat!(env!("OUT_DIR"), "/builds.rs"));
