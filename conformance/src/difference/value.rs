//! One element of a tensor, as a number and as bits.

use std::fmt;

use kvcache_schema::ElementType;
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use crate::floats::{format, format_of};
use crate::tensor::Tensor;

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
