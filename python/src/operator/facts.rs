//! What the operators are and what this machine has, for Python: the rules stay in `kvcache-schema` and `kvcache-op`.

use kvcache_op::kernels::InstructionSet;
use kvcache_op::schema::{OperatorKind, QuantBit, TypeCombination};
use kvcache_op::{Backend, ElementType};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::kind::{self, OF_GRAPHS, cache_attributes, kind, operator};
use crate::refusal::{Refusal, Result};

/// The domains that the operators are registered in.
#[pyfunction]
pub fn domains() -> Vec<&'static str> {
    kvcache_op::schema::DOMAINS.to_vec()
}

/// The names of the operator's attributes, in the specification's order.
#[pyfunction]
pub fn attribute_names(op_type: &str) -> Result<Vec<&'static str>> {
    Ok(kind::attribute_names(kind(op_type, &OF_GRAPHS)?))
}

/// The names of the operator's inputs, by position.
#[pyfunction]
pub fn input_names(op_type: &str) -> Result<Vec<&'static str>> {
    Ok(kind(op_type, &OF_GRAPHS)?.inputs().to_vec())
}

/// The names of the operator's outputs, by position.
#[pyfunction]
pub fn output_names(op_type: &str) -> Result<Vec<&'static str>> {
    Ok(kind(op_type, &OF_GRAPHS)?.outputs().to_vec())
}

/// Checks what is known of a node without types and shapes: attributes, and that it has the inputs that it needs, by
/// their names.
#[pyfunction]
pub fn check_node(op_type: &str, attributes: &Bound<'_, PyDict>, inputs: Vec<String>) -> Result<()> {
    let kind = kind(op_type, &OF_GRAPHS)?;
    let operator = operator(kind, attributes)?;
    let has = |name: &str| inputs.iter().any(|input| input == name);
    if let Some(unknown) = inputs.iter().find(|input| !kind.inputs().contains(&input.as_str())) {
        let names = kind.inputs().join(", ");
        let message = format!("{} has no input {unknown:?}, expected some of {names}", kind.name());
        return Err(Refusal::new("input_unknown", message));
    }
    if let Some(missing) = kind.inputs().iter().find(|name| !has(name) && !OperatorKind::is_optional(name)) {
        let message = format!("{missing} is absent, and {} needs it", kind.name());
        return Err(Refusal::new("input_missing", message));
    }
    let Some(cache) = cache_attributes(&operator) else { return Ok(()) };
    if has("scale") {
        return Ok(());
    }
    let (op, t1) = (kvcache_op::KeyValueCache::new(cache.clone())?, ElementType::Float16);
    let t2 = QuantBit::from_codes(cache.quant_bit, cache.quant_type).map_or(t1, QuantBit::element);
    Ok(op.check_types(t1, t1, t2, None)?)
}

/// The table of legal types: (quant_bit, T1, T2, T3), T3 None where a scale is not used.
#[pyfunction]
pub fn legal_types() -> Vec<(i64, &'static str, &'static str, Option<&'static str>)> {
    let row = |row: TypeCombination| (row.quant_bit, row.t1.name(), row.t2.name(), row.t3.map(ElementType::name));
    TypeCombination::all().map(row).collect()
}

/// The types of tensors: their names, and their numbers in ONNX.
#[pyfunction]
pub fn element_types() -> Vec<(&'static str, i32)> {
    ElementType::ALL.into_iter().map(|element| (element.name(), element.onnx())).collect()
}

/// The CPU kernels by their instruction sets, the best last, and whether this machine has the instructions.
#[pyfunction]
pub fn instruction_sets() -> Vec<(&'static str, bool)> {
    InstructionSet::ALL.into_iter().map(|set| (set.name(), set.is_supported())).collect()
}

/// The best instruction set that kernels may use here, and the environment variable that limits it.
#[pyfunction]
pub fn instruction_set() -> (&'static str, &'static str) {
    (InstructionSet::best().name(), InstructionSet::VARIABLE)
}

/// The name of the CPU kernel that calls use, and what CUDA says: None where it is found, else why it is not.
#[pyfunction]
pub fn cuda() -> (String, Option<String>) {
    #[cfg(feature = "cuda")]
    let missing = kvcache_op::cuda::available().err().map(|error| error.to_string());
    #[cfg(not(feature = "cuda"))]
    let missing = Some("built without the feature cuda".to_owned());
    (Backend::default().name().to_owned(), missing)
}

/// The oldest ONNX Runtime that can register the library: (major, minor).
#[pyfunction]
pub fn oldest_onnxruntime() -> (u32, u32) {
    (1, kvcache_ort::ORT_API_VERSION)
}
