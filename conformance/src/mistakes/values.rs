//! Mistakes that replace values: a NaN, an infinity, a denormal or a negative zero that becomes another number.

use kvcache_schema::ElementType;

use super::mistake::Mistake;

pub(super) const MISTAKES: &[Mistake] = &[
    Mistake::new(
        "non-finite.nan",
        "nan-replaced-on-store",
        "A NaN of current_key or current_value is stored as 0: it should reach the cache, and make its group's scale \
         NaN.",
        |behavior| behavior.arithmetic.current = |_, x| if x.is_nan() { 0.0 } else { x },
    ),
    Mistake::new(
        "non-finite.infinity",
        "infinity-replaced-on-store",
        "An infinity of current_key or current_value is stored as the largest number of its type: it should reach the \
         cache, and make its group's scale infinite.",
        |behavior| behavior.arithmetic.current = |t1, x| if x.is_nan() { x } else { finite(t1, x) },
    ),
    Mistake::new(
        "non-finite.nan",
        "non-finite-replaced-on-store",
        "NaN is stored as 0 and infinities as the largest numbers, as nan_to_num() has them: values are stored as they \
         are.",
        |behavior| behavior.arithmetic.current = |t1, x| if x.is_nan() { 0.0 } else { finite(t1, x) },
    ),
    Mistake::new(
        "non-finite.nan",
        "non-finite-zeroed-on-store",
        "NaN and infinities are stored as 0: values are stored as they are.",
        |behavior| behavior.arithmetic.current = |_, x| if x.is_finite() { x } else { 0.0 },
    ),
    Mistake::new(
        "conversion.same-type",
        "nan-made-canonical",
        "A NaN is stored as the one NaN that is its type's default: every bit is kept.",
        |behavior| behavior.arithmetic.current = |_, x| if x.is_nan() { f64::NAN } else { x },
    ),
    Mistake::new(
        "non-finite.nan",
        "nan-replaced-on-load",
        "A NaN is loaded as 0: what is not finite must show in key and value.",
        |behavior| behavior.arithmetic.output = |_, x| if x.is_nan() { 0.0 } else { x },
    ),
    Mistake::new(
        "non-finite.nan",
        "non-finite-replaced-on-load",
        "NaN is loaded as 0 and infinities as the largest numbers, as nan_to_num() has them: what is not finite must \
         show in key and value.",
        |behavior| behavior.arithmetic.output = |t1, x| if x.is_nan() { 0.0 } else { finite(t1, x) },
    ),
    Mistake::new(
        "conversion.rounding",
        "saturated-on-load",
        "Values beyond the largest number of T1 are loaded as that number: they should become infinities.",
        |behavior| behavior.arithmetic.output = |t1, x| if x.is_nan() { x } else { finite(t1, x) },
    ),
    Mistake::new(
        "conversion.same-type",
        "denormals-stored-as-zero",
        "Denormals of current_key and current_value are stored as zero: every bit is kept.",
        |behavior| behavior.arithmetic.current = |t1, x| if x.abs() < least_normal(t1) { 0f64.copysign(x) } else { x },
    ),
    Mistake::new(
        "conversion.same-type",
        "denormals-loaded-as-zero",
        "Denormals are loaded as zero: every bit is kept.",
        |behavior| behavior.arithmetic.output = |t1, x| if x.abs() < least_normal(t1) { 0f64.copysign(x) } else { x },
    ),
    Mistake::dynamic(
        "conversion.same-type",
        "negative-zero-lost-on-store",
        "-0.0 is stored as 0.0: every bit is kept.",
        |behavior| behavior.arithmetic.current = |_, x| if x == 0.0 { 0.0 } else { x },
    ),
    Mistake::dynamic(
        "conversion.same-type",
        "negative-zero-lost-on-load",
        "-0.0 is loaded as 0.0: every bit is kept.",
        |behavior| behavior.arithmetic.output = |_, x| if x == 0.0 { 0.0 } else { x },
    ),
];

/// `x`, or, beyond the largest number of a float type, that number.
fn finite(element: ElementType, x: f64) -> f64 {
    let largest = match element {
        ElementType::Float16 => half::f16::MAX.to_f64(),
        _ => f32::MAX.into(),
    };
    x.clamp(-largest, largest)
}

/// The smallest positive number of a float type that is not denormal.
fn least_normal(element: ElementType) -> f64 {
    match element {
        ElementType::Float16 => half::f16::MIN_POSITIVE.to_f64(),
        _ => f32::MIN_POSITIVE.into(),
    }
}
