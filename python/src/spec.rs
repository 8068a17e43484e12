//! `CacheSpec`: what a manager manages, checked once.

use kvcache_manager as core;
use kvcache_manager::schema::{CacheLayout, ElementType, QuantBit};
use kvcache_manager::{CacheSpecBuilder, Error, Geometry, KeyForm, Mode};
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::numbers::{choice, count, integer, within};
use crate::refusal::Refusal;
use crate::rope::Rope;

const KEY_FORMS: [(&str, KeyForm); 2] = [("roped", KeyForm::Roped), ("raw", KeyForm::Raw)];
const TYPES: [(&str, ElementType); 4] = [
    ("float32", ElementType::Float32),
    ("float16", ElementType::Float16),
    ("int8", ElementType::Int8),
    ("int4", ElementType::Int4),
];

/// A cache and the way it is managed, checked. The arguments can be read as attributes.
///
/// num_layer, num_heads, head_dim, max_t: attention layers (L), cache heads (H), elements of a head (Dh), slots (MaxT).
/// cache_type: "float32", "float16", "int8" or "int4". A quantized cache also has scale_type ("float32" or "float16"),
/// quant_bit (8 or 4) and quant_group, the neighbors that share a scale.
/// cache_layout: the order of the axes, as the operator's attribute: 0 (MaxT, L, 2, H, Dh), 1 (L, MaxT, 2, H, Dh),
/// 2 (L, 2, MaxT, H, Dh), 3 (L, 2, H, MaxT, Dh).
/// mode: "paged" (pages of page_size slots, shared and copied on write), "runs" (neighboring slots) or "cells" (slots
/// anywhere, of which attention sees all with a mask). max_pages fixes the columns of `cachestarts` in "paged".
/// key_form: "roped" (keys are stored after rotary embedding, and rotated when positions change; `rope` says how) or
/// "raw" (the graph rotates them by `key_positions`).
/// window: attention sees the last `window` positions, and the first `sink` rows; `slack` more positions are kept.
/// pad: what the number of cells of a step is rounded up to, in "cells".
/// defrag_threshold: the part of free slots past which a commit queues a defragmentation; None or below 0: never.
/// shift_limit: how many updates may rotate a sequence's rows: a number, None (any), "default" (int4: 4, else any).
/// prefix_sharing: whether sequences of the same tokens share pages. fingerprint: what makes keys and values of the
/// same tokens differ: the model, its adapters.
///
/// Raises ManagerError for what is out of range or does not go together, TypeError for other types.
#[pyclass(frozen, eq, name = "CacheSpec", module = "kvcache_ops.manager")]
#[derive(Debug, PartialEq)]
pub struct Spec {
    core: core::CacheSpec,
    /// Without quantization the manager does not know it.
    quant_group: usize,
}

impl Spec {
    /// The same for the manager.
    pub fn core(&self) -> &core::CacheSpec {
        &self.core
    }
}

/// Numbers by the names of their arguments.
mod number {
    use super::*;

    macro_rules! counts {
        ($($name:ident),*) => {
            $(
                pub fn $name(value: &Bound<'_, PyAny>) -> PyResult<usize> {
                    count("spec_range", stringify!($name), value)
                }
            )*
        };
    }

    counts!(num_layer, num_heads, head_dim, max_t, quant_group, page_size, sink, slack, pad);

    pub fn cache_layout(value: &Bound<'_, PyAny>) -> PyResult<i64> {
        within("spec_range", "cache_layout", value, 0, 3)
    }

    pub fn quant_bit(value: &Bound<'_, PyAny>) -> PyResult<i64> {
        integer("spec_range", "quant_bit", value)
    }

    fn optional(name: &'static str, value: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
        if value.is_none() { Ok(None) } else { count("spec_range", name, value).map(Some) }
    }

    pub fn max_pages(value: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
        optional("max_pages", value)
    }

    pub fn window(value: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
        optional("window", value)
    }

