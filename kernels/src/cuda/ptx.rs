//! The kernels as PTX, compiled ahead by `generate.py`: which module and which kernel serve a combination of types.

use std::fmt;
use std::io::{self, Read};

use flate2::read::ZlibDecoder;
use kvcache_schema::{ElementType, TypeCombination};

/// The kernels for one combination of types.
pub struct Module {
    /// The types, as in the kernels' names: T1, T2 and, with quantization, T3.
    pub types: &'static str,
    /// Compressed PTX: as text the modules are five times larger.
    compressed: &'static [u8],
    /// Stores with 16-byte accesses.
    pub store_wide: &'static str,
    /// Stores whatever is legal.
    pub store_narrow: &'static str,
    /// Loads with 16-byte accesses.
    pub load_wide: &'static str,
    /// Loads whatever is legal.
    pub load_narrow: &'static str,
}

macro_rules! modules {
    ($($types:literal),*) => {
        [$(Module {
            types: $types,
            compressed: include_bytes!(concat!("ptx/", $types, ".ptx.z")),
            store_wide: concat!("kvcache_store_wide_", $types),
            store_narrow: concat!("kvcache_store_narrow_", $types),
            load_wide: concat!("kvcache_load_wide_", $types),
            load_narrow: concat!("kvcache_load_narrow_", $types),
        }),*]
    };
}

/// Every module, in the order of the table of types.
pub static MODULES: [Module; TypeCombination::LEGAL.len()] = modules![
    "f32_f32",
    "f32_f16",
    "f16_f32",
    "f16_f16",
    "i8_i8",
    "f32_i8_f32",
    "f32_i8_f16",
    "f16_i8_f32",
    "f16_i8_f16",
    "f32_i4_f32",
    "f32_i4_f16",
    "f16_i4_f32",
    "f16_i4_f16"
];

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.types)
    }
}

impl Module {
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

/// The module for a legal combination of T1, T2 and, with quantization, T3.
pub fn module(t1: ElementType, t2: ElementType, t3: Option<ElementType>) -> &'static Module {
    let row = TypeCombination::LEGAL.iter().position(|row| (row.t1, row.t2, row.t3) == (t1, t2, t3));
    &MODULES[row.unwrap_or_else(|| unreachable!("a problem has a legal combination of types, not {t1} {t2} {t3:?}"))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_has_its_module() {
        for row in TypeCombination::LEGAL {
            let module = module(row.t1, row.t2, row.t3);
            assert_eq!(module.types, row.name());
            let ptx = module.ptx().unwrap();
            // What a driver must know, and a GPU be.
            assert!(ptx.contains("\n.version 8.4\n.target sm_75\n"));
            for kernel in [module.store_wide, module.store_narrow, module.load_wide, module.load_narrow] {
                assert!(ptx.contains(&format!(".visible .entry {kernel}(")), "{kernel}");
            }
        }
    }
}
