//! The operators on borrowed memory of Python's tensors, without ONNX Runtime, and the facts that `kvcache_ops` asks
//! for.

mod borrowed_call;
mod dlpack;
mod facts;
mod geometry;
mod kind;
mod tensor;

pub use borrowed_call::{check, run};
pub use facts::{
    attribute_names, check_node, cuda, domains, element_types, input_names, instruction_set, instruction_sets,
    legal_types, oldest_onnxruntime, output_names,
};
pub use geometry::{address_of, cache_geometry, cache_layouts, pack_int4, unpack_int4};
