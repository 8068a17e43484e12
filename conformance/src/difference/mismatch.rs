//! What is wrong with the result of a case.

use std::fmt;

use kvcache_schema::ElementType;
use serde::Serialize;

use super::location::Location;
use super::value::Value;
use crate::tensor::Tensor;

/// The first difference between what an implementation did and what a case expects. Displayed, it is one line.
///
/// Serialized, its fields and those of what it holds have the names that they have here, and the kind of mismatch is
/// `kind`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference {
    /// The call, counted from 0; `None` if it is not one call that is wrong.
    pub call: Option<usize>,
    /// What is wrong.
    #[serde(flatten)]
    pub mismatch: Mismatch,
}

/// What is wrong.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the fields are what the messages name")]
pub enum Mismatch {
    /// The implementation could not run the case, or ended without results.
    CouldNotRun { reason: String },
    /// There are not as many results as calls.
    Calls { got: usize, expected: usize },
    /// A call that must succeed was refused, with a kind of error if the implementation has kinds.
    Refused { error: Option<String>, message: String },
    /// A call that must be refused, with a kind of error or any, was not.
    NotRefused { expected: Option<String> },
    /// A call was refused with another kind of error.
    RefusedAs { got: String, expected: String, message: String },
    /// The message of a refusal does not mention what it must.
    NotMentioned { mention: String, message: String },
    /// A tensor has another type or shape, is missing, or should not be there; after a call that was `refused`, it should
    /// be as before.
    Form { tensor: &'static str, got: Option<Form>, expected: Option<Form>, refused: bool },
    /// Elements of a tensor differ.
    Elements(Box<Elements>),
}

/// The type and shape of a tensor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "described above")]
pub struct Form {
    #[serde(rename = "type", serialize_with = "by_name")]
    pub element: ElementType,
    pub shape: Vec<usize>,
}

/// Elements that differ; the first of them in detail.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Elements {
    /// The tensor's name.
    pub tensor: &'static str,
    /// The first index that differs, in row-major order.
    pub index: usize,
    /// The same along each axis; empty for the padding behind the last int4.
    pub coordinates: Vec<usize>,
    /// What the element stands for, if that can be told.
    pub location: Option<Location>,
    /// The element.
    pub got: Value,
    /// What it should be.
    pub expected: Value,
    /// How far it may be from that, if not only the same bits will do.
    pub tolerance: Option<f64>,
    /// How many floats lie between the two, plus one, if both are numbers of one float type.
    pub ulps: Option<u64>,
    /// How many elements of the tensor differ.
    pub differing: usize,
    /// How many elements the tensor has.
    pub elements: usize,
    /// Whether the call was refused, and its state should be as before.
    pub refused: bool,
    /// The other tensors of the call that differ.
    pub also: Vec<Differing>,
}

/// A tensor that differs, too: how many of its elements do (all, if its type or shape does), of how many.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "described above")]
pub struct Differing {
    pub tensor: &'static str,
    pub differing: usize,
    pub elements: usize,
}

impl Difference {
    /// A case that could not be run.
    pub fn could_not_run(reason: impl Into<String>) -> Self {
        Self { call: None, mismatch: Mismatch::CouldNotRun { reason: reason.into() } }
    }
}

impl From<&Tensor> for Form {
    fn from(tensor: &Tensor) -> Self {
        Self { element: tensor.element(), shape: tensor.shape().to_vec() }
    }
}

fn by_name<S: serde::Serializer>(element: &ElementType, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(element.name())
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(call) = self.call {
            write!(f, "call {call}: ")?;
        }
        self.mismatch.fmt(f)
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CouldNotRun { reason } => f.write_str(reason),
            Self::Calls { got, expected } => write!(f, "got {got} calls, expected {expected}"),
            Self::Refused { error: None, message } => write!(f, "refused: {message}"),
            Self::Refused { error: Some(error), message } => write!(f, "refused as {error}: {message}"),
            Self::NotRefused { expected: None } => f.write_str("not refused"),
            Self::NotRefused { expected: Some(kind) } => write!(f, "not refused, expected {kind}"),
            Self::RefusedAs { got, expected, message } => {
                write!(f, "refused as {got}, expected {expected}: {message}")
            }
            Self::NotMentioned { mention, message } => {
                write!(f, "the message does not mention {mention:?}: {message}")
            }
            Self::Form { tensor, got, expected, refused } => {
                let shown = |form: &Option<Form>| form.as_ref().map_or("absent".to_owned(), Form::to_string);
                write!(f, "{tensor}{} is {}, expected {}", after(*refused), shown(got), shown(expected))
            }
            Self::Elements(elements) => elements.fmt(f),
        }
    }
}

/// What is said of the state after a refusal.
fn after(refused: bool) -> &'static str {
    if refused { " of a refused call" } else { "" }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.element, self.shape)
    }
}

impl fmt::Display for Elements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tensor, index, coordinates, got, expected, differing, elements, .. } = self;
        write!(f, "{tensor}{} differs at element {index}", after(self.refused))?;
        match coordinates.is_empty() {
            false => write!(f, " {coordinates:?}")?,
            true => f.write_str(" (padding)")?,
        }
        write!(f, ": got {got}, expected {expected}")?;
        if let Some(tolerance) = self.tolerance {
            write!(f, " within {tolerance:e}")?;
        }
        match self.ulps {
            Some(0) if got.is_zero() && got.element == expected.element => f.write_str(", the sign of zero")?,
            Some(ulps) => write!(f, ", {ulps} ULP")?,
            None => {}
        }
        if let Some(location) = &self.location {
            write!(f, "; {location}")?;
        }
        write!(f, "; {differing} of {elements} elements differ")?;
        for Differing { tensor, differing, elements } in &self.also {
            write!(f, ", {differing} of {elements} of {tensor}")?;
        }
        Ok(())
    }
}
