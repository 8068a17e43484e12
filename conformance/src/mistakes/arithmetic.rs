//! Mistakes in the arithmetic of a group other than rounding: its values, its scale, and its codes.

use super::mistake::Mistake;
use crate::oracle::CurrentTokens;
use crate::oracle::arithmetic::{Group, Shares};

pub(super) const MISTAKES: &[Mistake] = &[
    Mistake::new(
        "quantizing.epsilon",
        "eps-missing",
        "A scale has no least value: it should be max(amax / qmax, 1e-5).",
        |behavior| behavior.arithmetic.step = |group, amax| quotient(group, amax),
    ),
    Mistake::new(
        "quantizing.epsilon",
        "eps-missing-but-for-zeros",
        "The scale of a group of zeros is 1, and no other has a least value: it should be max(amax / qmax, 1e-5) for \
         all.",
        |behavior| behavior.arithmetic.step = |group, amax| if amax == 0.0 { 1.0 } else { quotient(group, amax) },
    ),
    Mistake::new(
        "quantizing.epsilon",
        "eps-added-instead-of-max",
        "1e-5 is added to amax / qmax: the scale should be the larger of the two.",
        |behavior| behavior.arithmetic.step = |group, amax| group.to_t1(quotient(group, amax) + floor(group)),
    ),
    Mistake::new(
        "quantizing.epsilon",
        "eps-of-amax",
        "1e-5 is the least amax: it should be the least scale, max(amax / qmax, 1e-5).",
        |behavior| behavior.arithmetic.step = |group, amax| quotient(group, at_least(amax, floor(group))),
    ),
    Mistake::new(
        "quantizing.epsilon",
        "eps-not-rounded-to-t1",
        "The constant 1e-5 is that of float32 where T1 is float16: round it to T1, to 168 * 2^-24.",
        |behavior| {
            behavior.arithmetic.step = |group, amax| at_least(quotient(group, amax), (1e-5f32).into());
        },
    ),
    Mistake::new("quantizing.epsilon", "eps-of-1e-6", "The least scale is 1e-6: it should be 1e-5.", |behavior| {
        behavior.arithmetic.step = |group, amax| at_least(quotient(group, amax), group.to_t1(1e-6))
    }),
    Mistake::new("quantizing.epsilon", "eps-of-1e-8", "The least scale is 1e-8: it should be 1e-5.", |behavior| {
        behavior.arithmetic.step = |group, amax| at_least(quotient(group, amax), group.to_t1(1e-8))
    }),
    Mistake::new(
        "quantizing.qmax",
        "qmax-8-of-int4",
        "The largest code of int4 is taken as 8: it is 7, and codes are symmetric.",
        |behavior| {
            behavior.arithmetic.qmax = qmax_8_of_int4;
            behavior.arithmetic.code = |group, _, rounded| code(rounded, -group.qmax(), largest(group.quant_bit));
        },
    ),
    Mistake::new(
        "quantizing.qmax",
        "qmax-8-of-int4-for-the-scale",
        "The scale of int4 is amax / 8: it should be amax / 7, the largest code.",
        |behavior| {
            behavior.arithmetic.qmax = qmax_8_of_int4;
            behavior.arithmetic.code =
                |group, _, rounded| code(rounded, -largest(group.quant_bit), largest(group.quant_bit));
        },
    ),
    Mistake::new(
        "quantizing.qmax",
        "qmax-8-of-int4-wraps",
        "The largest code of int4 is taken as 8, which four bits make -8: it is 7.",
        |behavior| behavior.arithmetic.qmax = qmax_8_of_int4,
    ),
    Mistake::new(
        "quantizing.qmax",
        "qmax-127-of-int4",
        "The step is amax / 127 where quant_bit is 4, too, and codes are clamped to 7: divide by 7.",
        |behavior| {
            behavior.arithmetic.qmax = |_| 127.0;
            behavior.arithmetic.code = |group, _, rounded| {
                let largest = if group.quant_bit == 4 { 7.0 } else { 127.0 };
                code(rounded, -largest, largest)
            };
        },
    ),
    Mistake::new(
        "quantizing.qmax",
        "qmax-128-wraps",
        "The largest code is taken as 2^(quant_bit-1), 128 or 8, which becomes -128 or -8: it is one less, 127 or 7.",
        |behavior| {
            behavior.arithmetic.qmax = |quant_bit| 2f64.powi(quant_bit as i32 - 1);
            behavior.arithmetic.code = |group, _, rounded| match rounded.is_nan() {
                true => 0,
                false => rounded.clamp(-group.qmax(), group.qmax()) as i32 as i8,
            };
        },
    ),
    Mistake::new(
        "quantizing.qmax",
        "qmax-128",
        "The largest code is taken as 2^(quant_bit-1), 128 or 8: it is one less, 127 or 7, and codes are symmetric.",
        |behavior| {
            behavior.arithmetic.qmax = |quant_bit| 2f64.powi(quant_bit as i32 - 1);
            behavior.arithmetic.code = |group, _, rounded| code(rounded, -group.qmax(), group.qmax() - 1.0);
        },
    ),
    Mistake::new(
        "quantizing.qmax",
        "scale-of-full-range",
        "The scale is 2 * amax / (2^quant_bit - 1): it should be amax / (2^(quant_bit-1) - 1), with symmetric codes.",
        |behavior| {
            behavior.arithmetic.step = |group, amax| at_least(group.to_t1(amax / (group.qmax() + 0.5)), floor(group));
            behavior.arithmetic.code = |group, _, rounded| code(rounded, -group.qmax() - 1.0, group.qmax());
        },
    ),
    Mistake::new(
        "quantizing.qmax",
        "scale-of-full-range-clamped",
        "The scale is 2 * amax / (2^quant_bit - 1), though codes are symmetric: it should be amax / (2^(quant_bit-1) - 1).",
        |behavior| {
            behavior.arithmetic.step = |group, amax| at_least(group.to_t1(amax / (group.qmax() + 0.5)), floor(group));
        },
    ),
    Mistake::new(
        "quantizing.qmax",
        "amax-without-sign",
        "The scale is made of the largest value, not of the largest magnitude: take |x| before the maximum.",
        |behavior| {
            behavior.arithmetic.amax = |_, values| {
                values.iter().fold(
                    f64::NEG_INFINITY,
                    |amax, &x| if amax.is_nan() || x.is_nan() { f64::NAN } else { amax.max(x) },
                )
            };
        },
    ),
    Mistake::new(
        "quantizing.groups",
        "groups-strided",
        "A group is every so manieth element of a head: it should be quant_group neighbors.",
        |behavior| {
            behavior.arithmetic.group = |d, _, groups| d % groups;
            behavior.arithmetic.loaded_group = |d, _, groups| d % groups;
        },
    ),
    Mistake::new(
        "quantizing.groups",
        "scale-per-head",
        "One scale is made for a whole head: each group of quant_group neighbors has its own.",
        |behavior| behavior.arithmetic.shares_scale.group = false,
    ),
    Mistake::new(
        "quantizing.groups",
        "group-across-heads",
        "The heads of a token share a scale: groups lie along head_dim, within one head.",
        |behavior| behavior.arithmetic.shares_scale.head = false,
    ),
    Mistake::new(
        "quantizing.groups",
        "scale-per-token",
        "One scale is made for all heads of a token: each group of quant_group neighbors of a head has its own.",
        |behavior| {
            behavior.arithmetic.shares_scale = Shares { head: false, group: false, ..Shares::GROUP };
        },
    ),
    Mistake::new(
        "non-finite.nan",
        "nan-swallowed",
        "A NaN does not count toward amax, as fmax() and max() of many libraries have it: it should make the scale \
         NaN.",
        |behavior| behavior.arithmetic.amax = |_, values| values.iter().fold(0.0, |amax, x| amax.max(x.abs())),
    ),
    Mistake::dynamic(
        "non-finite.nan",
        "nan-swallowed-beside-numbers",
        "A NaN does not count toward amax unless all of the group are NaN, as a reduction with fmax() has it: it \
         should make the scale NaN.",
        |behavior| {
            behavior.arithmetic.amax = |_, values| values.iter().fold(f64::NAN, |amax, x| amax.max(x.abs()));
        },
    ),
    Mistake::new(
        "non-finite.nan",
        "non-finite-swallowed",
        "Only finite values count toward amax: a NaN should make the scale NaN, and an infinity make it infinite.",
        |behavior| {
            behavior.arithmetic.amax =
                |_, values| values.iter().filter(|x| x.is_finite()).fold(0.0, |amax: f64, x| amax.max(x.abs()));
        },
    ),
    Mistake::new(
        "non-finite.infinity",
        "infinity-swallowed",
        "An infinity does not count toward amax: it should make the scale infinite and every code 0.",
        |behavior| {
            behavior.arithmetic.amax = |_, values| {
                let amax = |amax: f64, x: &f64| if amax.is_nan() || x.is_nan() { f64::NAN } else { amax.max(x.abs()) };
                values.iter().filter(|x| !x.is_infinite()).fold(0.0, amax)
            };
        },
    ),
    Mistake::new(
        "non-finite.infinity",
        "infinity-gets-qmax",
        "An infinite value gets the largest code: in a group with an infinite scale every code is 0.",
        |behavior| {
            behavior.arithmetic.code = |group, x, rounded| match x {
                f64::INFINITY => group.qmax() as i8,
                f64::NEG_INFINITY => -group.qmax() as i8,
                _ => code(rounded, -group.qmax(), group.qmax()),
            };
        },
    ),
    Mistake::new(
        "non-finite.nan",
        "nan-code-lowest",
        "A quotient that is NaN becomes the lowest code, -128 or -8, as a saturating conversion has it: it should be \
         0.",
        |behavior| {
            behavior.arithmetic.code = |group, _, rounded| match rounded.is_nan() {
                true => (-group.qmax() - 1.0) as i8,
                false => code(rounded, -group.qmax(), group.qmax()),
            };
        },
    ),
    Mistake::new(
        "non-finite.nan",
        "nan-code-clamped-low",
        "A quotient that is NaN is clamped to -qmax: fmin() and fmax() prefer their other operand; the code should be \
         0.",
        |behavior| {
            behavior.arithmetic.code = |group, _, rounded| rounded.max(-group.qmax()).min(group.qmax()) as i8;
        },
    ),
    Mistake::new(
        "non-finite.nan",
        "nan-code-clamped-high",
        "A quotient that is NaN is clamped to qmax: fmin() and fmax() prefer their other operand; the code should be \
         0.",
        |behavior| {
            behavior.arithmetic.code = |group, _, rounded| rounded.min(group.qmax()).max(-group.qmax()) as i8;
        },
    ),
    Mistake::new(
        "scale.rounded-to-t3",
        "scale-not-rounded",
        "Current tokens are given back with the step before it was rounded to T3: dequantize with the scale that is \
         stored.",
        |behavior| behavior.current_tokens = CurrentTokens::UnroundedScale,
    ),
    Mistake::new(
        "scale.rounded-to-t3",
        "scale-and-product-not-rounded",
        "Current tokens are given back as codes times the step, neither rounded to T3: dequantize with the scale that is \
         stored, and round the product to T3.",
        |behavior| behavior.current_tokens = CurrentTokens::UnroundedProduct,
    ),
];

/// The largest code, but for int4, of which it is one too large.
fn qmax_8_of_int4(quant_bit: i64) -> f64 {
    if quant_bit == 4 { 8.0 } else { 127.0 }
}

/// The largest code.
fn largest(quant_bit: i64) -> f64 {
    2f64.powi(quant_bit as i32 - 1) - 1.0
}

/// amax / qmax in T1.
fn quotient(group: &Group<'_>, amax: f64) -> f64 {
    group.to_t1(amax / group.qmax())
}

/// The constant 1e-5 in T1.
fn floor(group: &Group<'_>) -> f64 {
    group.to_t1(1e-5)
}

/// The larger of the two; a NaN stays.
fn at_least(x: f64, floor: f64) -> f64 {
    if x < floor { floor } else { x }
}

/// A rounded quotient, clamped; 0 if it is NaN.
fn code(rounded: f64, least: f64, most: f64) -> i8 {
    if rounded.is_nan() { 0 } else { rounded.clamp(least, most) as i8 }
}
