//! The arguments of `Step.mask`, and the memory of masks.

use std::sync::Arc;

use kvcache_manager::{Error, MaskElement, MaskSpec, MaskWindow, Step};
use numpy::{PyArrayDescr, PyArrayDescrMethods, dtype};
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::arguments::{Number, choice};
use crate::buffers::{Buffer, Pool};
use crate::refusal::{Refusal, Result};

/// Argument `window`.
pub fn window(value: &Bound<'_, PyAny>) -> PyResult<MaskWindow> {
    if value.is_none() {
        return Ok(MaskWindow::None);
    }
    match value.cast::<PyString>() {
        Ok(name) => Ok(choice("window", name.to_str()?, &[("spec", MaskWindow::Spec)])?),
        Err(_) => Ok(MaskWindow::Some(value.extract::<Number>()?.within("range", "window", 1, i64::MAX)? as usize)),
    }
}

/// Whether argument `dtype` is float16, and not float32.
pub fn is_float16(py: Python<'_>, wanted: Option<&Bound<'_, PyAny>>) -> Result<bool> {
    let Some(wanted) = wanted else { return Ok(false) };
    let wanted = PyArrayDescr::new(py, wanted)?;
    if wanted.is_equiv_to(&dtype::<f32>(py)) {
        return Ok(false);
    }
    if wanted.is_equiv_to(&dtype::<half::f16>(py)) {
        return Ok(true);
    }
    let got = wanted.to_string();
    let refusal = Refusal::manager("spec_name", format!("dtype is {got}, expected float32 or float16"));
    Err(refusal.with("name", "dtype").with("got", got).with("expected", "float32, float16"))
}

/// Checks argument `alibi`.
pub fn check_slopes(slopes: Option<&[f32]>) -> Result<()> {
    match slopes.unwrap_or_default().iter().enumerate().find(|(_, slope)| !slope.is_finite()) {
        Some((index, &slope)) => {
            let message = format!("slope {index} of alibi is {slope}, expected a finite number");
            let refusal = Refusal::manager("range", message).with("name", "alibi");
            Err(refusal.with("index", index).with("got", f64::from(slope)))
        }
        None => Ok(()),
    }
}

/// A buffer with a step's mask.
pub fn fill<T: MaskElement>(
    step: &Step<'_>,
    spec: &MaskSpec<'_>,
    shape: &[usize; 3],
    pool: &Pool,
) -> Result<Arc<Buffer>, Error> {
    // A product that overflows is more than any allocation, too.
    let len = shape.iter().fold(1usize, |len, &axis| len.saturating_mul(axis));
    let words = len.div_ceil(size_of::<i64>() / size_of::<T>());
    pool.take(words, |numbers| {
        numbers.resize(words, 0);
        step.mask_into(spec, &mut bytemuck::cast_slice_mut::<_, T>(numbers)[..len])
    })
}
