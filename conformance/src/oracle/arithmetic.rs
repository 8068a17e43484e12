//! The arithmetic of one group: how numbers are rounded to types, and how they lie in memory.
//!
//! A number is an `f64` here, which holds every value of every type. An operation is computed in `f64`, and its result
//! rounded to the type that the specification names: a quotient or product of two float32 or float16 values is then
//! what that type's own arithmetic gives, because `f64` has more than twice the precision and two bits.

use kvcache_schema::ElementType;

use crate::floats::{Format, format, format_of};
use crate::oracle::decisions::{
    Amax, Behavior, Clamp, CodeBits, Conversion, GroupOf, Least, NanCode, Nibbles, Qmax, Quotient, Rounding, Step,
    StoredScale, ValueOf, Width,
};

/// What is known of a group: its types and width, and the decisions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Group<'a> {
    pub(super) behavior: &'a Behavior,
    pub(super) t1: ElementType,
    pub(super) t2: ElementType,
    pub(super) t3: ElementType,
    pub(super) quant_bit: i64,
}

/// The largest magnitude of a group; its step, and what that becomes when it is rounded to T3.
#[derive(Debug, Clone, Copy)]
pub(super) struct Steps {
    amax: f64,
    step: f64,
    scale: f64,
}

impl Group<'_> {
    fn to_t1(self, x: f64) -> f64 {
        rounded(self.behavior.conversion, self.t1, x)
    }

    fn to_t3(self, x: f64) -> f64 {
        rounded(self.behavior.conversion, self.t3, x)
    }

    fn to(self, width: Width, x: f64) -> f64 {
        match width {
            Width::T1 => self.to_t1(x),
            Width::Float32 => f64::from(x as f32),
            Width::Float64 => x,
        }
    }

    fn largest(self) -> f64 {
        self.float8().map_or_else(|| 2f64.powi(self.quant_bit as i32 - 1) - 1.0, |format| format.max)
    }

    /// The format of codes that are floats.
    fn float8(self) -> Option<Format> {
        format(self.t2)
    }

    /// The distance of codes near a number: 1 of integers.
    fn place(self, x: f64) -> f64 {
        self.float8().map_or(1.0, |format| {
            let exponent = x.abs().clamp(format.least_normal(), format.max).log2().floor() as i32;
            2f64.powi(exponent + 1 - format.digits)
        })
    }

    /// What is taken for the largest code.
    fn qmax(self) -> f64 {
        match self.behavior.qmax {
            Qmax::Symmetric => self.largest(),
            Qmax::PowerOfTwo => self.largest() + 1.0,
        }
    }

    /// The step of values that have the same scale, and the scale that it becomes.
    pub(super) fn steps(self, values: &[f64]) -> Steps {
        let largest = |counts: fn(f64) -> bool| {
            values.iter().copied().filter(|&x| counts(x)).fold(0.0, |amax: f64, x| larger(amax, x.abs()))
        };
        let amax = match self.behavior.amax {
            Amax::Largest => largest(|_| true),
            Amax::NanSkipped => largest(|x| !x.is_nan()),
            Amax::FiniteAlone => largest(f64::is_finite),
        };
        let step = self.step(amax);
        Steps { amax, step, scale: self.to_t3(step) }
    }

    fn step(self, amax: f64) -> f64 {
        let Behavior { step, least, step_width: width, least_width, .. } = *self.behavior;
        let of = |amax: f64| match step {
            Step::Quotient => self.to(width, amax / self.qmax()),
            Step::Reciprocal => self.to_t1(amax * self.to_t1(1.0 / self.qmax())),
            Step::FullRange => self.to_t1(amax / (self.qmax() + 0.5)),
        };
        let (quotient, floor) = (of(amax), self.to(least_width, 1e-5));
        match least {
            Least::Floor if quotient < floor => floor,
            Least::Added => self.to_t1(quotient + floor),
            Least::OfAmax if amax < floor => of(floor),
            Least::ForZerosAlone if quotient == 0.0 => floor,
            Least::SwallowsNan if quotient.is_nan() || quotient < floor => floor,
            _ => quotient,
        }
    }

    fn quotient(self, x: f64, steps: &Steps) -> f64 {
        let Behavior { quotient, quotient_width: width, divides_by_scale, .. } = *self.behavior;
        let divisor = if divides_by_scale { steps.scale } else { steps.step };
        match quotient {
            Quotient::Division => self.to(width, x / divisor),
            Quotient::Reciprocal => self.to_t1(x * self.to_t1(1.0 / divisor)),
            Quotient::QmaxOverAmax => self.to_t1(x * self.to_t1(self.qmax() / steps.amax)),
        }
    }

    pub(super) fn code(self, x: f64, steps: &Steps) -> i8 {
        let is_finite = self.float8().is_none() || steps.step.is_finite();
        let (x, largest) = (if is_finite { self.quotient(x, steps) } else { f64::NAN }, self.largest());
        let place = self.place(x);
        let x = x / place;
        let rounded = match self.behavior.rounding {
            Rounding::TiesToEven => x.round_ties_even(),
            Rounding::HalfAway => x.round(),
            Rounding::HalfAwayByAddition => self.to_t1(x + 0.5f64.copysign(x)).trunc(),
            Rounding::HalfUp => self.to_t1(x + 0.5).floor(),
            Rounding::Truncation => x.trunc(),
        };
        let rounded = rounded * place;
        let (low, high) = match self.behavior.clamp {
            Clamp::Symmetric => (-largest, largest),
            Clamp::LowestToo => (-largest - 1.0, largest),
            Clamp::Qmax => (-self.qmax(), self.qmax()),
        };
        let code = match self.behavior.nan_code {
            _ if !rounded.is_nan() => rounded.clamp(low, high),
            NanCode::Zero => 0.0,
            NanCode::Lowest => -largest - 1.0,
            NanCode::ClampedLow => -largest,
            NanCode::ClampedHigh => largest,
        };
        match self.float8() {
            Some(format) => (format.nearest)(code) as i8,
            // One that is too large wraps around.
            None => code as i32 as i8,
        }
    }

    /// The code with a static scale.
    pub(super) fn static_code(self, x: f64, scale: f64) -> i8 {
        let format = format_of(self.t2);
        let quotient = self.to(Width::Float32, x.abs() / scale.abs()).clamp(0.0, format.max);
        let is_negative = x.is_sign_negative() != scale.is_sign_negative();
        (format.nearest)(quotient.copysign(if is_negative { -1.0 } else { 1.0 })) as i8
    }

    pub(super) fn stored_scale(self, steps: &Steps) -> f64 {
        match self.behavior.stored_scale {
            StoredScale::ThroughFloat16 => format_of(ElementType::Float16).rounded(steps.step),
            _ => steps.scale,
        }
    }

    pub(super) fn value(self, code: f64, scale: f64) -> f64 {
        match self.behavior.value {
            ValueOf::Product => self.to_t1(self.to_t3(code * scale)),
            ValueOf::NotRoundedToT3 => self.to_t1(f64::from((code * scale) as f32)),
            ValueOf::ScaleOfT1 => self.to_t1(code * self.to_t1(scale)),
        }
    }
}

impl GroupOf {
    /// The group of element `d` of a head of `groups` groups of `quant_group` elements.
    pub(super) fn of(self, d: usize, quant_group: usize, groups: usize) -> usize {
        match self {
            Self::Neighbors => d / quant_group,
            Self::Strided => d % groups,
            Self::First => 0,
        }
    }
}

/// The larger; NaN if one is.
fn larger(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
}

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
    if flushes(conversion, element, nearest) { (format.nearest)(0f64.copysign(x)) } else { bits }
}

/// Whether a number of a float type becomes zero.
fn flushes(conversion: Conversion, element: ElementType, x: f64) -> bool {
    let flushed = match conversion {
        Conversion::Float16Flushed => ElementType::Float16,
        Conversion::Float32Flushed => ElementType::Float32,
        Conversion::Nearest => return false,
    };
    element == flushed && x.abs() < format_of(element).least_normal()
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
    bytes[at] = bytes[at] & other | nibble;
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
