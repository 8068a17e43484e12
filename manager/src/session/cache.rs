//! The metadata of the cache that a session's rows are of, which the cache that loads them must have in common with it.
//! Slots, layout and mode may differ.

use std::collections::BTreeMap;

use kvcache_kernels::{Rope, RopeStyle};

use super::error::SessionError;
use super::file::{Reader, clip};
use crate::spec::{CacheSpec, KeyForm};

fn dimensions(spec: &CacheSpec) -> [(&'static str, usize); 3] {
    let geometry = spec.geometry;
    [("num_layer", geometry.num_layer), ("num_heads", geometry.num_heads), ("head_dim", geometry.head_dim)]
}

/// 0 without quantization.
fn quantization(spec: &CacheSpec) -> [(&'static str, usize); 2] {
    let (bit, group) = spec.quant.map_or((0, 0), |(group, _)| (spec.cache_type.bits(), group));
    [("quant_bit", bit), ("quant_group", group)]
}

/// 1 where keys were multiplied by a Hadamard matrix. Files that do not have it are of caches without.
const ROTATION: &str = "quant_rotation";

fn scale_type(spec: &CacheSpec) -> Option<&'static str> {
    spec.quant.map(|(_, scale_type)| scale_type.name())
}

fn key_form(spec: &CacheSpec) -> &'static str {
    match spec.key_form {
        KeyForm::Roped => "roped",
        KeyForm::PreRope => "raw",
    }
}

fn rope_style(rope: &Rope) -> &'static str {
    match rope.style() {
        RopeStyle::Neox => "neox",
        RopeStyle::Gptj => "gptj",
    }
}

/// Decimal numbers as short as they can be to be read back exactly: equal texts are equal bits.
fn frequencies(rope: &Rope) -> String {
    rope.frequencies().map(|frequency| format!("{frequency:?}")).collect::<Vec<_>>().join(",")
}

/// The metadata of a cache.
pub(crate) fn metadata(spec: &CacheSpec) -> BTreeMap<&'static str, String> {
    let mut metadata = BTreeMap::from([
        ("cache_type", spec.cache_type.name().to_owned()),
        ("key_form", key_form(spec).to_owned()),
        ("fingerprint", spec.fingerprint.clone()),
    ]);
    let numbers = dimensions(spec).into_iter().chain(quantization(spec));
    metadata.extend(numbers.map(|(key, number)| (key, number.to_string())));
    if spec.quant_rotation {
        metadata.insert(ROTATION, "1".to_owned());
    }
    metadata.extend(scale_type(spec).map(|scale_type| ("scale_type", scale_type.to_owned())));
    if let Some(rope) = spec.rope.as_ref() {
        metadata.insert("rope_style", rope_style(rope).to_owned());
        metadata.insert("rope_n_rot", rope.n_rot().to_string());
        metadata.insert("rope_frequencies", frequencies(rope));
    }
    metadata
}

/// Checks that a file's rows are such as the cache of this specification has.
pub(crate) fn check<R>(spec: &CacheSpec, file: &Reader<R>) -> Result<(), SessionError> {
    let text = |key| file.get(key).ok_or_else(|| file.unexpected(key, "a text"));
    let number = |key| text(key)?.parse().map_err(|_| file.unexpected(key, "a number"));
    for (name, expected) in dimensions(spec) {
        let got = number(name)?;
        if got != expected {
            return Err(SessionError::mismatch("dimensions", name, expected, got));
        }
    }
    let equal = |kind, what: &str, expected: &str, got: &str| {
        let mismatch = || SessionError::mismatch(kind, what, clip(expected), clip(got));
        if got == expected { Ok(()) } else { Err(mismatch()) }
    };
    equal("types", "the type of cache", spec.cache_type.name(), text("cache_type")?)?;
    let quantization =
        quantization(spec).into_iter().map(|(attribute, expected)| (attribute, expected, number(attribute)));
    let rotation = if file.get(ROTATION).is_some() { number(ROTATION) } else { Ok(0) };
    for (attribute, expected, got) in quantization.chain([(ROTATION, spec.quant_rotation.into(), rotation)]) {
        let got = got?;
        if got != expected {
            return Err(SessionError::mismatch("quantization", attribute, expected, got));
        }
    }
    let scale_types = (scale_type(spec).unwrap_or("none"), file.get("scale_type").unwrap_or("none"));
    equal("types", "the type of scale", scale_types.0, scale_types.1)?;
    equal("key_form", "the form of keys", key_form(spec), text("key_form")?)?;
    let style = file.get("rope_style").unwrap_or("none");
    equal("rope", "the style of RoPE", spec.rope.as_ref().map_or("none", rope_style), style)?;
    if let Some(rope) = spec.rope.as_ref() {
        equal("rope", "n_rot of RoPE", &rope.n_rot().to_string(), text("rope_n_rot")?)?;
        let (expected, got) = (frequencies(rope), text("rope_frequencies")?);
        for (i, (expected, got)) in expected.split(',').zip(got.split(',')).enumerate() {
            equal("rope", &format!("frequency {i} of RoPE"), expected, got)?;
        }
        equal("rope", "the list of frequencies of RoPE", &expected, got)?;
    }
    let (expected, got) = (spec.fingerprint.as_str(), text("fingerprint")?);
    if got == expected {
        return Ok(());
    }
    let [expected, got] = [expected, got].map(|fingerprint| format!("\"{}\"", clip(fingerprint)));
    Err(SessionError::mismatch("fingerprint", "the fingerprint", expected, got))
}
