//! The memory of a cache: shapes, bytes and packed int4, and whether given memory fits a cache.

use kvcache_op::kernels::quantize::{nibble, with_nibble};
use kvcache_op::schema::{Axis, CacheLayout, OperatorKind, STATIC_SCALES, shape};
use kvcache_op::{ElementType, Error, Operator};
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::kind::operator;
use super::tensor::{Access, Tensor};
use crate::refusal::{Refusal, Result};

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
) -> Result<(Size<'py>, Option<Size<'py>>)> {
    let py = attributes.py();
    let Operator::KeyValueCache(op) = operator(OperatorKind::KeyValueCache, attributes)? else {
        unreachable!("the operator of this kind")
    };
    let (t1, t2) = (element("dtype", dtype)?, element("cache_dtype", cache_dtype)?);
    let t3 = scale_dtype.map(|name| element("scale_dtype", name)).transpose()?;
    op.check_types(t1, t1, t2, t3)?;
    let size = |name, got: i64| {
        let size = usize::try_from(got).ok().filter(|&size| size > 0);
        size.ok_or_else(|| Refusal::new("spec_range", format!("{name} is {got}, expected at least 1")))
    };
    let sizes = (size("max_tokens", max_tokens)?, size("num_kv_heads", num_kv_heads)?, size("head_dim", head_dim)?);
    let [cache, scale] = op.cache_shapes(sizes.0, sizes.1, sizes.2)?;
    let attributes = op.attributes();
    let static_scales = [attributes.num_layer as usize, 2, sizes.1];
    let scale = if attributes.quant_type == STATIC_SCALES { &static_scales[..] } else { &scale };
    let bytes = |input, element, axes: &[usize]| -> Result<_> {
        let overflow = || Error::SizeOverflow { input, shape: axes.into() };
        Ok((PyTuple::new(py, axes)?, shape::bytes(element, axes).ok_or_else(overflow)?))
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
) -> Result<usize> {
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
        return Err(Error::Misaligned { input: name, address, expected: align }.into());
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
pub fn element(name: &str, got: &str) -> Result<ElementType> {
    ElementType::from_name(got).ok_or_else(|| {
        let names = ElementType::T2.map(ElementType::name).join(", ");
        Refusal::new("type_unknown", format!("{name} is {got:?}, expected one of {names}"))
    })
}

/// The bytes of int4 values, of which there is an even number, between -8 and 7.
#[pyfunction]
pub fn pack_int4<'py>(py: Python<'py>, values: PyReadonlyArray1<'py, i8>) -> Result<Bound<'py, PyArray1<u8>>> {
    let values = values.as_array();
    if let Some((i, value)) = values.iter().enumerate().find(|(_, value)| !(-8..=7).contains(*value)) {
        let message = format!("value {value} (element {i}) is no int4, expected -8 to 7");
        return Err(Refusal::new("int4_range", message));
    }
    let pairs = values.len() / 2;
    let byte = |pair: usize| (0..2).fold(0, |byte, i| with_nibble(byte, i, values[2 * pair + i]));
    Ok((0..pairs).map(byte).collect::<Vec<_>>().into_pyarray(py))
}

/// The int4 values of packed bytes.
#[pyfunction]
pub fn unpack_int4<'py>(py: Python<'py>, packed: PyReadonlyArray1<'py, u8>) -> Bound<'py, PyArray1<i8>> {
    let packed = packed.as_array();
    let values = packed.iter().flat_map(|&byte| [nibble(byte, 0), nibble(byte, 1)]);
    values.collect::<Vec<_>>().into_pyarray(py)
}
