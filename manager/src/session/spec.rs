//! What the caches of a session and of a manager have to have in common.

use kvcache_kernels::RopeStyle;

use super::error::SessionError;
use super::header::clip;
use crate::spec::{CacheSpec, KeyForm};

/// The tensor of rows, the last one of the data.
pub(super) const ROWS: &str = "rows";

/// What the caches of a session and of a manager have in common. Slots, layout and mode may differ.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SessionSpec {
    pub(crate) num_layer: usize,
    pub(crate) num_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) cache_type: String,
    pub(crate) scale_type: Option<String>,
    /// 0 without quantization, and so is `quant_group`.
    pub(crate) quant_bit: usize,
    pub(crate) quant_group: usize,
    pub(crate) key_form: String,
    pub(crate) rope: Option<SavedRope>,
    pub(crate) fingerprint: String,
    pub(crate) row_len: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SavedRope {
    pub(crate) style: String,
    pub(crate) n_rot: usize,
    pub(crate) frequencies: Vec<f64>,
}

impl From<&CacheSpec> for SessionSpec {
    fn from(spec: &CacheSpec) -> Self {
        let quant = spec.quant();
        let rope = spec.rope().map(|rope| SavedRope {
            style: match rope.style() {
                RopeStyle::Neox => "neox",
                RopeStyle::Gptj => "gptj",
            }
            .to_owned(),
            n_rot: rope.n_rot(),
            frequencies: rope.frequencies().collect(),
        });
        let key_form = match spec.key_form() {
            KeyForm::Roped => "roped",
            KeyForm::Raw => "raw",
        };
        Self {
            num_layer: spec.geometry().num_layer,
            num_heads: spec.geometry().num_heads,
            head_dim: spec.geometry().head_dim,
            cache_type: spec.cache_type().name().to_owned(),
            scale_type: quant.map(|(_, _, scale_type)| scale_type.name().to_owned()),
            quant_bit: quant.map_or(0, |(bit, ..)| bit.element().bits()),
            quant_group: quant.map_or(0, |(_, group, _)| group),
            key_form: key_form.to_owned(),
            rope,
            fingerprint: spec.fingerprint().to_owned(),
            row_len: spec.bytes_per_token(),
        }
    }
}

impl SessionSpec {
    /// Checks that a session's rows are such as the cache of this specification has.
    pub(crate) fn check(&self, session: &Self) -> Result<(), SessionError> {
        let dimensions = [
            ("num_layer", self.num_layer, session.num_layer),
            ("num_heads", self.num_heads, session.num_heads),
            ("head_dim", self.head_dim, session.head_dim),
        ];
        for (name, expected, got) in dimensions {
            if got != expected {
                return Err(SessionError::Dimensions { name, expected, got });
            }
        }
        check_type("cache", Some(&self.cache_type), Some(&session.cache_type))?;
        let attributes =
            [("quant_bit", self.quant_bit, session.quant_bit), ("quant_group", self.quant_group, session.quant_group)];
        for (attribute, expected, got) in attributes {
            if got != expected {
                return Err(SessionError::Quantization { attribute, expected, got });
            }
        }
        check_type("scale", self.scale_type.as_deref(), session.scale_type.as_deref())?;
        if session.key_form != self.key_form {
            let (expected, got) = (self.key_form.clone(), clip(&session.key_form));
            return Err(SessionError::KeyForm { expected, got });
        }
        check_rope(self.rope.as_ref(), session.rope.as_ref())?;
        if session.fingerprint != self.fingerprint {
            let (expected, got) = (clip(&self.fingerprint), clip(&session.fingerprint));
            return Err(SessionError::Fingerprint { expected, got });
        }
        if session.row_len != self.row_len {
            let (expected, got) = (bytes_a_row(self.row_len), bytes_a_row(session.row_len));
            return Err(SessionError::Tensor { name: ROWS.to_owned(), expected, got });
        }
        Ok(())
    }
}

fn bytes_a_row(row_len: usize) -> String {
    format!("of {row_len} bytes a row")
}

fn check_type(tensor: &'static str, expected: Option<&str>, got: Option<&str>) -> Result<(), SessionError> {
    let name = |element: Option<&str>| clip(element.unwrap_or("none"));
    if got == expected { Ok(()) } else { Err(SessionError::Types { tensor, expected: name(expected), got: name(got) }) }
}

/// Frequencies are equal in every bit: keys are rotated by exactly these.
fn check_rope(expected: Option<&SavedRope>, got: Option<&SavedRope>) -> Result<(), SessionError> {
    let differ = |name: String, expected: String, got: String| SessionError::Rope { name, expected, got: clip(&got) };
    let (expected, got) = match (expected, got) {
        (None, None) => return Ok(()),
        (Some(expected), Some(got)) => (expected, got),
        (expected, got) => {
            let style = |rope: Option<&SavedRope>| rope.map_or_else(|| "none".to_owned(), |rope| rope.style.clone());
            return Err(differ("the style".to_owned(), style(expected), style(got)));
        }
    };
    if got.style != expected.style {
        return Err(differ("the style".to_owned(), expected.style.clone(), got.style.clone()));
    }
    if got.n_rot != expected.n_rot || got.frequencies.len() != expected.frequencies.len() {
        let lengths = |rope: &SavedRope| format!("{} with {} frequencies", rope.n_rot, rope.frequencies.len());
        return Err(differ("n_rot".to_owned(), lengths(expected), lengths(got)));
    }
    let mut pairs = expected.frequencies.iter().zip(&got.frequencies).enumerate();
    match pairs.find(|(_, (expected, got))| expected.to_bits() != got.to_bits()) {
        Some((i, (expected, got))) => {
            Err(differ(format!("frequency {i}"), format!("{expected:?}"), format!("{got:?}")))
        }
        None => Ok(()),
    }
}
