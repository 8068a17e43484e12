//! Compares what a call did with what it must do.

use kvcache_schema::ElementType;

use crate::case::{After, Expected, NanRule};
use crate::implementation::{Outcome, Played};
use crate::tensor::Tensor;

/// The state before a call.
pub(crate) struct Before<'a> {
    pub(crate) cache: &'a Tensor,
    pub(crate) scale: Option<&'a Tensor>,
}

/// What is wrong with a played call, if anything is.
pub(crate) fn difference(expected: &Expected, played: &Played, before: &Before<'_>, nan: NanRule) -> Option<String> {
    match (expected, &played.outcome) {
        (Expected::Success(after), Outcome::Done(done)) => {
            let After { outputs, cache, scale } = &**after;
            let state = [("cache", Some(&played.cache), Some(cache)), ("scale", played.scale.as_ref(), scale.as_ref())];
            [("key", Some(&done.key), Some(&outputs.key)), ("value", Some(&done.value), Some(&outputs.value))]
                .into_iter()
                .chain(state)
                .find_map(|(name, found, wanted)| tensors(name, found, wanted, nan))
        }
        (Expected::Success(_), Outcome::Refused { message, .. }) => Some(format!("refused: {message}")),
        (Expected::Refusal { kind, .. }, Outcome::Done(_)) => Some(format!("not refused, wanted {kind}")),
        (Expected::Refusal { kind, mentions }, Outcome::Refused { kind: found, message }) => {
            if let Some(found) = found.as_ref().filter(|found| *found != kind) {
                return Some(format!("refused as {found}, wanted {kind}: {message}"));
            }
            if let Some(missing) = mentions.iter().find(|mention| !message.contains(*mention)) {
                return Some(format!("the message does not mention {missing:?}: {message}"));
            }
            tensors("cache of a refused call", Some(&played.cache), Some(before.cache), NanRule::Exact)
                .or_else(|| tensors("scale of a refused call", played.scale.as_ref(), before.scale, NanRule::Exact))
        }
    }
}

/// The first difference between two tensors.
fn tensors(name: &str, found: Option<&Tensor>, wanted: Option<&Tensor>, nan: NanRule) -> Option<String> {
    let (found, wanted) = match (found, wanted) {
        (None, None) => return None,
        (Some(found), Some(wanted)) => (found, wanted),
        (found, wanted) => return Some(format!("{name} is {found:?}, wanted {wanted:?}")),
    };
    if (found.element(), found.shape()) != (wanted.element(), wanted.shape()) {
        return Some(format!("{name} is {found:?}, wanted {wanted:?}"));
    }
    // Packed int4 is compared byte by byte, everything else element by element.
    let size = wanted.element().align();
    let (i, (found, wanted)) =
        found.bytes().chunks_exact(size).zip(wanted.bytes().chunks_exact(size)).enumerate().find(|(_, (a, b))| {
            a != b && !(nan == NanRule::Any && is_nan(wanted.element(), a) && is_nan(wanted.element(), b))
        })?;
    let unit = if size == 1 { "byte" } else { "element" };
    Some(format!("{name} differs at {unit} {i}: bytes {found:02x?}, wanted {wanted:02x?}"))
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
