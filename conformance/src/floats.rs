//! The float types: a format for each, by which numbers are rounded to it and read from it.

use std::cmp::Ordering;

use half::{bf16, f16};
use kvcache_schema::ElementType;

/// A float type. Every value of it is a float32, and a number here is an `f64`.
#[derive(Debug)]
pub(crate) struct Format {
    /// Bits of the significand, with the one that is not stored.
    pub(crate) digits: i32,
    /// The exponent of the smallest positive number, a power of two.
    pub(crate) least: i32,
    pub(crate) max: f64,
    /// The number that these bits stand for.
    pub(crate) value: fn(u32) -> f64,
    /// The bits of the nearest number, ties to even.
    pub(crate) nearest: fn(f64) -> u32,
}

pub(crate) fn format(element: ElementType) -> Option<Format> {
    match element {
        ElementType::Float32 => Some(Format {
            digits: 24,
            least: -149,
            max: f32::MAX as f64,
            value: |bits| f32::from_bits(bits).into(),
            nearest: |x| (x as f32).to_bits(),
        }),
        ElementType::Float16 => Some(Format {
            digits: 11,
            least: -24,
            max: f16::MAX.to_f64_const(),
            value: |bits| f16::from_bits(bits as u16).to_f64(),
            nearest: |x| f16::from_f64(x).to_bits().into(),
        }),
        ElementType::BFloat16 => Some(Format {
            digits: 8,
            least: -133,
            max: bf16::MAX.to_f64_const(),
            value: |bits| bf16::from_bits(bits as u16).to_f64(),
            nearest: |x| bf16::from_f64(x).to_bits().into(),
        }),
        ElementType::Float8E4M3Fn => {
            Some(Format { digits: 4, least: -9, max: 448.0, value: value_of_float8, nearest: nearest_float8 })
        }
        ElementType::Int8 | ElementType::Int4 | ElementType::Int64 => None,
    }
}

/// The format of a type that is known to be a float type.
pub(crate) fn format_of(element: ElementType) -> Format {
    format(element).unwrap_or_else(|| unreachable!("{element} is no float type"))
}

/// The number of a float8e4m3fn, which has no infinities.
fn value_of_float8(bits: u32) -> f64 {
    let (exponent, mantissa) = ((bits >> 3 & 15) as i32, f64::from(bits & 7));
    let magnitude = match (exponent, bits & 7) {
        (15, 7) => f64::NAN,
        (0, _) => mantissa * 2f64.powi(-9),
        _ => (8.0 + mantissa) * 2f64.powi(exponent - 10),
    };
    if bits & 0x80 == 0 { magnitude } else { -magnitude }
}

/// The float8e4m3fn nearest to a number, ties to even, with the largest for what is beyond it.
fn nearest_float8(x: f64) -> u32 {
    let distance = |code: &u32| ((value_of_float8(*code) - x.abs()).abs(), code % 2);
    let nearer = |a: &u32, b: &u32| distance(a).partial_cmp(&distance(b)).unwrap_or(Ordering::Equal);
    let magnitude = if x.is_nan() { 0x7f } else { (0..0x7f).min_by(nearer).unwrap_or_default() };
    u32::from(x.is_sign_negative()) << 7 | magnitude
}

impl Format {
    pub(crate) fn rounded(&self, x: f64) -> f64 {
        (self.value)((self.nearest)(x))
    }

    pub(crate) fn least_normal(&self) -> f64 {
        f64::exp2(f64::from(self.least + self.digits - 1))
    }
}
