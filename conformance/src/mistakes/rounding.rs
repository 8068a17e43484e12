//! Mistakes of rounding: of quotients to integers, of results to the types T1 and T3, and between float types.

use half::f16;
use kvcache_schema::ElementType;

use super::mistake::Mistake;
use crate::oracle::arithmetic::Group;

pub(super) const MISTAKES: &[Mistake] = &[
    Mistake::new(
        "quantizing.ties-to-even",
        "half-away-from-even",
        "Quotients halfway between two integers go away from zero, as C's round() does: use rint(), nearbyint() or \
         round_ties_even() where a quotient becomes a code.",
        |behavior| behavior.arithmetic.round = |_, x| x.round(),
    ),
    Mistake::new(
        "quantizing.ties-to-even",
        "half-away-from-even-by-addition",
        "Quotients become codes by adding half with their sign and truncating: ties go away from zero, and so do \
         values just below a tie where the sum is rounded; use rint() or round_ties_even().",
        |behavior| behavior.arithmetic.round = |group, x| group.to_t1(x + 0.5f64.copysign(x)).trunc(),
    ),
    Mistake::new(
        "quantizing.ties-to-even",
        "half-up",
        "Quotients become codes by floor(x + 0.5): ties go up; use rint() or round_ties_even().",
        |behavior| behavior.arithmetic.round = |group, x| group.to_t1(x + 0.5).floor(),
    ),
    Mistake::new(
        "quantizing.ties-to-even",
        "half-up-in-float32",
        "Quotients become codes by floor(x + 0.5) in float32 also where T1 is float16: ties go up; use rint() or \
         round_ties_even().",
        |behavior| behavior.arithmetic.round = |_, x| f64::from((x + 0.5) as f32).floor(),
    ),
    Mistake::new(
        "quantizing.ties-to-even",
        "half-toward-zero",
        "Quotients halfway between two integers go toward zero, they should go to the even one: look where a quotient \
         becomes a code.",
        |behavior| behavior.arithmetic.round = |_, x| (x.abs() - 0.5).ceil().copysign(x),
    ),
    Mistake::new(
        "quantizing.ties-to-even",
        "truncation",
        "Quotients are truncated, not rounded: a cast to an integer type does that; round to nearest, ties to even, \
         before the cast.",
        |behavior| behavior.arithmetic.round = |_, x| x.trunc(),
    ),
    Mistake::new(
        "quantizing.ties-to-even",
        "rounding-down",
        "Quotients are rounded down by floor(), they should go to the nearest integer, ties to even.",
        |behavior| behavior.arithmetic.round = |_, x| x.floor(),
    ),
    Mistake::new(
        "quantizing.ties-to-even",
        "rounding-up",
        "Quotients are rounded up by ceil(), they should go to the nearest integer, ties to even.",
        |behavior| behavior.arithmetic.round = |_, x| x.ceil(),
    ),
    Mistake::new(
        "quantizing.ties-to-even",
        "half-down",
        "Quotients become codes by ceil(x - 0.5): ties go down; use rint() or round_ties_even().",
        |behavior| behavior.arithmetic.round = |group, x| group.to_t1(x - 0.5).ceil(),
    ),
    Mistake::new(
        "quantizing.code-quotient",
        "quotient-not-rounded-to-t1",
        "x / s is rounded to an integer from a wider type: round the quotient to T1 first (float16 for float16 keys, \
         float32 for float32 ones).",
        |behavior| behavior.arithmetic.quotient = |_, x, divisor| x / divisor,
    ),
    Mistake::new(
        "quantizing.real-division",
        "reciprocal-multiplication",
        "x is multiplied by 1 / s: divide by s, the product has other bits.",
        |behavior| {
            behavior.arithmetic.quotient = |group, x, divisor| group.to_t1(x * group.to_t1(1.0 / divisor));
        },
    ),
    Mistake::new(
        "quantizing.real-division",
        "reciprocal-multiplication-in-float32",
        "x is multiplied by 1 / s in float32 also where T1 is float16: divide by s, and round the quotient to T1.",
        |behavior| {
            behavior.arithmetic.quotient = |_, x, divisor| (x * f64::from((1.0 / divisor) as f32)).in_float32();
        },
    ),
    Mistake::new(
        "quantizing.real-division",
        "multiplication-by-qmax-over-amax",
        "x is multiplied by qmax / amax: divide x by the step, which is amax / qmax rounded to T1 and at least 1e-5.",
        |behavior| {
            behavior.arithmetic.divisor = |group, steps| group.to_t1(group.qmax() / steps.amax);
            behavior.arithmetic.quotient = |group, x, factor| group.to_t1(x * factor);
        },
    ),
    Mistake::new(
        "quantizing.real-division",
        "multiplication-by-qmax-before-division",
        "x is multiplied by qmax and then divided by amax: divide x by the step, which is amax / qmax rounded to T1 and \
         at least 1e-5.",
        |behavior| {
            behavior.arithmetic.divisor = |_, steps| steps.amax;
            behavior.arithmetic.quotient = |group, x, amax| group.to_t1(group.to_t1(x * group.qmax()) / amax);
        },
    ),
    Mistake::new(
        "quantizing.amax-quotient",
        "amax-quotient-not-rounded-to-t1",
        "amax / qmax stays float32 where T1 is float16: round it to T1 before it divides and before it becomes a \
         scale.",
        |behavior| behavior.arithmetic.step = |group, amax| (amax / group.qmax()).in_float32().max_or_nan(floor(group)),
    ),
    Mistake::new(
        "quantizing.amax-quotient",
        "amax-by-reciprocal-of-qmax",
        "amax is multiplied by 1 / qmax: divide by qmax, the product has other bits.",
        |behavior| {
            behavior.arithmetic.step =
                |group, amax| group.to_t1(amax * group.to_t1(1.0 / group.qmax())).max_or_nan(floor(group));
        },
    ),
    Mistake::new(
        "quantizing.amax-quotient",
        "float16-computed-in-float32",
        "Where T1 is float16, steps and quotients are computed in float32 throughout: round amax / qmax, 1e-5 and x / \
         s to float16, each by itself.",
        |behavior| {
            behavior.arithmetic.step = |group, amax| (amax / group.qmax()).in_float32().max_or_nan(FLOOR_OF_FLOAT32);
            behavior.arithmetic.quotient = |_, x, divisor| (x / divisor).in_float32();
        },
    ),
    Mistake::new(
        "quantizing.amax-quotient",
        "computed-in-float64",
        "Steps and quotients are computed in float64 throughout: round amax / qmax, 1e-5 and x / s to T1, each by \
         itself.",
        |behavior| {
            behavior.arithmetic.step = |group, amax| (amax / group.qmax()).max_or_nan(1e-5);
            behavior.arithmetic.quotient = |_, x, divisor| x / divisor;
        },
    ),
    Mistake::new(
        "quantizing.step-of-t1",
        "codes-from-rounded-scale",
        "Codes are made with the scale after it was rounded to T3: divide by the step as it is in T1.",
        |behavior| behavior.arithmetic.divisor = |_, steps| steps.scale,
    ),
    Mistake::new(
        "scale.rounded-to-t3",
        "scale-truncated",
        "A float32 step is truncated where it becomes a float16 scale: round to nearest, ties to even.",
        |behavior| {
            behavior.arithmetic.stored_scale = |group, steps| match group.t3 {
                ElementType::Float16 => truncated(steps.step as f32).to_f32().into(),
                _ => steps.scale,
            };
        },
    ),
    Mistake::new(
        "quantizing.amax-quotient",
        "scale-through-float16",
        "Steps are rounded to float16 where the scale is float32, too: scale holds s converted to T3.",
        |behavior| behavior.arithmetic.stored_scale = |_, steps| to_float16(steps.step),
    )
    .static_rule("quantizing.groups"),
    Mistake::new(
        "quantizing.code-quotient",
        "quantized-in-float16",
        "Values of float32 are rounded to float16 before they are quantized, with steps and quotients of float16: where \
         T1 is float32 all of that is float32.",
        |behavior| {
            let arithmetic = &mut behavior.arithmetic;
            arithmetic.amax = |_, values| {
                let largest =
                    |amax: f64, x: &f64| if x.is_nan() || amax.is_nan() { f64::NAN } else { amax.max(x.abs()) };
                to_float16(values.iter().fold(0.0, largest))
            };
            arithmetic.step = |group, amax| to_float16(amax / group.qmax()).max_or_nan(to_float16(1e-5));
            arithmetic.quotient = |_, x, divisor| to_float16(to_float16(x) / divisor);
        },
    ),
    Mistake::new(
        "dequantizing.rounded-to-t3",
        "product-of-float16",
        "Scale and product are rounded to float16 where the scale is float32, too: the product is of T3.",
        |behavior| {
            behavior.arithmetic.value =
                |group, code, scale| group.to_t1(to_float16(f64::from(code) * to_float16(scale)));
        },
    )
    .static_rule("quantizing.groups"),
    Mistake::new(
        "dequantizing.rounded-to-t3",
        "product-rounded-to-float16",
        "The product of code and scale is rounded to float16 where the scale is float32, too: it is of T3.",
        |behavior| {
            behavior.arithmetic.value =
                |group, code, scale| group.to_t1(to_float16((f64::from(code) * scale).in_float32()));
        },
    )
    .static_rule("quantizing.groups"),
    Mistake::new(
        "dequantizing.rounded-to-t3",
        "dequantize-not-rounded-to-t3",
        "The product of code and scale goes to T1 from float32: round it to T3, the scale's type, first.",
        |behavior| {
            behavior.arithmetic.value = |group, code, scale| group.to_t1((f64::from(code) * scale).in_float32());
        },
    ),
    Mistake::new(
        "dequantizing.rounded-to-t3",
        "scale-rounded-to-t1-before-product",
        "The scale is converted to T1 before it is multiplied with the code: multiply in T3, then convert the product.",
        |behavior| {
            behavior.arithmetic.value = |group, code, scale| group.to_t1(f64::from(code) * group.to_t1(scale));
        },
    ),
    Mistake::new(
        "conversion.rounding",
        "conversion-truncates",
        "float32 is truncated where it becomes float16: round to nearest, ties to even.",
        |behavior| behavior.arithmetic.narrow = truncated,
    ),
    Mistake::new(
        "conversion.same-type",
        "stored-through-float16",
        "float32 values are rounded to float16 before they are stored in a cache of float32: every bit is kept.",
        |behavior| {
            behavior.arithmetic.current = |t1, x| match t1 {
                ElementType::Float32 => f16::from_f64(x).to_f64(),
                _ => x,
            };
        },
    ),
    Mistake::new(
        "conversion.rounding",
        "conversion-half-away-from-even",
        "Of float32 values halfway between two float16 values the larger magnitude is taken: it should be the even \
         one.",
        |behavior| behavior.arithmetic.narrow = half_away,
    ),
    Mistake::new(
        "conversion.rounding",
        "conversion-saturates",
        "float32 beyond the largest float16 becomes 65504: it should become an infinity.",
        |behavior| {
            behavior.arithmetic.narrow = |x| match f16::from_f32(x) {
                narrow if narrow.is_infinite() && x.is_finite() => f16::MAX.copysign(narrow),
                narrow => narrow,
            };
        },
    ),
    Mistake::new(
        "conversion.rounding",
        "float16-denormals-flushed",
        "Denormals of float16 are taken as zero or become zero: convert them as the values that they are.",
        |behavior| {
            let arithmetic = &mut behavior.arithmetic;
            arithmetic.narrow = |x| flushed(f16::from_f32(x));
            arithmetic.widen = |x| flushed(x).to_f32();
        },
    ),
    Mistake::dynamic(
        "floating-point-environment",
        "float32-denormals-flushed",
        "Denormals of float32 are taken as zero: the thread runs with flush-to-zero or denormals-are-zero set, often \
         by a compiler's fast-math flag.",
        |behavior| {
            behavior.arithmetic.float32 = |x| if x.is_subnormal() { 0f32.copysign(x) } else { x };
        },
    ),
    Mistake::new(
        "conversion.same-type",
        "nan-bits-changed",
        "Where cache and keys have the same type, values are loaded and stored as numbers, which changes the bits of \
         NaN: copy the bytes.",
        |behavior| behavior.arithmetic.copies_bits = false,
    ),
];

