//! `Rope`: how keys are rotated when their positions change.

use kvcache_manager as core;
use kvcache_manager::RopeStyle;
use pyo3::prelude::*;

use crate::arguments::{Number, choice};
use crate::refusal::{Refusal, Result};

const STYLES: [(&str, RopeStyle); 2] = [("neox", RopeStyle::Neox), ("gptj", RopeStyle::Gptj)];

/// Longer than any head. Frequencies are checked one by one.
const MAX_N_ROT: i64 = 1 << 16;

/// A rotary position embedding: pair i of the first `n_rot` elements of a head is rotated by f_i radians a position.
///
/// f_i = scale * base**(-2 * i / n_rot), or scale * inv_freq[i] where the n_rot / 2 numbers `inv_freq` are given, as
/// YaRN and Llama 3 compute them; `base` is not used then. style: "neox" pairs elements i and i + n_rot / 2, "gptj" 2i
/// and 2i + 1.
///
/// Raises ManagerError for an n_rot that is odd or out of range, and for frequencies that are not finite, or not
/// n_rot / 2 of them.
#[pyclass(frozen, eq, module = "kvcache_ops.manager")]
#[derive(Debug, PartialEq)]
pub struct Rope(pub core::Rope);

#[pymethods]
impl Rope {
    #[new]
    #[pyo3(signature = (n_rot, *, base=1e4, scale=1.0, style="neox", inv_freq=None))]
    fn new(n_rot: Number, base: f64, scale: f64, style: &str, inv_freq: Option<Vec<f64>>) -> Result<Self> {
        let n_rot = n_rot.within("spec_range", "n_rot", 2, MAX_N_ROT)? as usize;
        let rope = match (inv_freq, choice("style", style, &STYLES)?) {
            (Some(frequencies), _) if 2 * frequencies.len() != n_rot => {
                let (expected, got) = (n_rot / 2, frequencies.len());
                let message = format!("inv_freq has {got} numbers, expected n_rot / 2 = {expected}");
                let refusal = Refusal::manager("spec_range", message).with("name", "inv_freq");
                return Err(refusal.with("expected", expected).with("got", got));
            }
            (Some(frequencies), style) => core::Rope::with_frequencies(style, frequencies),
            (None, RopeStyle::Neox) => core::Rope::neox(n_rot, base),
            (None, RopeStyle::Gptj) => core::Rope::gptj(n_rot, base),
        };
        let rope = rope.scaled(scale);
        rope.check(n_rot).map_err(core::Error::from)?;
        Ok(Self(rope))
    }

    /// The number of elements of a head that are rotated: the first ones.
    #[getter]
    fn n_rot(&self) -> usize {
        self.0.n_rot()
    }

    /// Which elements are a pair: "neox" or "gptj".
    #[getter]
    fn style(&self) -> &'static str {
        STYLES[usize::from(self.0.style() != STYLES[0].1)].0
    }

    /// The n_rot / 2 frequencies in radians a position, `scale` included.
    #[getter]
    fn inv_freq(&self) -> Vec<f64> {
        self.0.frequencies().collect()
    }
}
