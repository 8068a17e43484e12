//! The arithmetic of one group.
//!
//! A number is an `f64` here, which holds every value of every type. An operation is computed in `f64`, and its result
//! rounded to the type that the specification names: a quotient or product of two float32 or float16 values is then
//! what that type's own arithmetic gives, because `f64` has more than twice the precision and two bits.

use half::f16;
use kvcache_schema::ElementType;

use crate::oracle::decisions::{
    Amax, Behavior, Clamp, Divisor, GroupOf, Least, Qmax, Quotient, Rounding, SpecialCode, Step, StoredScale, ValueOf,
    Width,
};
use crate::oracle::numbers::{finite, rounded, to_float16, truncated};

/// What is known of a group: its types and width, and the decisions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Group<'a> {
    pub(super) behavior: &'a Behavior,
    pub(super) t1: ElementType,
    pub(super) t3: ElementType,
    pub(super) quant_bit: i64,
}

/// The largest magnitude of a group; its step, and what that becomes when it is rounded to T3; and the scale that was
/// stored before this call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Steps {
    amax: f64,
    pub(super) step: f64,
    scale: f64,
    old_scale: f64,
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
            Width::Float16 => to_float16(x),
            Width::Float32 => f64::from(x as f32),
            Width::Float64 => x,
        }
    }

    /// The largest code of the width.
    fn largest(self) -> f64 {
        2f64.powi(self.quant_bit as i32 - 1) - 1.0
    }

    /// What is taken for the largest code.
    fn qmax(self) -> f64 {
        match self.behavior.qmax {
            Qmax::Symmetric => self.largest(),
            Qmax::EightOfInt4 => {
                if self.quant_bit == 4 {
                    8.0
                } else {
                    127.0
                }
            }
            Qmax::PowerOfTwo => self.largest() + 1.0,
            Qmax::Always127 => 127.0,
        }
    }

    /// The largest magnitude of values that have the same scale.
    pub(super) fn amax(self, values: &[f64]) -> f64 {
        let n = self.behavior.n;
        let skipping = |skip: fn(f64) -> bool| largest(values.iter().filter(|x| !skip(**x)));
        match self.behavior.amax {
            Amax::Largest => largest(values),
            Amax::Signed => extremes(values.iter().copied()).1,
            Amax::Mean => self.to_t1(mean(values.iter().map(|x| x.abs()))),
            Amax::RootMeanSquare => mean(values.iter().map(|x| x * x)).sqrt(),
            Amax::HalfRange => {
                let (least, most) = extremes(values.iter().copied());
                self.to_t1(most - least) / 2.0
            }
            Amax::First => largest(&values[..values.len().min(n)]),
            Amax::LastMissing => largest(&values[..values.len().saturating_sub(1).max(1)]),
            Amax::WholeMultiples => match values.len() / n * n {
                0 => largest(values),
                whole => largest(&values[..whole]),
            },
            Amax::NanSkipped => skipping(f64::is_nan),
            Amax::FiniteAlone => skipping(|x| !x.is_finite()),
            Amax::InfinitySkipped => skipping(f64::is_infinite),
        }
    }

    /// The step of values of this largest magnitude, and the scale that it becomes.
    pub(super) fn steps(self, amax: f64, old_scale: f64) -> Steps {
        let step = self.step(amax);
        Steps { amax, step, scale: self.to_t3(step), old_scale }
    }

    fn step(self, amax: f64) -> f64 {
        let Behavior { step, least, step_width: width, least_width, n, .. } = *self.behavior;
        let of = |amax: f64| match step {
            Step::Quotient | Step::PowerOfTwo if width == Width::Float16 => to_float16(to_float16(amax) / self.qmax()),
            Step::Quotient | Step::PowerOfTwo => self.to(width, amax / self.qmax()),
            Step::Reciprocal => self.to_t1(amax * self.to_t1(1.0 / self.qmax())),
            Step::FullRange => self.to_t1(amax / (self.qmax() + 0.5)),
            Step::Amax => amax,
        };
        let (quotient, floor) = (of(amax), self.to(least_width, 1e-5));
        let larger = |x: f64, floor: f64| if x < floor { floor } else { x };
        let least = match least {
            Least::Floor => larger(quotient, floor),
            Least::Missing => quotient,
            Least::MissingButForZeros => {
                if amax == 0.0 {
                    1.0
                } else {
                    quotient
                }
            }
            Least::Added => self.to_t1(quotient + floor),
            Least::OfAmax => of(larger(amax, floor)),
            Least::ForZerosAlone => {
                if quotient == 0.0 {
                    floor
                } else {
                    quotient
                }
            }
            Least::SwallowsNan => {
                if quotient > floor {
                    quotient
                } else {
                    floor
                }
            }
            Least::PowerOfTen => larger(quotient, self.to_t1(10f64.powi(-(n as i32)))),
        };
        if step == Step::PowerOfTwo { least.log2().ceil().exp2() } else { least }
    }

    fn quotient(self, x: f64, steps: &Steps) -> f64 {
        let Behavior { quotient, quotient_width: width, divisor, .. } = *self.behavior;
        let divisor = match divisor {
            Divisor::Step => steps.step,
            Divisor::StoredScale => steps.scale,
            Divisor::OldScale => steps.old_scale,
        };
        match quotient {
            Quotient::Division => self.to(width, if width == Width::Float16 { to_float16(x) } else { x } / divisor),
            Quotient::Reciprocal => self.to_t1(x * self.to_t1(1.0 / divisor)),
            Quotient::ReciprocalInFloat32 => f64::from((x * f64::from((1.0 / divisor) as f32)) as f32),
            Quotient::QmaxOverAmax => self.to_t1(x * self.to_t1(self.qmax() / steps.amax)),
            Quotient::QmaxBeforeAmax => self.to_t1(self.to_t1(x * self.qmax()) / steps.amax),
        }
    }

    fn round(self, x: f64) -> f64 {
        match self.behavior.rounding {
            Rounding::TiesToEven => x.round_ties_even(),
            Rounding::HalfAway => x.round(),
            Rounding::HalfAwayByAddition => self.to_t1(x + 0.5f64.copysign(x)).trunc(),
            Rounding::HalfUp => self.to_t1(x + 0.5).floor(),
            Rounding::HalfUpInFloat32 => f64::from((x + 0.5) as f32).floor(),
            Rounding::HalfTowardZero => (x.abs() - 0.5).ceil().copysign(x),
            Rounding::HalfDown => self.to_t1(x - 0.5).ceil(),
            Rounding::Truncation => x.trunc(),
            Rounding::Down => x.floor(),
            Rounding::Up => x.ceil(),
        }
    }

    /// The code of a value.
    pub(super) fn code(self, x: f64, steps: &Steps) -> i8 {
        let (rounded, largest) = (self.round(self.quotient(x, steps)), self.largest());
        let (low, high) = match self.behavior.clamp {
            Clamp::Symmetric => (-largest, largest),
            Clamp::LowestToo => (-largest - 1.0, largest),
            Clamp::Qmax => (-self.qmax(), self.qmax()),
        };
        let code = match self.behavior.special {
            SpecialCode::InfinityLargest if x.is_infinite() => largest.copysign(x),
            SpecialCode::NanLowest if rounded.is_nan() => -largest - 1.0,
            SpecialCode::NanClampedLow if rounded.is_nan() => -largest,
            SpecialCode::NanClampedHigh if rounded.is_nan() => largest,
            _ if rounded.is_nan() => 0.0,
            _ => rounded.clamp(low, high),
        };
        // One that is too large wraps around.
        code as i32 as i8
    }

    /// The scale that is stored.
    pub(super) fn stored_scale(self, steps: &Steps) -> f64 {
        let (narrow, least_normal) = (self.t3 == ElementType::Float16, f64::from(f16::MIN_POSITIVE));
        match self.behavior.stored_scale {
            StoredScale::Truncated if narrow => truncated(steps.step as f32).into(),
            StoredScale::Saturated if narrow && steps.step.is_finite() => finite(self.t3, steps.scale),
            StoredScale::DenormalsFlushed if narrow && steps.scale < least_normal => 0.0,
            StoredScale::ThroughFloat16 => to_float16(steps.step),
            StoredScale::Amax => self.to_t3(steps.amax),
            StoredScale::Reciprocal => self.to_t3(self.to_t1(1.0 / steps.step)),
            StoredScale::Old => steps.old_scale,
            _ => steps.scale,
        }
    }

    /// The value of a code.
    pub(super) fn value(self, code: f64, scale: f64) -> f64 {
        let of_t3 = |product: f64| self.to_t1(self.to_t3(product));
        match self.behavior.value {
            ValueOf::Product => of_t3(code * scale),
            ValueOf::NotRoundedToT3 => self.to_t1(f64::from((code * scale) as f32)),
            ValueOf::ScaleOfT1 => self.to_t1(code * self.to_t1(scale)),
            ValueOf::OfFloat16 => self.to_t1(to_float16(code * to_float16(scale))),
            ValueOf::ThroughFloat16 => self.to_t1(to_float16(f64::from((code * scale) as f32))),
            ValueOf::Code => code,
            ValueOf::Divided => of_t3(code / scale),
            ValueOf::LeastScale => of_t3(code * if scale < self.to_t3(1e-5) { self.to_t3(1e-5) } else { scale }),
            ValueOf::ScaleOverQmax => of_t3(code * self.to_t3(scale / self.qmax())),
            ValueOf::LowestClamped => of_t3(code.max(-self.qmax()) * scale),
        }
    }
}

impl GroupOf {
    /// The group of element `d` of a head of `groups` groups of `quant_group` elements.
    pub(super) fn of(self, d: usize, quant_group: usize, groups: usize) -> usize {
        match self {
            Self::Neighbors => d / quant_group,
            Self::Strided => d % groups,
            Self::OfEight => (d / 8).min(groups - 1),
            Self::First => 0,
        }
    }
}

/// The largest magnitude; NaN if one is.
fn largest<'a>(values: impl IntoIterator<Item = &'a f64>) -> f64 {
    values.into_iter().fold(0.0, |amax, x| if amax.is_nan() || x.is_nan() { f64::NAN } else { amax.max(x.abs()) })
}

/// The mean; NaN if one is.
fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len();
    values.sum::<f64>() / count as f64
}

/// The least and the largest; NaN if one is.
fn extremes(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), x| match x.is_nan() || least.is_nan() {
        true => (f64::NAN, f64::NAN),
        false => (least.min(x), most.max(x)),
    })
}
