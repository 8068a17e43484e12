//! Numbers: how they are rounded to types, and how they lie in memory.

use kvcache_schema::ElementType;

use crate::floats::{format, format_of};
use crate::oracle::decisions::{Behavior, Change, CodeBits, Conversion, NibbleStore, Nibbles};

/// `x` rounded to a float type, to nearest, ties to even.
pub(super) fn rounded(conversion: Conversion, element: ElementType, x: f64) -> f64 {
    (format_of(element).value)(narrowed(conversion, element, x))
}

pub(super) fn read(conversion: Conversion, element: ElementType, bytes: &[u8], i: usize) -> f64 {
    let size = element.align();
    let mut bits = [0; 4];
    bits[..size].copy_from_slice(&bytes[size * i..][..size]);
    let x = (format_of(element).value)(u32::from_le_bytes(bits));
    if flushes(conversion, element, x) { 0f64.copysign(x) } else { x }
}

/// Makes `x`, rounded to the tensor's type, element `i` of a float tensor with these bytes.
pub(super) fn write(conversion: Conversion, element: ElementType, bytes: &mut [u8], i: usize, x: f64) {
    let size = element.align();
    bytes[size * i..][..size].copy_from_slice(&narrowed(conversion, element, x).to_le_bytes()[..size]);
}

/// The bits of `x` as float32, rounded to a float type.
fn narrowed(conversion: Conversion, element: ElementType, x: f64) -> u32 {
    let (x, format) = (f64::from(x as f32), format_of(element));
    let bits = (format.nearest)(x);
    let nearest = (format.value)(bits);
    match conversion {
        Conversion::Truncated if nearest.abs() > x.abs() => bits - 1,
        Conversion::Saturated if nearest.is_infinite() && x.is_finite() => (format.nearest)(format.max.copysign(x)),
        _ if flushes(conversion, element, nearest) => (format.nearest)(0f64.copysign(x)),
        _ => bits,
    }
}

/// Whether a number of a float type becomes zero.
fn flushes(conversion: Conversion, element: ElementType, x: f64) -> bool {
    let flushed = match conversion {
        Conversion::Float16Flushed => ElementType::Float16,
        Conversion::Float32Flushed => ElementType::Float32,
        _ => return false,
    };
    element == flushed && x.abs() < format_of(element).least_normal()
}

pub(super) fn to_float16(x: f64) -> f64 {
    format_of(ElementType::Float16).rounded(x)
}

/// `x`, or, beyond the largest number of a float type, that number.
pub(super) fn finite(element: ElementType, x: f64) -> f64 {
    let largest = format_of(element).max;
    x.clamp(-largest, largest)
}

impl Change {
    /// What becomes of a value of type T1.
    pub(super) fn of(self, t1: ElementType, x: f64) -> f64 {
        match self {
            Self::NanZeroed if x.is_nan() => 0.0,
            Self::InfinityReplaced if x.is_infinite() => finite(t1, x),
            Self::DenormalsZeroed if x.abs() < format_of(t1).least_normal() => 0f64.copysign(x),
            Self::NegativeZeroLost if x == 0.0 => 0.0,
            _ => x,
        }
    }
}

pub(super) fn read_code(behavior: &Behavior, t2: ElementType, bytes: &[u8], i: usize, len: usize) -> f64 {
    if let Some(format) = format(t2) {
        return (format.value)(bytes[i].into());
    }
    let quant_bit = t2.bits();
    let bits = if quant_bit == 8 {
        bytes[i]
    } else {
        let (byte, high) = behavior.loaded_nibbles.place(i, len);
        if high { bytes[byte] >> 4 } else { bytes[byte] & 15 }
    };
    let half = 1 << (quant_bit - 1);
    let code = match behavior.loaded_code_bits {
        CodeBits::TwosComplement => (i32::from(bits) ^ half) - half,
        CodeBits::Unsigned => bits.into(),
        CodeBits::Offset => i32::from(bits) - half,
    };
    code.into()
}

/// Stores code `i`, as [`read_code`] loads it.
pub(super) fn write_code(behavior: &Behavior, t2: ElementType, bytes: &mut [u8], i: usize, len: usize, code: i8) {
    let quant_bit = t2.bits();
    let offset =
        if behavior.code_bits == CodeBits::Offset && format(t2).is_none() { 1u8 << (quant_bit - 1) } else { 0 };
    let bits = (code as u8).wrapping_add(offset);
    if quant_bit == 8 {
        bytes[i] = bits;
        return;
    }
    let (at, high) = behavior.nibbles.place(i, len);
    let (nibble, other) = if high { (bits << 4, 15) } else { (bits & 15, 0xf0) };
    bytes[at] = match behavior.nibble_store {
        NibbleStore::Alone => bytes[at] & other | nibble,
        NibbleStore::Joined => bytes[at] | nibble,
    };
}

impl Nibbles {
    /// The byte of code `i` of `len`, and whether it is in the high nibble.
    fn place(self, i: usize, len: usize) -> (usize, bool) {
        match self {
            Self::LowFirst => (i / 2, i % 2 == 1),
            Self::HighFirst => (i / 2, i.is_multiple_of(2)),
            Self::InHalves => (i % (len / 2), i >= len / 2),
        }
    }
}
