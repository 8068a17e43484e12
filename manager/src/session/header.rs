//! The header of a safetensors file: eight bytes of length, then JSON with metadata and the places of all tensors.
//!
//! The crate `safetensors` has the tensors' types, shapes and places, and checks that they fill the data without gap or
//! overlap. Its own header keeps neither the order of the metadata nor a second tensor of one name; and where the
//! digest's characters are, it does not say.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

use safetensors::tensor::{Metadata, TensorInfo};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::value::RawValue;

use super::error::SessionError;

/// What the metadata says it is.
pub(super) const FORMAT: &str = "kvcache-session";
pub(super) const VERSION: &str = "1";
/// The length of the header's length.
pub(super) const PREFIX: usize = 8;
/// The limit of the crate `safetensors`, which then also reads what is written here.
pub(super) const MAX_HEADER: u64 = 100_000_000;
/// The characters of a digest.
pub(super) const DIGEST: usize = 32;

/// Metadata and tensors, these by their place in the data.
#[derive(Debug)]
pub(crate) struct Header {
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) tensors: Vec<(String, TensorInfo)>,
}

/// A header that was read, and where in its text the characters of the digest are.
#[derive(Debug)]
pub(super) struct Parsed {
    pub(super) header: Header,
    pub(super) digest: Range<usize>,
}

fn malformed(reason: impl fmt::Display) -> SessionError {
    SessionError::Header { reason: clip(&reason.to_string()) }
}

/// The beginning of a text from a file, which may have any length.
pub(super) fn clip(text: &str) -> String {
    text.chars().take(100).collect()
}

impl Header {
    pub(super) fn data_len(&self) -> usize {
        self.tensors.last().map_or(0, |(_, tensor)| tensor.data_offsets.1)
    }

    /// The header as the file begins with it, its length included, in whole words of eight bytes.
    pub(super) fn to_bytes(&self) -> Result<Vec<u8>, SessionError> {
        let mut bytes = vec![0; PREFIX];
        serde_json::to_writer(&mut bytes, self).map_err(malformed)?;
        bytes.resize(bytes.len().next_multiple_of(PREFIX), b' ');
        let got = (bytes.len() - PREFIX) as u64;
        if got > MAX_HEADER {
            return Err(SessionError::HeaderLength { got, max: MAX_HEADER });
        }
        bytes[..PREFIX].copy_from_slice(&got.to_le_bytes());
        Ok(bytes)
    }

    /// Reads a header without its length.
    pub(super) fn parse(bytes: &[u8]) -> Result<Parsed, SessionError> {
        let text = str::from_utf8(bytes).map_err(malformed)?;
        let Pairs(entries) = serde_json::from_str::<Pairs<'_, &RawValue>>(text).map_err(malformed)?;
        let (mut metadata, mut tensors) = (None, Vec::new());
        for (Text(name), value) in entries {
            if name != "__metadata__" {
                tensors.push((name, value));
            } else if metadata.replace(value).is_some() {
                return Err(malformed("two keys __metadata__"));
            }
        }
        let Pairs(pairs) = match metadata {
            Some(value) => serde_json::from_str::<Pairs<'_, Text<'_>>>(value.get()).map_err(malformed)?,
            None => return Err(SessionError::Format { got: None }),
        };
        let (digest, metadata) = read_metadata(text, pairs)?;
        Ok(Parsed { header: Self { metadata, tensors: read_tensors(tensors)? }, digest })
    }
}

/// Where the digest is, and the metadata as a map.
fn read_metadata(
    text: &str,
    pairs: Vec<(Text<'_>, Text<'_>)>,
) -> Result<(Range<usize>, BTreeMap<String, String>), SessionError> {
    let mut digest = None;
    let mut metadata = BTreeMap::new();
    for (Text(key), Text(value)) in pairs {
        if key == "digest"
            && let Cow::Borrowed(value) = value
        {
            // A borrowed value is a part of the text.
            let start = value.as_ptr() as usize - text.as_ptr() as usize;
            digest = Some(start..start + value.len());
        }
        if metadata.insert(key.clone().into_owned(), value.into_owned()).is_some() {
            return Err(malformed(format_args!("two keys {key} in __metadata__")));
        }
    }
    let got = |key| metadata.get(key).map(|value| clip(value));
    if metadata.get("format").is_none_or(|format| format != FORMAT) {
        return Err(SessionError::Format { got: got("format") });
    }
    if metadata.get("version").is_none_or(|version| version != VERSION) {
        return Err(SessionError::Version { expected: VERSION, got: got("version") });
    }
    match digest {
        Some(place) if place.len() == DIGEST => Ok((place, metadata)),
        _ => {
            let expected = "32 hexadecimal digits";
            Err(SessionError::Metadata { key: "digest", expected, got: got("digest") })
        }
    }
}

/// The tensors in the order of their data, which they fill.
fn read_tensors(tensors: Vec<(Cow<'_, str>, &RawValue)>) -> Result<Vec<(String, TensorInfo)>, SessionError> {
    let mut names = HashSet::with_capacity(tensors.len());
    if let Some((name, _)) = tensors.iter().find(|(name, _)| !names.insert(name)) {
        return Err(SessionError::DuplicateTensor { name: clip(name) });
    }
    let read = |(name, value): (Cow<'_, str>, &RawValue)| {
        let tensor = serde_json::from_str::<TensorInfo>(value.get()).map_err(malformed)?;
        Ok((name.into_owned(), tensor))
    };
    let mut tensors = tensors.into_iter().map(read).collect::<Result<Vec<_>, SessionError>>()?;
    tensors.sort_by_key(|(_, tensor)| tensor.data_offsets);
    Metadata::new(None, tensors.clone()).map_err(malformed)?;
    Ok(tensors)
}

impl Serialize for Header {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(1 + self.tensors.len()))?;
        map.serialize_entry("__metadata__", &self.metadata)?;
        for (name, tensor) in &self.tensors {
            map.serialize_entry(name, tensor)?;
        }
        map.end()
    }
}

/// A string, borrowed from the text where it has no escapes.
#[derive(serde::Deserialize)]
#[serde(transparent)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// The entries of a JSON object in their order, those with equal names, too.
struct Pairs<'a, V>(Vec<(Text<'a>, V)>);

impl<'de: 'a, 'a, V: Deserialize<'de>> Deserialize<'de> for Pairs<'a, V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<'a, V>(PhantomData<(&'a str, V)>);

        impl<'de: 'a, 'a, V: Deserialize<'de>> Visitor<'de> for Entries<'a, V> {
            type Value = Pairs<'a, V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Pairs(entries))
            }
        }

        deserializer.deserialize_map(Entries(PhantomData))
    }
}
