//! The embedded PTX of the kernels that move and rotate rows, compiled ahead of time by `generate.py`.

use kvcache_schema::ElementType;

use crate::cache_rows::CacheRows;
use crate::cuda::ptx::Module;
use crate::modules;

/// The module that moves rows of any types, and rotates keys of each type and with each type of scales.
pub static ROWS: Module = {
    let [module] = include!("ptx/modules.rs");
    module
};

/// The kernel that moves rows 16 bytes at once.
pub(super) const MOVE_WIDE: &str = "kvcache_move_wide_rows";

/// The kernel that moves rows byte by byte: any alignment and head.
pub(super) const MOVE_NARROW: &str = "kvcache_move_narrow_rows";

/// The kernel that rotates the keys of a cache, if there is one for its types.
pub(super) fn rotate(rows: &CacheRows) -> Option<&'static str> {
    let (t2, t3) = rows.types();
    let types = [Some(t2), t3].into_iter().flatten().map(ElementType::short_name);
    ROWS.kernels.iter().copied().find(|name| {
        let of = name.strip_prefix("kvcache_rotate_").and_then(|name| name.strip_suffix("_rows"));
        of.is_some_and(|of| of.split('_').eq(types.clone()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_is_in_the_module() {
        let ptx = ROWS.ptx().unwrap();
        assert!(ptx.contains("\n.version 8.4\n.target sm_75\n"));
        for kernel in ROWS.kernels {
            assert!(ptx.contains(&format!(".visible .entry {kernel}(")), "{kernel}");
        }
        assert_eq!(ROWS.kernels[..2], [MOVE_WIDE, MOVE_NARROW]);
        assert_eq!(ptx.matches(".visible .entry ").count(), ROWS.kernels.len());
    }
}
