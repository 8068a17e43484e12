//! What a test decides about an emulated device, as it is handed to the driver, which is a C library.

use std::ffi::{CStr, c_char};
use std::ptr;

use crate::machine::{Counts, Order};

/// The device of a context: how its launches run, and which kernels it has.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Emulation {
    pub order: Order,
    /// The multiprocessors that the device says it has; the launcher takes 0 for 1, with long rounds.
    pub multiprocessors: u32,
    /// Whether `neg` of a NaN gives the canonical NaN, as it may on a GPU, and not the NaN of the other sign.
    pub canonical_neg: bool,
    /// Whether launches are counted.
    pub counts: bool,
    /// Is told the name of each kernel that has run, and what the launch has cost.
    pub launched: Option<extern "C" fn(*const c_char, &Cost)>,
    /// A kernel's name, and the PTX that replaces a module with this kernel; null where no module is replaced.
    pub replaced: [*const c_char; 2],
}

// SAFETY: the texts are read only, and outlive all contexts that they are given to.
unsafe impl Send for Emulation {}

impl Default for Emulation {
    fn default() -> Self {
        Self {
            order: Order::Forward,
            multiprocessors: 2,
            canonical_neg: false,
            counts: false,
            launched: None,
            replaced: [ptr::null(); 2],
        }
    }
}

impl Emulation {
    /// The text of a module, or the one that replaces it.
    ///
    /// # Safety
    /// The texts of `replaced` are null, or end with NUL and live as long as `'a`.
    pub unsafe fn ptx<'a>(&self, module: &'a str) -> &'a str {
        let [kernel, ptx] = self.replaced.map(|text| {
            // SAFETY: not null, checked here, and thus such a text: see `# Safety`.
            (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_str().unwrap_or_default())
        });
        ptx.filter(|_| kernel.is_some_and(|kernel| module.contains(kernel))).unwrap_or(module)
    }
}

/// The sums of [`Counts`].
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    pub instructions: u64,
    pub sectors: [u64; 2],
    pub passes: [u64; 2],
}

impl From<&Counts> for Cost {
    fn from(counts: &Counts) -> Self {
        let &Counts { ref instructions, sectors, passes } = counts;
        Self { instructions: instructions.values().sum(), sectors, passes }
    }
}
