//! `kvcache_ops.CacheSpec`, which the operators have checked, for the manager.

use kvcache_manager::schema::{CacheLayout, ElementType, QuantBit};
use kvcache_manager::{CacheSettings, Geometry, KeyForm, Mode};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

use crate::arguments::{choice, type_error};
use crate::refusal::Result;

/// The fields of a `CacheSpec`, by their names.
#[derive(FromPyObject)]
struct Fields {
    num_layers: usize,
    num_kv_heads: usize,
    head_dim: usize,
    max_tokens: usize,
    cache_layout: i64,
    quant_group: usize,
    quant_rotation: i64,
    cache_dtype: String,
    scale_dtype: Option<String>,
    static_scale: bool,
}

/// The cache of a `CacheSpec`, but for its mode.
pub fn settings(spec: &Bound<'_, PyAny>) -> PyResult<CacheSettings> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let other = || type_error("spec", "kvcache_ops.CacheSpec", spec);
    if !spec.is_instance(CLASS.import(spec.py(), "kvcache_ops.ops._cache_spec", "CacheSpec")?)? {
        return Err(other());
    }
    let fields: Fields = spec.extract()?;
    let geometry = Geometry {
        num_layer: fields.num_layers,
        num_heads: fields.num_kv_heads,
        head_dim: fields.head_dim,
        max_t: fields.max_tokens,
    };
    let layout = CacheLayout::from_code(fields.cache_layout).ok_or_else(other)?;
    let cache_type = ElementType::from_name(&fields.cache_dtype).ok_or_else(other)?;
    let scale_type = fields.scale_dtype.as_deref().filter(|_| !fields.static_scale).and_then(ElementType::from_name);
    let quant = QuantBit::of_element(cache_type).and(scale_type).map(|scale_type| (fields.quant_group, scale_type));
    let quant_rotation = fields.quant_rotation == 1;
    Ok(CacheSettings { geometry, layout, cache_type, quant, quant_rotation, ..CacheSettings::default() })
}

/// The mode of this name, or the one that goes by the `cache_mode` of a `CacheSpec`.
pub fn mode(spec: &Bound<'_, PyAny>, name: Option<&str>) -> Result<Mode> {
    let page_size = spec.getattr("page_size")?.extract()?;
    let paged = spec.getattr("cache_mode")?.extract::<i64>()? == 1;
    let paged_modes = [("paged", Mode::Paged { page_size })];
    let modes: &[_] = if paged { &paged_modes } else { &[("runs", Mode::Runs), ("cells", Mode::Cells)] };
    name.map_or(Ok(modes[0].1), |name| choice("mode", name, modes))
}

/// The form of stored keys, by its name.
pub fn key_form(name: &str) -> Result<KeyForm> {
    choice("key_form", name, &[("roped", KeyForm::Roped), ("raw", KeyForm::PreRope)])
}
