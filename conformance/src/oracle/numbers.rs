//! Numbers: how they are rounded to types, and how they lie in memory.

use half::{bf16, f16};
use kvcache_schema::ElementType;

use crate::oracle::decisions::{Behavior, Change, CodeBits, Conversion, NibbleStore, Nibbles};

/// `x` rounded to a float type, to nearest, ties to even.
pub(super) fn rounded(conversion: Conversion, element: ElementType, x: f64) -> f64 {
    match element {
        ElementType::Float16 => narrow(conversion, x as f32).into(),
        ElementType::BFloat16 => narrow_bfloat16(conversion, x as f32).into(),
        _ => float32(conversion, x as f32).into(),
    }
}

/// Element `i` of a float tensor with these bytes.
pub(super) fn read(conversion: Conversion, element: ElementType, bytes: &[u8], i: usize) -> f64 {
    match element {
        ElementType::Float16 => {
            let x = f16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]);
            if conversion == Conversion::Float16Flushed { narrow(conversion, x.to_f32()).into() } else { x.into() }
        }
        ElementType::BFloat16 => bf16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]).into(),
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
        ElementType::BFloat16 => {
            bytes[2 * i..][..2].copy_from_slice(&narrow_bfloat16(conversion, x as f32).to_le_bytes());
        }
        _ => bytes[4 * i..][..4].copy_from_slice(&float32(conversion, x as f32).to_le_bytes()),
    }
}

fn narrow(conversion: Conversion, x: f32) -> f16 {
    let nearest = f16::from_f32(x);
    match conversion {
        Conversion::Truncated => truncated(x),
        Conversion::Saturated if nearest.is_infinite() && x.is_finite() => f16::MAX.copysign(nearest),
        Conversion::Float16Flushed if nearest.to_f32().abs() < f16::MIN_POSITIVE.to_f32() => {
            f16::ZERO.copysign(nearest)
        }
        _ => nearest,
    }
}

fn narrow_bfloat16(conversion: Conversion, x: f32) -> bf16 {
    let nearest = bf16::from_f32(x);
    match conversion {
        Conversion::Truncated if !x.is_nan() => bf16::from_bits((x.to_bits() >> 16) as u16),
        Conversion::Saturated if nearest.is_infinite() && x.is_finite() => bf16::MAX.copysign(nearest),
        _ => nearest,
    }
}

fn float32(conversion: Conversion, x: f32) -> f32 {
    if conversion == Conversion::Float32Flushed && x.is_subnormal() { 0f32.copysign(x) } else { x }
}

/// `x` as float16, rounded toward zero.
pub(super) fn truncated(x: f32) -> f16 {
    let nearest = f16::from_f32(x);
    if nearest.to_f32().abs() > x.abs() { f16::from_bits(nearest.to_bits() - 1) } else { nearest }
}

pub(super) fn to_float16(x: f64) -> f64 {
    f16::from_f64(x).to_f64()
}

/// `x`, or, beyond the largest number of a float type, that number.
pub(super) fn finite(element: ElementType, x: f64) -> f64 {
    let largest = match element {
        ElementType::Float16 => f16::MAX.to_f64(),
        ElementType::BFloat16 => bf16::MAX.to_f64(),
        _ => f32::MAX.into(),
    };
    x.clamp(-largest, largest)
}

impl Change {
    /// What becomes of a value of type T1.
    pub(super) fn of(self, t1: ElementType, x: f64) -> f64 {
        let least_normal =
            || if t1 == ElementType::Float16 { f16::MIN_POSITIVE.to_f64() } else { f32::MIN_POSITIVE.into() };
        match self {
            Self::NanZeroed if x.is_nan() => 0.0,
            Self::InfinityReplaced if x.is_infinite() => finite(t1, x),
            Self::DenormalsZeroed if x.abs() < least_normal() => 0f64.copysign(x),
            Self::NegativeZeroLost if x == 0.0 => 0.0,
            _ => x,
        }
    }
}

/// Code `i` of a head with these bytes: `quant_bit` bits to a code, `len` codes.
pub(super) fn read_code(behavior: &Behavior, quant_bit: i64, bytes: &[u8], i: usize, len: usize) -> f64 {
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
pub(super) fn write_code(behavior: &Behavior, quant_bit: i64, bytes: &mut [u8], i: usize, len: usize, code: i8) {
    let offset = if behavior.code_bits == CodeBits::Offset { 1u8 << (quant_bit - 1) } else { 0 };
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
