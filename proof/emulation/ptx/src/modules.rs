//! The kernels of the embedded modules, decoded once; and kernels with one bug.

use std::collections::{BTreeMap, HashMap};
use std::sync::{LazyLock, Mutex, PoisonError};

use kvcache_kernels::cuda::{BLOCK, Launch, Module};

use crate::arithmetic::Freedom;
use crate::decode::{Code, kernels};
use crate::machine::{Counts, Fault, Order, Shape, run};
use crate::memory::Memory;

/// A kernel of an embedded module.
///
/// # Panics
/// If the interpreter does not know an instruction of the module.
pub fn code(module: &'static Module, kernel: &'static str, freedom: Freedom) -> &'static Code {
    static KNOWN: LazyLock<Mutex<HashMap<(&str, Freedom), &'static Code>>> = LazyLock::new(Mutex::default);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(code) = known.get(&(kernel, freedom)) {
        return code;
    }
    let ptx = module.ptx().unwrap_or_else(|error| panic!("{module:?}: {error}"));
    let mut decoded = kernels(&ptx, freedom).unwrap_or_else(|error| panic!("{module:?}: {error}"));
    for name in module.kernels {
        let code = decoded.remove(*name).unwrap_or_else(|| panic!("{module:?} has no kernel {name}"));
        known.insert((name, freedom), Box::leak(Box::new(code)));
    }
    known[&(kernel, freedom)]
}

/// Runs a launch of an embedded kernel.
///
/// # Errors
/// [`Fault`].
///
/// # Safety
/// That of [`run`].
pub unsafe fn launch<P: Copy>(
    code: &Code,
    memory: &Memory,
    what: &Launch<P>,
    order: Order,
    counts: bool,
) -> Result<Counts, Fault> {
    let parameters = (&raw const what.parameters).cast();
    // SAFETY: the parameters, which are plain numbers without padding, live as long as `what`.
    let parameters = unsafe { std::slice::from_raw_parts(parameters, size_of::<P>()) };
    let shape = Shape { grid: what.grid, block: BLOCK, parameters, order, counts };
    // SAFETY: see `# Safety`.
    unsafe { run(code, memory, shape) }
}

/// A kernel with one bug.
#[derive(Debug)]
pub struct Mutant {
    pub name: String,
    /// The types of its module.
    pub types: &'static str,
    pub kernels: BTreeMap<String, Code>,
}
