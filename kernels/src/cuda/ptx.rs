//! The embedded PTX, compiled ahead of time by `generate.py`: the module for each combination of types, and its
//! kernels.

use std::fmt;
use std::io::{self, Read};

use flate2::read::ZlibDecoder;
use kvcache_schema::{ElementType, TypeCombination};

/// The kernels for one combination of types.
pub struct Module {
    /// The types, as in the kernels' names: T1, T2 and, with quantization, T3.
    pub types: &'static str,
    /// The names of the module's kernels.
    pub kernels: &'static [&'static str],
    /// zlib-compressed PTX.
    compressed: &'static [u8],
}

/// The kernels of a module in [`MODULES`], by their places in [`Module::kernels`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheKernel {
    /// Stores with 16-byte accesses.
    StoreWide,
    /// Stores with accesses of one element: any alignment, head and group.
    StoreNarrow,
    /// Loads with 16-byte accesses.
    LoadWide,
    /// Loads with accesses of one element: any alignment, head and group.
    LoadNarrow,
    /// Makes the index inputs of sequences that are alike.
    MakeIndices,
    /// Stores where keys are multiplied by a Hadamard matrix before they are quantized.
    StoreRotated,
    /// Loads where they were.
    LoadRotated,
}

/// The modules that `generate.py` has listed in a folder: their kernels and their types.
#[doc(hidden)]
#[macro_export]
macro_rules! modules {
    ([$($kernel:ident)*] @ $types:ident) => {
        $crate::cuda::Module::new(
            stringify!($types),
            &[$(concat!("kvcache_", stringify!($kernel), "_", stringify!($types))),*],
            include_bytes!(concat!(stringify!($types), ".ptx.z")),
        )
    };
    ($kernels:tt $($types:ident)*) => { [$($crate::modules!($kernels @ $types)),*] };
}

/// Every module: one for each row of the table of types.
pub static MODULES: [Module; TypeCombination::LEGAL.len() + TypeCombination::EXTENSIONS.len()] =
    include!("ptx/modules.rs");

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.types)
    }
}

impl Module {
    /// A module of these types and kernels, from zlib-compressed PTX.
    pub const fn new(types: &'static str, kernels: &'static [&'static str], compressed: &'static [u8]) -> Self {
        Self { types, kernels, compressed }
    }

    /// The name of one of the kernels of a module in [`MODULES`].
    pub const fn kernel(&self, kernel: CacheKernel) -> &'static str {
        self.kernels[kernel as usize]
    }

    /// The module's PTX text.
    ///
    /// # Errors
    /// If the embedded bytes are damaged.
    pub fn ptx(&self) -> io::Result<String> {
        let mut ptx = String::new();
        ZlibDecoder::new(self.compressed).read_to_string(&mut ptx)?;
        Ok(ptx)
    }
}

/// The module among some for a legal combination of T1, T2 and, with quantization, T3.
pub fn module(
    modules: &'static [Module],
    (t1, t2, t3): (ElementType, ElementType, Option<ElementType>),
) -> &'static Module {
    let row = TypeCombination::all().find(|row| (row.t1, row.t2, row.t3) == (t1, t2, t3));
    let module = row.and_then(|row| modules.iter().find(|module| module.types == row.name()));
    module.unwrap_or_else(|| unreachable!("a problem has a legal combination of types, not {t1} {t2} {t3:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_has_its_module() {
        for row in TypeCombination::all() {
            let module = module(&MODULES, (row.t1, row.t2, row.t3));
            assert_eq!(module.types, row.name());
            let ptx = module.ptx().unwrap();
            // The oldest driver and GPU that the module is for.
            assert!(ptx.contains("\n.version 8.4\n.target sm_75\n"));
            for kernel in module.kernels {
                assert!(ptx.contains(&format!(".visible .entry {kernel}(")), "{kernel}");
            }
        }
    }
}
