//! An error's numbers by their names, for callers in other languages.

use std::fmt;

use kvcache_kernels::RopeError;
use kvcache_op::Shape;
use kvcache_schema::ElementType;
use slotmap::Key;

use crate::error::Error;
use crate::infllm::error::InfLlmError;
use crate::seq_id::SeqId;
use crate::session::error::SessionError;

/// One of an error's values.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Detail {
    /// A number; of a [`SeqId`], the one that `slotmap::KeyData::as_ffi` gives.
    Int(i128),
    /// A number with a fraction.
    Float(f64),
    /// A name.
    Text(String),
    /// Several numbers: a shape, say.
    Numbers(Vec<usize>),
    /// No value.
    None,
}

/// Types of the fields of errors.
macro_rules! detail {
    ($($field:ty => |$value:ident| $detail:expr),* $(,)?) => {
        $(
            impl From<$field> for Detail {
                fn from($value: $field) -> Self {
                    $detail
                }
            }
        )*
    };
}

detail! {
    usize => |value| Self::Int(value as i128),
    i64 => |value| Self::Int(value.into()),
    u32 => |value| Self::Int(value.into()),
    u64 => |value| Self::Int(value.into()),
    f64 => |value| Self::Float(value),
    SeqId => |value| Self::Int(value.data().as_ffi().into()),
    &'static str => |value| Self::Text(value.into()),
    String => |value| Self::Text(value),
    ElementType => |value| Self::Text(value.name().into()),
    [usize; 3] => |value| Self::Numbers(value.into()),
    [usize; 5] => |value| Self::Numbers(value.into()),
    Vec<usize> => |value| Self::Numbers(value),
    Shape => |value| Self::Numbers(value.to_vec()),
    [u32; 2] => |value| Self::Numbers(value.map(|number| number as usize).into()),
}

impl<T: Into<Self>> From<Option<T>> for Detail {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::None, Into::into)
    }
}

macro_rules! fields {
    ($($field:ident),*) => { vec![$((stringify!($field), Detail::from($field.clone()))),*] };
}

/// A source whose fields are its own.
fn said(source: impl fmt::Display) -> Vec<(&'static str, Detail)> {
    vec![("source", Detail::Text(source.to_string()))]
}

impl Error {
    /// The variant's fields by their names, in order; of a source, what it says.
    pub fn details(&self) -> Vec<(&'static str, Detail)> {
        match self {
            Self::SpecRange { name, got, min, max } => fields![name, got, min, max],
            Self::Types { cache, scale } => fields![cache, scale],
            Self::QuantGroup { group, head_dim } => fields![group, head_dim],
            Self::SizeOverflow { tensor, shape } => fields![tensor, shape],
            Self::OutOfMemory { len, size } => fields![len, size],
            Self::UnknownSeq { seq } => fields![seq],
            Self::StepOpen => fields![],
            Self::EmptyAppend { append } => fields![append],
            Self::DuplicateSeq { append, other } => fields![append, other],
            Self::PositionOrder { append, got, min } => fields![append, got, min],
            Self::PositionOverflow { append, first, n, max } => fields![append, first, n, max],
            Self::TooManyPages { append, kvlen, page_size, need, max_pages } => {
                fields![append, kvlen, page_size, need, max_pages]
            }
            Self::OutOfPages { need, free } => fields![need, free],
            Self::SpecThreshold { got } => fields![got],
            Self::Rope(RopeError::NRot { n_rot, head_dim }) => fields![n_rot, head_dim],
            Self::Rope(RopeError::Frequency { pair, got }) => fields![pair, got],
            Self::NoSlot { need, largest, free } => fields![need, largest, free],
            Self::NotEmpty { len } => fields![len],
            Self::Range { name, got, min, max } => fields![name, got, min, max],
            Self::NoProgress { n_past, n_keep } => fields![n_past, n_keep],
            Self::GroupWidth { ga_n, ga_w } => fields![ga_n, ga_w],
            Self::PartialState { pos, p0, p1 } => fields![pos, p0, p1],
            Self::KnownSeq { seq } => fields![seq],
            Self::WindowLost { p0, window, gone } => fields![p0, window, gone],
            Self::NotShiftable { why } => fields![why],
            Self::ShiftLimit { shifts, limit } => fields![shifts, limit],
            Self::Lost { seq } => fields![seq],
            Self::Swapped { seq } => fields![seq],
            Self::RowsMissing { seq, missing, rows, reason } => fields![seq, missing, rows, reason],
            Self::TiersFull { nbytes, reason } => fields![nbytes, reason],
            Self::NoTiers => fields![],
            Self::Random(source) => said(source),
            Self::UpdatePending { copies, sequences } => fields![copies, sequences],
            Self::TensorType { input, expected, got } => fields![input, expected, got],
            Self::TensorShape { input, expected, got } => fields![input, expected, got],
            Self::ScaleMissing { expected, shape } => fields![expected, shape],
            Self::ScaleUnexpected { got, shape } => fields![got, shape],
            Self::MaskLength { shape, expected, got } => fields![shape, expected, got],
            Self::Session(source) => source.details(),
            Self::InfLlm(source) => source.details(),
            Self::Rope(source) => said(source),
            Self::Tensor(source) => said(source),
            Self::Memory { source } => said(source),
            Self::Broken { what, at } => fields![what, at],
        }
    }
}

