//! What the build script has compiled.

use std::fmt;

use crate::launch::ShimLaunch;

/// The kernels for one combination of types.
pub struct Build {
    /// The types, or the planted error.
    pub name: &'static str,
    /// The types, as in the names of the kernels.
    pub types: &'static str,
    pub(crate) launch: unsafe extern "C" fn(kernel: u32, launch: *const ShimLaunch) -> i32,
}

impl fmt::Debug for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

include!(concat!(env!("OUT_DIR"), "/builds.rs"));