fn to_float16(x: f64) -> f64 {
    f16::from_f64(x).to_f64()
}

/// The constant 1e-5 of a group.
fn floor(group: &Group<'_>) -> f64 {
    group.to_t1(1e-5)
}

const FLOOR_OF_FLOAT32: f64 = 1e-5f32 as f64;

trait Rounds {
    /// The same number, rounded to float32.
    fn in_float32(self) -> f64;

    /// The larger of the two; NaN stays.
    fn max_or_nan(self, floor: f64) -> f64;
}

impl Rounds for f64 {
    fn in_float32(self) -> f64 {
        (self as f32).into()
    }

    fn max_or_nan(self, floor: f64) -> f64 {
        if self < floor { floor } else { self }
    }
}

/// `x` as float16, rounded toward zero.
fn truncated(x: f32) -> f16 {
    let nearest = f16::from_f32(x);
    if nearest.to_f32().abs() > x.abs() { f16::from_bits(nearest.to_bits() - 1) } else { nearest }
}

/// `x` as float16, rounded to nearest, ties away from zero.
fn half_away(x: f32) -> f16 {
    let low = truncated(x);
    if !x.is_finite() || f64::from(low.to_f32()) == f64::from(x) {
        return low;
    }
    let high = f16::from_bits(low.to_bits() + 1);
    // Beyond the largest float16, the next power of two stands for infinity.
    let high_value = if high.is_infinite() { 65536.0 } else { f64::from(high.to_f32().abs()) };
    let (x, low_value) = (f64::from(x.abs()), f64::from(low.to_f32().abs()));
    if x - low_value >= high_value - x { high } else { low }
}

/// Zero in place of a denormal.
fn flushed(x: f16) -> f16 {
    if x.to_f32().abs() < f16::MIN_POSITIVE.to_f32() { f16::ZERO.copysign(x) } else { x }
}
