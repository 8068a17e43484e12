//! Compares the result of a call with the expected one.

use kvcache_schema::ElementType;

use crate::case::{After, Expected, NanRule};
use crate::implementation::{CallResult, Outcome};
use crate::tensor::Tensor;

/// The state before a call.
pub(crate) struct Before<'a> {
    pub(crate) cache: &'a Tensor,
    pub(crate) scale: Option<&'a Tensor>,
}

/// What is wrong with what a call did, if anything is.
pub(crate) fn difference(expected: &Expected, got: &CallResult, before: &Before<'_>, nan: NanRule) -> Option<String> {
    match (expected, &got.outcome) {
        (Expected::Success(after), Outcome::Done(done)) => {
            let After { outputs, cache, scale } = &**after;
            let state = [("cache", Some(&got.cache), Some(cache)), ("scale", got.scale.as_ref(), scale.as_ref())];
            [("key", Some(&done.key), Some(&outputs.key)), ("value", Some(&done.value), Some(&outputs.value))]
                .into_iter()
                .chain(state)
                .find_map(|(name, got, expected)| tensors(name, got, expected, nan))
        }
        (Expected::Success(_), Outcome::Refused { message, .. }) => Some(format!("refused: {message}")),
        (Expected::Refusal { kind, .. }, Outcome::Done(_)) => Some(format!("not refused, expected {kind}")),
        (Expected::Refusal { kind, mentions }, Outcome::Refused { kind: named, message }) => {
            refusal(kind, mentions, named.as_deref(), message)
                .or_else(|| tensors("cache of a refused call", Some(&got.cache), Some(before.cache), NanRule::Exact))
                .or_else(|| tensors("scale of a refused call", got.scale.as_ref(), before.scale, NanRule::Exact))
        }
    }
}

/// What is wrong with a refusal by itself.
pub(crate) fn refusal(kind: &str, mentions: &[String], named: Option<&str>, message: &str) -> Option<String> {
    if let Some(named) = named.filter(|named| *named != kind) {
        return Some(format!("refused as {named}, expected {kind}: {message}"));
    }
    let missing = mentions.iter().find(|mention| !message.contains(*mention))?;
    Some(format!("the message does not mention {missing:?}: {message}"))
}

/// The first difference between two tensors.
pub(crate) fn tensors(name: &str, got: Option<&Tensor>, expected: Option<&Tensor>, nan: NanRule) -> Option<String> {
    let (got, expected) = match (got, expected) {
        (None, None) => return None,
        (Some(got), Some(expected)) => (got, expected),
        (got, expected) => return Some(format!("{name} is {got:?}, expected {expected:?}")),
    };
    if (got.element(), got.shape()) != (expected.element(), expected.shape()) {
        return Some(format!("{name} is {got:?}, expected {expected:?}"));
    }
    // Packed int4 is compared byte by byte, everything else element by element.
    let size = expected.element().align();
    let (i, (got, expected)) =
        got.bytes().chunks_exact(size).zip(expected.bytes().chunks_exact(size)).enumerate().find(|(_, (a, b))| {
            a != b && !(nan == NanRule::Any && is_nan(expected.element(), a) && is_nan(expected.element(), b))
        })?;
    let unit = if size == 1 { "byte" } else { "element" };
    Some(format!("{name} differs at {unit} {i}: bytes {got:02x?}, expected {expected:02x?}"))
}

/// Whether the little-endian bytes of an element are those of a NaN.
fn is_nan(element: ElementType, bytes: &[u8]) -> bool {
    let (exponent, bits) = match (element, bytes) {
        (ElementType::Float32, &[a, b, c, d]) => (0x7f80_0000, u32::from_le_bytes([a, b, c, d]) & 0x7fff_ffff),
        (ElementType::Float16, &[a, b]) => (0x7c00, u32::from(u16::from_le_bytes([a, b])) & 0x7fff),
        _ => return false,
    };
    bits > exponent
}
