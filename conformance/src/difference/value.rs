//! One element of a tensor, as a number and as bits.

use std::fmt;

use half::f16;
use kvcache_schema::ElementType;
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

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
                let bits = f16::from_f32(f32::from_bits(self.bits as u32)).to_bits().into();
                Self { element, bits }
            }
            _ => self,
        }
    }

    /// The number that it stands for, if it is of a float type.
    pub fn float(self) -> Option<f64> {
        match self.element {
            ElementType::Float32 => Some(f32::from_bits(self.bits as u32).into()),
            ElementType::Float16 => Some(f16::from_bits(self.bits as u16).to_f64()),
            ElementType::Int8 | ElementType::Int4 | ElementType::Int64 => None,
        }
    }

    /// The number that it stands for, if it is of an integer type.
    pub fn integer(self) -> Option<i64> {
        match self.element {
            ElementType::Float32 | ElementType::Float16 => None,
            ElementType::Int8 | ElementType::Int4 | ElementType::Int64 => {
                let unused = u64::BITS - self.element.bits() as u32;
                Some((self.bits << unused) as i64 >> unused)
            }
        }
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
        match (self.element, self.integer()) {
            (_, Some(integer)) => integer.to_string(),
            (ElementType::Float16, None) => f16::from_bits(self.bits as u16).to_string(),
            // `{:?}` writes very large and very small numbers with an exponent.
            (_, None) => format!("{:?}", f32::from_bits(self.bits as u32)),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn float32(x: f32) -> Value {
        Value { element: ElementType::Float32, bits: x.to_bits().into() }
    }

    #[test]
    fn ulps_count_floats_across_zero() {
        let next = |x: f32| float32(f32::from_bits(x.to_bits() + 1));
        assert_eq!(float32(1.0).ulps(next(1.0)), Some(1));
        assert_eq!(float32(0.0).ulps(float32(-0.0)), Some(0));
        assert_eq!(next(0.0).ulps(next(-0.0)), Some(2));
        assert_eq!(float32(f32::MAX).ulps(float32(f32::INFINITY)), Some(1));
        assert_eq!(float32(f32::NAN).ulps(float32(1.0)), None);
        let float16 = |bits| Value { element: ElementType::Float16, bits };
        assert_eq!(float16(0x3c00).ulps(float16(0x3c02)), Some(2));
        assert_eq!(float16(0x3c00).ulps(float32(1.0)), None);
        let int8 = Value { element: ElementType::Int8, bits: 3 };
        assert_eq!(int8.ulps(int8), None);
    }

    #[test]
    fn a_value_is_shown_as_number_and_bits() {
        let shown = |element, bits| Value { element, bits }.to_string();
        assert_eq!(shown(ElementType::Float16, 0x3e00), "1.5 (0x3e00)");
        assert_eq!(shown(ElementType::Float32, 0x7fc0_0000), "NaN (0x7fc00000)");
        assert_eq!(shown(ElementType::Float32, 0xff80_0000), "-inf (0xff800000)");
        assert_eq!(shown(ElementType::Float32, 1), "1e-45 (0x00000001)");
        assert_eq!(shown(ElementType::Int8, 0xfe), "-2 (0xfe)");
        assert_eq!(shown(ElementType::Int4, 0x9), "-7 (0x9)");
        assert_eq!(shown(ElementType::Int64, u64::MAX), "-1 (0xffffffffffffffff)");
    }
}
