//! The C interface of the shim: what `shim.hpp` declares for the launcher; and the kernels that the
//! build script has compiled for the CPU.

use std::ffi::{c_char, c_void};
use std::fmt;

/// Memory that a launch may access.
#[repr(C)]
pub(crate) struct ShimOperand {
    pub(crate) data: *const u8,
    pub(crate) len: u64,
    /// An [`Access`](crate::Access).
    pub(crate) access: u32,
    pub(crate) reserved: u32,
    /// Where the shim notes the thread that has written each byte, `len` zeros; null if it need not.
    pub(crate) writers: *mut u64,
}

#[repr(C)]
pub(crate) struct ShimLaunch {
    pub(crate) parameters: *const c_void,
    pub(crate) operands: *const ShimOperand,
    pub(crate) operand_count: u64,
    pub(crate) grid: u32,
    pub(crate) block: u32,
    /// The order of the threads: 0 forward, 1 backward, others random.
    pub(crate) seed: u64,
    /// A block that has made so many collective operations is taken to hang.
    pub(crate) max_collectives: u64,
    pub(crate) message: *mut c_char,
    pub(crate) message_len: u64,
}

/// The entry point of one build: runs a kernel by its place in `Module::kernels`. Not 0 after a fault.
pub(crate) type Entry = unsafe extern "C" fn(kernel: u32, launch: *const ShimLaunch) -> i32;

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