    pub fn shift_limit(value: &Bound<'_, PyAny>) -> PyResult<ShiftLimit> {
        if value.is_none() {
            return Ok(ShiftLimit::Given(None));
        }
        match value.cast::<PyString>() {
            Ok(name) => choice("shift_limit", name.to_str()?, &[("default", ShiftLimit::Default)]),
            Err(_) => {
                let limit = within("spec_range", "shift_limit", value, 0, u32::MAX.into())?;
                Ok(ShiftLimit::Given(Some(limit as u32)))
            }
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum ShiftLimit {
    Default,
    Given(Option<u32>),
}

/// Gives the builder the types; the quantization's parts must agree.
fn typed(
    builder: CacheSpecBuilder,
    cache_type: ElementType,
    scale_type: Option<ElementType>,
    quant_bit: i64,
    quant_group: usize,
) -> Result<CacheSpecBuilder, Refusal> {
    let bit = QuantBit::from_code(quant_bit);
    match (bit, scale_type) {
        (None, None) if quant_bit == 0 => Ok(builder.cache_type(cache_type)),
        (Some(bit), Some(scale_type)) if bit.element() == cache_type => {
            Ok(builder.quantized(bit, quant_group, scale_type))
        }
        (None, _) if quant_bit != 0 => {
            let details = vec![("name", "quant_bit".into()), ("got", quant_bit.into()), ("expected", "0, 4, 8".into())];
            Err(Refusal::new("spec_range", format!("quant_bit is {quant_bit}, expected 0, 4 or 8"), details))
        }
        _ => Err(Error::Types { cache: cache_type, scale: scale_type }.into()),
    }
}

#[pymethods]
impl Spec {
    #[new]
    #[pyo3(
        signature = (
            *, num_layer, num_heads, head_dim, max_t, cache_type="float16", scale_type=None, quant_bit=0,
            quant_group=8, cache_layout=0, mode="paged", page_size=128, max_pages=None, key_form="roped", rope=None,
            window=None, sink=0, slack=0, pad=32, defrag_threshold=None, shift_limit=ShiftLimit::Default,
            prefix_sharing=true, fingerprint=""
        ),
        text_signature = "(*, num_layer, num_heads, head_dim, max_t, cache_type='float16', scale_type=None, \
            quant_bit=0, quant_group=8, cache_layout=0, mode='paged', page_size=128, max_pages=None, \
            key_form='roped', rope=None, window=None, sink=0, slack=0, pad=32, defrag_threshold=None, \
            shift_limit='default', prefix_sharing=True, fingerprint='')"
    )]
    #[expect(clippy::too_many_arguments, reason = "by keyword alone")]
    fn new(
        #[pyo3(from_py_with = number::num_layer)] num_layer: usize,
        #[pyo3(from_py_with = number::num_heads)] num_heads: usize,
        #[pyo3(from_py_with = number::head_dim)] head_dim: usize,
        #[pyo3(from_py_with = number::max_t)] max_t: usize,
        cache_type: &str,
        scale_type: Option<&str>,
        #[pyo3(from_py_with = number::quant_bit)] quant_bit: i64,
        #[pyo3(from_py_with = number::quant_group)] quant_group: usize,
        #[pyo3(from_py_with = number::cache_layout)] cache_layout: i64,
        mode: &str,
        #[pyo3(from_py_with = number::page_size)] page_size: usize,
        #[pyo3(from_py_with = number::max_pages)] max_pages: Option<usize>,
        key_form: &str,
        rope: Option<&Bound<'_, Rope>>,
        #[pyo3(from_py_with = number::window)] window: Option<usize>,
        #[pyo3(from_py_with = number::sink)] sink: usize,
        #[pyo3(from_py_with = number::slack)] slack: usize,
        #[pyo3(from_py_with = number::pad)] pad: usize,
        defrag_threshold: Option<f64>,
        #[pyo3(from_py_with = number::shift_limit)] shift_limit: ShiftLimit,
        prefix_sharing: bool,
        fingerprint: &str,
    ) -> PyResult<Self> {
        let layout = CacheLayout::from_code(cache_layout).unwrap_or_else(|| unreachable!("0 to 3, checked above"));
        let modes = [("paged", Mode::Paged { page_size }), ("runs", Mode::Runs), ("cells", Mode::Cells)];
        let builder = core::CacheSpec::builder(Geometry { num_layer, num_heads, head_dim, max_t })
            .layout(layout)
            .mode(choice("mode", mode, &modes)?)
            .key_form(choice("key_form", key_form, &KEY_FORMS)?)
            .sink(sink)
            .slack(slack)
            .pad(pad)
            .prefix_sharing(prefix_sharing)
            .fingerprint(fingerprint);
        let scale_type = scale_type.map(|name| choice("scale_type", name, &TYPES[..2])).transpose()?;
        let mut builder =
            typed(builder, choice("cache_type", cache_type, &TYPES)?, scale_type, quant_bit, quant_group)?;
        if let Some(max_pages) = max_pages {
            builder = builder.max_pages(max_pages);
        }
        if let Some(rope) = rope {
            builder = builder.rope(rope.get().core().clone());
        }
        if let Some(window) = window {
            builder = builder.window(window);
        }
        if let Some(threshold) = defrag_threshold {
            builder = builder.defrag_threshold(threshold);
        }
        if let ShiftLimit::Given(limit) = shift_limit {
            builder = builder.shift_limit(limit);
        }
        Ok(Self { core: builder.build().map_err(Refusal::from)?, quant_group })
    }

    /// Bytes of `cache` and `scale`.
    #[getter]
    fn nbytes(&self) -> usize {
        self.core.nbytes()
    }

    /// Bytes of a slot: all layers, keys and values, and their scales.
    #[getter]
    fn bytes_per_token(&self) -> usize {
        self.core.bytes_per_token()
    }

    /// The shape of `cache` in elements: the last axis is head_dim, for int4 too.
    #[getter]
    fn cache_shape(&self) -> (usize, usize, usize, usize, usize) {
        self.core.cache_shape().into()
    }

    /// The shape of `scale`, or None without quantization.
    #[getter]
    fn scale_shape(&self) -> Option<(usize, usize, usize, usize, usize)> {
        self.core.scale_shape().map(Into::into)
    }

    /// The slots of a cache with these dimensions and types that fit in `nbytes` bytes.
    fn max_tokens(&self, nbytes: &Bound<'_, PyAny>) -> PyResult<usize> {
        Ok(self.core.max_tokens(count("range", "nbytes", nbytes)?))
    }

    #[getter]
    fn num_layer(&self) -> usize {
        self.core.geometry().num_layer
    }

    #[getter]
    fn num_heads(&self) -> usize {
        self.core.geometry().num_heads
    }

    #[getter]
    fn head_dim(&self) -> usize {
        self.core.geometry().head_dim
    }

    #[getter]
    fn max_t(&self) -> usize {
        self.core.geometry().max_t
    }

    #[getter]
    fn cache_type(&self) -> &'static str {
        self.core.cache_type().name()
    }

