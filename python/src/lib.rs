//! The extension module of the wheel `kvcache_ops`: the operators on Python's own tensors and the cache manager, and,
//! in the same file, the operators as a custom operator library of ONNX Runtime.

mod append;
mod arguments;
mod buffers;
mod conformance;
mod formulas;
mod id;
mod infllm;
mod infllm_step;
mod manager;
mod mask;
mod memory;
mod operator;
mod refusal;
mod rope;
mod sessions;
mod shared_manager;
mod spec;
mod states;
mod step;
mod swap;
mod threads;
mod tiers;

use pyo3::pymodule;

/// What ONNX Runtime calls when a program registers the file of this module.
pub use kvcache_ort::RegisterCustomOps;

/// The Rust side of `kvcache_ops`.
#[pymodule]
mod _native {
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::append::Append;
    #[pymodule_export]
    use super::conformance::{ConformanceCase, conformance_cases, error_kinds, run_suites, schemas};
    #[pymodule_export]
    use super::formulas::{find_slot, infllm_partition, n_kv, self_extend_positions, slot_stable};
    #[pymodule_export]
    use super::infllm::InfLlm;
    #[pymodule_export]
    use super::infllm_step::InfLlmStep;
    #[pymodule_export]
    use super::manager::Manager;
    #[pymodule_export]
    use super::memory::HostMemory;
    #[pymodule_export]
    use super::operator::{
        address_of, attribute_names, cache_geometry, cache_layouts, check, check_node, cuda, domains, element_types,
        input_names, instruction_set, instruction_sets, legal_types, oldest_onnxruntime, output_names, pack_int4, run,
        unpack_int4,
    };
    #[pymodule_export]
    use super::rope::Rope;
    #[pymodule_export]
    use super::states::{StateCache, StateStep};
    #[pymodule_export]
    use super::step::Step;
    #[pymodule_export]
    use super::tiers::{FileTier, HostTier, ObjectTier, RedisTier};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
