//! The metadata of the cache that a session's rows are of, which the cache that loads them must have in common with it.
//! Slots, layout and mode may differ.

use std::collections::BTreeMap;

use kvcache_kernels::RopeStyle;

use super::error::SessionError;
use super::file::{Reader, clip};
use crate::spec::{CacheSpec, KeyForm};

/// An entry of the metadata.
struct Entry {
    key: &'static str,
    /// Its name in errors.
    what: &'static str,
    /// The kind of a mismatch.
    kind: &'static str,
    value: String,
    /// What it means that there is none: such a value is not written.
    absent: Option<&'static str>,
}

fn entries(spec: &CacheSpec) -> Vec<Entry> {
    let entry = |kind, key, what, value: &str| Entry { key, what, kind, value: value.to_owned(), absent: None };
    let number = |kind, key, value: usize| entry(kind, key, key, &value.to_string());
    let optional = |absent, entry| Entry { absent: Some(absent), ..entry };
    let (geometry, rope) = (spec.geometry, spec.rope.as_ref());
    let (bit, group) = spec.quant.map_or((0, 0), |(group, _)| (spec.cache_type.bits(), group));
    let scale_type = spec.quant.map_or("none", |(_, scale_type)| scale_type.name());
    let key_form = match spec.key_form {
        KeyForm::Roped => "roped",
        KeyForm::PreRope => "raw",
    };
    let rope_style = rope.map_or("none", |rope| match rope.style() {
        RopeStyle::Neox => "neox",
        RopeStyle::Gptj => "gptj",
    });
    let mut entries = vec![
        number("dimensions", "num_layer", geometry.num_layer),
        number("dimensions", "num_heads", geometry.num_heads),
        number("dimensions", "head_dim", geometry.head_dim),
        entry("types", "cache_type", "the type of cache", spec.cache_type.name()),
        number("quantization", "quant_bit", bit),
        number("quantization", "quant_group", group),
        // Files that do not have it are of caches without.
        optional("0", number("quantization", "quant_rotation", spec.quant_rotation.into())),
        optional("none", entry("types", "scale_type", "the type of scale", scale_type)),
        entry("key_form", "key_form", "the form of keys", key_form),
        optional("none", entry("rope", "rope_style", "the style of RoPE", rope_style)),
    ];
    if let Some(rope) = rope {
        // Decimal numbers as short as they can be to be read back exactly: equal texts are equal bits.
        let frequencies: Vec<_> = rope.frequencies().map(|frequency| format!("{frequency:?}")).collect();
        entries.push(entry("rope", "rope_n_rot", "n_rot of RoPE", &rope.n_rot().to_string()));
        entries.push(entry("rope", "rope_frequencies", "the list of frequencies of RoPE", &frequencies.join(",")));
    }
    entries.push(entry("fingerprint", "fingerprint", "the fingerprint", &spec.fingerprint));
    entries
}

/// The metadata of a cache.
pub(crate) fn metadata(spec: &CacheSpec) -> BTreeMap<&'static str, String> {
    let written = entries(spec).into_iter().filter(|entry| entry.absent != Some(&*entry.value));
    written.map(|entry| (entry.key, entry.value)).collect()
}

/// Checks that a file's rows are such as the cache of this specification has.
pub(crate) fn check<R>(spec: &CacheSpec, file: &Reader<R>) -> Result<(), SessionError> {
    for Entry { key, what, kind, value: expected, absent } in entries(spec) {
        let got = file.get(key).or(absent).ok_or_else(|| file.unexpected(key, "a text"))?;
        if matches!(kind, "dimensions" | "quantization") && got.parse::<usize>().is_err() {
            return Err(file.unexpected(key, "a number"));
        }
        if got == expected {
            continue;
        }
        let mut pairs = expected.split(',').zip(got.split(',')).enumerate();
        if key == "rope_frequencies"
            && let Some((i, (expected, got))) = pairs.find(|(_, (expected, got))| expected != got)
        {
            return Err(SessionError::mismatch(kind, format!("frequency {i} of RoPE"), clip(expected), clip(got)));
        }
        let quote = if key == "fingerprint" { "\"" } else { "" };
        let [expected, got] = [expected.as_str(), got].map(|text| format!("{quote}{}{quote}", clip(text)));
        return Err(SessionError::mismatch(kind, what, expected, got));
    }
    Ok(())
}
