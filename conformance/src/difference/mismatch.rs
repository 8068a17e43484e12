//! What is wrong with the result of a case, down to one element as a number and as bits.

use std::fmt;

use kvcache_schema::ElementType;
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use super::location::Location;
use crate::floats::{format, format_of};
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

fn by_name<S: Serializer>(element: &ElementType, serializer: S) -> Result<S::Ok, S::Error> {
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

/// An element of a tensor. Displayed: the number, then its bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Value {
    /// The type.
    pub element: ElementType,
    /// The bits, in the lowest places.
    pub bits: u64,
}

impl Value {
    /// How many values are in the memory of a tensor: its elements and, where int4 does not fill the last byte, the
    /// nibble that is left.
    pub(crate) fn count(tensor: &Tensor) -> usize {
        tensor.bytes().len() * 8 / tensor.element().bits()
    }

    /// The value at an index below [`count`](Self::count).
    pub(crate) fn at(tensor: &Tensor, i: usize) -> Self {
        let (element, bytes) = (tensor.element(), tensor.bytes());
        let bits = match element {
            ElementType::Int4 => u64::from(bytes[i / 2] >> (i % 2 * 4) & 0xf),
            _ => {
                let size = element.align();
                let mut bits = [0; 8];
                bits[..size].copy_from_slice(&bytes[i * size..][..size]);
                u64::from_le_bytes(bits)
            }
        };
        Self { element, bits }
    }

    /// The same number as a float16, if it is a float32 and that is asked for.
    pub(crate) fn rounded(self, element: ElementType) -> Self {
        match (self.element, element) {
            (ElementType::Float32, ElementType::Float16) => {
                let bits = (format_of(element).nearest)(f32::from_bits(self.bits as u32).into()).into();
                Self { element, bits }
            }
            _ => self,
        }
    }

    /// The number that it stands for, if it is of a float type.
    pub fn float(self) -> Option<f64> {
        format(self.element).map(|format| (format.value)(self.bits as u32))
    }

    /// The number that it stands for, if it is of an integer type.
    pub fn integer(self) -> Option<i64> {
        let unused = u64::BITS - self.element.bits() as u32;
        format(self.element).is_none().then_some((self.bits << unused) as i64 >> unused)
    }

    /// Whether it is a NaN.
    pub fn is_nan(self) -> bool {
        self.float().is_some_and(f64::is_nan)
    }

    /// Whether it is a zero of a float type, of either sign.
    pub(crate) fn is_zero(self) -> bool {
        self.float() == Some(0.0)
    }

    /// How many floats of the type lie between the two, plus one; 0 for equal ones and for the two zeros. `None` unless
    /// both are numbers or infinities of one float type.
    pub fn ulps(self, other: Self) -> Option<u64> {
        if self.element != other.element || self.is_nan() || other.is_nan() {
            return None;
        }
        self.float()?;
        Some(self.rank().abs_diff(other.rank()))
    }

    /// A float's place in the order of the floats of its type; 0 for both zeros.
    fn rank(self) -> i64 {
        let sign = 1u64 << (self.element.bits() - 1);
        let magnitude = (self.bits & (sign - 1)) as i64;
        if self.bits & sign == 0 { magnitude } else { -magnitude }
    }

    fn hex(self) -> String {
        format!("{:#0width$x}", self.bits, width = 2 + self.element.bits() / 4)
    }

    fn number(self) -> String {
        match (self.float(), self.integer()) {
            (_, Some(integer)) => integer.to_string(),
            // `{:?}` writes very large and very small numbers with an exponent.
            (Some(x), _) if self.element == ElementType::Float32 => format!("{:?}", x as f32),
            (x, _) => x.map_or_else(String::new, |x| (x as f32).to_string()),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.number(), self.hex())
    }
}

/// Both as text: JSON has neither NaN nor infinity.
impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut value = serializer.serialize_struct("Value", 3)?;
        value.serialize_field("type", self.element.name())?;
        value.serialize_field("value", &self.number())?;
        value.serialize_field("bits", &self.hex())?;
        value.end()
    }
}
