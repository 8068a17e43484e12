//! The embedded PTX, compiled ahead of time by `kernels/src/cuda/generate.py`: the module for each combination of
//! types.

use kvcache_kernels::cuda::Module;
use kvcache_kernels::modules;
use kvcache_schema::TypeCombination;

/// The kernels of a module in [`MODULES`], by their places in [`Module::kernels`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttentionKernelName {
    /// Attends with wide accesses to keys and values.
    AttendWide,
    /// Attends with accesses of one element: any alignment, head and group.
    AttendNarrow,
    /// Adds the pieces of decoding steps.
    Combine,
    /// Sums the weights of each key, with the accesses of `AttendWide`.
    MassWide,
    /// Sums the weights of each key, with the accesses of `AttendNarrow`.
    MassNarrow,
}

/// Every module: one for each legal combination of types of `MultiHeadCacheAttention`. Packed keys and values are
/// served by those in which T2 is T1.
pub static MODULES: [Module; TypeCombination::LEGAL.len() + TypeCombination::EXTENSIONS.len() - 1] =
    include!("ptx/modules.rs");

#[cfg(test)]
mod tests {
    use kvcache_kernels::cuda::module;
    use kvcache_schema::multi_head_cache_attention::all_combinations;

    use super::*;

    #[test]
    fn every_combination_has_its_module() {
        assert_eq!(all_combinations().count(), MODULES.len());
        for row in all_combinations() {
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