impl InfLlmError {
    /// The variant's fields by their names, as [`Error::details`] gives them.
    pub fn details(&self) -> Vec<(&'static str, Detail)> {
        match self {
            Self::NotPaged | Self::RotatedKeys | Self::StaticScales => fields![],
            Self::Multiple { name, got, page_size } => fields![name, got, page_size],
            Self::Fraction { name, got } => fields![name, got],
            Self::DuplicateBlock { name, block } => fields![name, block],
            Self::Layer { layer, num_layer } => fields![layer, num_layer],
            Self::Shape { name, expected, got } => fields![name, expected, got],
            Self::Mass { layer, index, got } => fields![layer, index, got],
            Self::ObservedTwice { layer } | Self::NotObserved { layer } | Self::SelectedTwice { layer } => {
                fields![layer]
            }
            Self::NotSelected { seq, layer, blocks, topk } => fields![seq, layer, blocks, topk],
            Self::BlockLost { seq, block, why } => {
                vec![
                    ("seq", Detail::from(*seq)),
                    ("block", Detail::from(*block)),
                    ("why", Detail::Text(why.to_string())),
                ]
            }
            Self::Store(source) => said(source),
        }
    }
}

impl SessionError {
    /// The variant's fields by their names, as [`Error::details`] gives them.
    pub fn details(&self) -> Vec<(&'static str, Detail)> {
        match self {
            Self::Io { action, source } => {
                vec![("action", Detail::from(*action)), ("source", Detail::Text(source.to_string()))]
            }
            Self::Format { got } => fields![got],
            Self::Version { expected, got } => fields![expected, got],
            Self::Truncated { expected, got } => fields![expected, got],
            Self::Trailing { expected, got } => fields![expected, got],
            Self::Digest { expected, got } => fields![expected, got],
            Self::HeaderLength { got, max } => fields![got, max],
            Self::Header { reason } => fields![reason],
            Self::Metadata { key, expected, got } => fields![key, expected, got],
            Self::MissingTensor { name } => fields![name],
            Self::UnknownTensor { name } => fields![name],
            Self::Tensor { name, expected, got } => fields![name, expected, got],
            Self::Dimensions { name, expected, got } => fields![name, expected, got],
            Self::Types { tensor, expected, got } => fields![tensor, expected, got],
            Self::Quantization { attribute, expected, got } => fields![attribute, expected, got],
            Self::KeyForm { expected, got } => fields![expected, got],
            Self::Rope { name, expected, got } => fields![name, expected, got],
            Self::Fingerprint { expected, got } => fields![expected, got],
            Self::PassedRows { rows } => fields![rows],
            Self::RowIndex { sequence, row, got, rows } => fields![sequence, row, got, rows],
            Self::PositionRange { sequence, row, got, max } => fields![sequence, row, got, max],
            Self::PositionOrder { sequence, row, got, min } => fields![sequence, row, got, min],
            Self::RowTokens { row, tokens } => fields![row, tokens],
            Self::KnownTokens { sequence, tokens, rows } => fields![sequence, tokens, rows],
            Self::NoSequence { index, sequences } => fields![index, sequences],
            Self::NotEmpty { sequences } => fields![sequences],
            Self::TooManyPages { sequence, rows, page_size, need, max_pages } => {
                fields![sequence, rows, page_size, need, max_pages]
            }
            Self::NoRoom { need, free } => fields![need, free],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_keep_their_names_and_order() {
        let error = Error::OutOfPages { need: 3, free: 1 };
        assert_eq!(error.details(), [("need", Detail::Int(3)), ("free", Detail::Int(1))]);
        let error = Error::Types { cache: ElementType::Int4, scale: None };
        assert_eq!(error.details(), [("cache", Detail::Text("int4".into())), ("scale", Detail::None)]);
    }
}