    #[getter]
    fn scale_type(&self) -> Option<&'static str> {
        self.core.quant().map(|(_, _, scale_type)| scale_type.name())
    }

    #[getter]
    fn quant_bit(&self) -> i64 {
        self.core.quant().map_or(0, |(bit, _, _)| bit.code())
    }

    #[getter]
    fn quant_group(&self) -> usize {
        self.quant_group
    }

    #[getter]
    fn cache_layout(&self) -> i64 {
        self.core.layout().code()
    }

    #[getter]
    fn mode(&self) -> &'static str {
        match self.core.mode() {
            Mode::Runs => "runs",
            Mode::Cells => "cells",
            // `Mode` may get variants; this one is the default.
            _ => "paged",
        }
    }

    #[getter]
    fn page_size(&self) -> usize {
        self.core.page_size()
    }

    #[getter]
    fn max_pages(&self) -> Option<usize> {
        self.core.max_pages()
    }

    #[getter]
    fn key_form(&self) -> &'static str {
        match self.core.key_form() {
            KeyForm::Roped => "roped",
            KeyForm::Raw => "raw",
        }
    }

    #[getter]
    fn rope(&self) -> Option<Rope> {
        self.core.rope().cloned().map(Rope::from)
    }

    #[getter]
    fn window(&self) -> Option<usize> {
        self.core.window()
    }

    #[getter]
    fn sink(&self) -> usize {
        self.core.sink()
    }

    #[getter]
    fn slack(&self) -> usize {
        self.core.slack()
    }

    #[getter]
    fn pad(&self) -> usize {
        self.core.pad()
    }

    #[getter]
    fn defrag_threshold(&self) -> Option<f64> {
        self.core.defrag_threshold()
    }

    #[getter]
    fn shift_limit(&self) -> Option<u32> {
        self.core.shift_limit()
    }

    #[getter]
    fn prefix_sharing(&self) -> bool {
        self.core.prefix_sharing()
    }

    #[getter]
    fn fingerprint(&self) -> &str {
        self.core.fingerprint()
    }
}
