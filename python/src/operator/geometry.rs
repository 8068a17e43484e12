//! The memory of a cache: shapes and bytes, and whether given memory fits a cache.

use kvcache_op::schema::{Axis, CacheLayout, OperatorKind, STATIC_SCALES, shape};
use kvcache_op::{ElementType, Error, Operator};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::kind::operator;
use super::tensor::{Access, Tensor};
use crate::refusal::Refusal;

/// Shape and bytes of a `cache` or `scale`.
type Size<'py> = (Bound<'py, PyTuple>, usize);

/// Shape and bytes of a cache of these attributes, types and sizes, and of its scale; the scale's are None where there
/// is none.
#[pyfunction]
pub fn cache_geometry<'py>(
    attributes: &Bound<'py, PyDict>,
    dtype: &str,
    cache_dtype: &str,
    scale_dtype: Option<&str>,
    max_tokens: i64,
    num_kv_heads: i64,
    head_dim: i64,
) -> PyResult<(Size<'py>, Option<Size<'py>>)> {
    let py = attributes.py();
    let Operator::KeyValueCache(op) = operator(OperatorKind::KeyValueCache, attributes)? else {
        unreachable!("the operator of this kind")
    };
    let (t1, t2) = (element("dtype", dtype)?, element("cache_dtype", cache_dtype)?);
    let t3 = scale_dtype.map(|name| element("scale_dtype", name)).transpose()?;
    op.check_types(t1, t1, t2, t3).map_err(Refusal::from)?;
    let size = |name, got: i64| {
        usize::try_from(got)
            .ok()
            .filter(|&size| size > 0)
            .ok_or_else(|| PyErr::from(Refusal::new("spec_range", format!("{name} is {got}, expected at least 1"))))
    };
    let sizes = (size("max_tokens", max_tokens)?, size("num_kv_heads", num_kv_heads)?, size("head_dim", head_dim)?);
    let [cache, scale] = op.cache_shapes(sizes.0, sizes.1, sizes.2).map_err(Refusal::from)?;
    let attributes = op.attributes();
    let static_scales = [attributes.num_layer as usize, 2, sizes.1];
    let scale = if attributes.quant_type == STATIC_SCALES { &static_scales[..] } else { &scale };
    let bytes = |input, element, axes: &[usize]| {
        let overflow = || Refusal::from(Error::SizeOverflow { input, shape: axes.into() });
        PyResult::Ok((PyTuple::new(py, axes)?, shape::bytes(element, axes).ok_or_else(overflow)?))
    };
    Ok((bytes("cache", t2, &cache)?, t3.map(|t3| bytes("scale", t3, scale)).transpose()?))
}

/// Checks that an array is the contiguous memory of a tensor of this type and shape, called `cache` or `scale`, and
/// writable if it is written; returns its address.
#[pyfunction]
pub fn address_of(
    name: &str,
    array: &Bound<'_, PyAny>,
    dtype: &str,
    expected: Vec<usize>,
    written: bool,
) -> PyResult<usize> {
    let name = if name == "scale" { "scale" } else { "cache" };
    let expected_type = element(name, dtype)?;
    let access = match expected_type {
        ElementType::Int4 => Access::WriteInt4,
        _ if written => Access::Write,
        _ => Access::Read,
    };
    let tensor = Tensor::new(name, array, access)?;
    let lengths: Vec<_> = expected.iter().copied().map(Some).collect();
    tensor.check(name, expected_type, Some(&lengths))?;
    let (address, align) = (tensor.address().addr(), expected_type.align());
    if !expected.contains(&0) && !address.is_multiple_of(align) {
        return Err(Refusal::from(Error::Misaligned { input: name, address, expected: align }).into());
    }
    Ok(address)
}

/// The axes of `cache` and `scale` by `cache_layout`, outermost first, without the innermost one.
#[pyfunction]
pub fn cache_layouts() -> Vec<Vec<&'static str>> {
    let name = |axis| match axis {
        Axis::Token => "MaxT",
        Axis::Layer => "L",
        Axis::Kv => "2",
        Axis::Head => "H",
    };
    CacheLayout::ALL.into_iter().map(|layout| layout.axes().map(name).to_vec()).collect()
}

/// The type of this name.
pub fn element(name: &str, got: &str) -> PyResult<ElementType> {
    ElementType::from_name(got).ok_or_else(|| {
        let names = ElementType::T2.map(ElementType::name).join(", ");
        Refusal::new("type_unknown", format!("{name} is {got:?}, expected one of {names}")).into()
    })
}
