//! Numbers: how they are rounded to types, and how they lie in memory.

use half::f16;
use kvcache_schema::ElementType;

use crate::oracle::decisions::{Behavior, Change, CodeBits, Conversion, NibbleStore, Nibbles};

/// `x` rounded to a float type, to nearest, ties to even.
pub(super) fn rounded(conversion: Conversion, element: ElementType, x: f64) -> f64 {
    match element {
        ElementType::Float16 => widen(conversion, narrow(conversion, x as f32)),
        _ => float32(conversion, x as f32).into(),
    }
}

/// Element `i` of a float tensor with these bytes.
pub(super) fn read(conversion: Conversion, element: ElementType, bytes: &[u8], i: usize) -> f64 {
    match element {
        ElementType::Float16 => widen(conversion, f16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]])),
        _ => {
            let x = [bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]];
            float32(conversion, f32::from_le_bytes(x)).into()
        }
    }
}

/// Makes `x`, rounded to the tensor's type, element `i` of a float tensor with these bytes.
pub(super) fn write(conversion: Conversion, element: ElementType, bytes: &mut [u8], i: usize, x: f64) {
    match element {
        ElementType::Float16 => bytes[2 * i..][..2].copy_from_slice(&narrow(conversion, x as f32).to_le_bytes()),
        _ => bytes[4 * i..][..4].copy_from_slice(&float32(conversion, x as f32).to_le_bytes()),
    }
}

fn narrow(conversion: Conversion, x: f32) -> f16 {
    let nearest = f16::from_f32(x);
    match conversion {
        Conversion::Truncated => truncated(x),
        Conversion::HalfAway => half_away(x),
        Conversion::Saturated if nearest.is_infinite() && x.is_finite() => f16::MAX.copysign(nearest),
        Conversion::Float16Flushed => flushed(nearest),
        _ => nearest,
    }
}

fn widen(conversion: Conversion, x: f16) -> f64 {
    if conversion == Conversion::Float16Flushed { flushed(x).into() } else { x.into() }
}

fn float32(conversion: Conversion, x: f32) -> f32 {
    if conversion == Conversion::Float32Flushed && x.is_subnormal() { 0f32.copysign(x) } else { x }
}

/// Zero in place of a denormal.
fn flushed(x: f16) -> f16 {
    if x.to_f32().abs() < f16::MIN_POSITIVE.to_f32() { f16::ZERO.copysign(x) } else { x }
}

/// `x` as float16, rounded toward zero.
pub(super) fn truncated(x: f32) -> f16 {
    let nearest = f16::from_f32(x);
    if nearest.to_f32().abs() > x.abs() { f16::from_bits(nearest.to_bits() - 1) } else { nearest }
}

/// `x` as float16, rounded to nearest, ties away from zero.
fn half_away(x: f32) -> f16 {
    let low = truncated(x);
    if !x.is_finite() || low.to_f32() == x {
        return low;
    }
    let high = f16::from_bits(low.to_bits() + 1);
    // Beyond the largest float16, the next power of two stands for infinity.
    let high_value = if high.is_infinite() { 65536.0 } else { f64::from(high.to_f32().abs()) };
    let (x, low_value) = (f64::from(x.abs()), f64::from(low.to_f32().abs()));
    if x - low_value >= high_value - x { high } else { low }
}

pub(super) fn to_float16(x: f64) -> f64 {
    f16::from_f64(x).to_f64()
}

/// `x`, or, beyond the largest number of a float type, that number.
pub(super) fn finite(element: ElementType, x: f64) -> f64 {
    let largest = if element == ElementType::Float16 { f16::MAX.to_f64() } else { f32::MAX.into() };
    x.clamp(-largest, largest)
}

impl Change {
    /// What becomes of a value of type T1.
    pub(super) fn of(self, t1: ElementType, x: f64) -> f64 {
        let least_normal =
            || if t1 == ElementType::Float16 { f16::MIN_POSITIVE.to_f64() } else { f32::MIN_POSITIVE.into() };
        match self {
            Self::NanZeroed | Self::NonFiniteReplaced | Self::NonFiniteZeroed if x.is_nan() => 0.0,
            Self::InfinityReplaced | Self::NonFiniteReplaced if x.is_infinite() => finite(t1, x),
            Self::NonFiniteZeroed if x.is_infinite() => 0.0,
            Self::NanCanonical if x.is_nan() => f64::NAN,
            Self::DenormalsZeroed if x.abs() < least_normal() => 0f64.copysign(x),
            Self::NegativeZeroLost if x == 0.0 => 0.0,
            Self::ThroughFloat16 if t1 == ElementType::Float32 => to_float16(x),
            _ => x,
        }
    }
}

/// Code `i` of a head with these bytes: `quant_bit` bits to a code, `len` codes.
pub(super) fn read_code(behavior: &Behavior, quant_bit: i64, bytes: &[u8], i: usize, len: usize) -> f64 {
    if quant_bit == 8 {
        return match behavior.loaded_code_bits {
            CodeBits::Plus128 => (bytes[i] as i8 ^ i8::MIN).into(),
            CodeBits::UnsignedBytes => bytes[i].into(),
            _ => (bytes[i] as i8).into(),
        };
    }
    let (byte, high) = behavior.loaded_nibbles.place(i, len);
    let nibble = if high { bytes[byte] >> 4 } else { bytes[byte] & 15 };
    let code = match behavior.loaded_code_bits {
        CodeBits::Unsigned => nibble as i8,
        CodeBits::HighUnsigned if high => nibble as i8,
        CodeBits::LowUnsigned if !high => nibble as i8,
        CodeBits::Plus8 => nibble as i8 - 8,
        CodeBits::SignAndMagnitude if nibble & 8 != 0 => -((nibble & 7) as i8),
        CodeBits::SignAndMagnitude => nibble as i8,
        _ => signed(nibble),
    };
    code.into()
}

/// Stores code `i`, as [`read_code`] loads it.
pub(super) fn write_code(behavior: &Behavior, quant_bit: i64, bytes: &mut [u8], i: usize, len: usize, code: i8) {
    if quant_bit == 8 {
        bytes[i] = if behavior.code_bits == CodeBits::Plus128 { code ^ i8::MIN } else { code } as u8;
        return;
    }
    let (at, high) = behavior.nibbles.place(i, len);
    let nibble = 15
        & match behavior.code_bits {
            CodeBits::Plus8 => (code + 8) as u8,
            CodeBits::SignAndMagnitude => code.unsigned_abs() | if code < 0 { 8 } else { 0 },
            _ => code as u8,
        };
    let byte = bytes[at];
    bytes[at] = match (behavior.nibble_store, high) {
        (NibbleStore::HighLost, true) => byte & 15,
        (NibbleStore::HighLost | NibbleStore::LowLost, false) => nibble,
        (NibbleStore::LowLost, true) => nibble << 4,
        (NibbleStore::LowSigned, false) => signed(nibble) as u8,
        (NibbleStore::LowSigned | NibbleStore::Joined, true) => byte | nibble << 4,
        (NibbleStore::Joined, false) => byte | nibble,
        (NibbleStore::Alone, true) => byte & 15 | nibble << 4,
        (NibbleStore::Alone, false) => byte & 0xf0 | nibble,
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

/// The code of four bits in two's complement.
fn signed(nibble: u8) -> i8 {
    (nibble << 4) as i8 >> 4
}
