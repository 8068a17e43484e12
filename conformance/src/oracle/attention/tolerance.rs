//! How far a result may be from the exact one, derived from the number formats and the lengths of the sums alone, as
//! `golden/oracle/attention_tolerance.py` explains it: independent errors of every rounding, eight deviations of their
//! sum, and half a unit in the last place of the result.

use kvcache_schema::ElementType;

use crate::floats::format_of;
use crate::oracle::attention::attend::Scored;

const DEVIATIONS: f64 = 8.0;
const EXP_ULPS: f64 = 4.0;

/// The largest legal difference of each element of an output from `output`, which is summed over the keys that a query
/// sees, of `head_dim` elements each; `value` is an element of the value of a key.
pub(super) fn tolerance(
    (t1, output_type): (ElementType, ElementType),
    head_dim: usize,
    keys: &[Scored],
    output: &[f64],
    value: impl Fn(&Scored, usize) -> f64,
    allowed: &mut [f64],
) {
    let (r, exp) = (rounding(ElementType::Float32), EXP_ULPS * 2.0 * unit(ElementType::Float32));
    let largest = keys.iter().map(|key| key.score).fold(f64::NEG_INFINITY, f64::max);
    // Of each key the variance of its weight, relative to it; and the deviation of that where it is rounded after the
    // division: nothing makes up for such errors.
    let errors = keys.iter().map(|key| {
        let rounded = if t1 == ElementType::Float32 { 0.0 } else { narrow_weight(t1, key.weight) };
        let variance = score_variance(key, t1, head_dim, largest) + rounded * rounded;
        // A score that is not finite has no error: what it does to the output has no tolerance either.
        (exp * exp + if variance.is_finite() { variance } else { 0.0 }, rounded)
    });
    let errors: Vec<_> = errors.collect();
    let weights = partial_sums(keys.len(), keys.iter().map(|key| key.weight));
    for (d, (allowed, &output)) in allowed.iter_mut().zip(output).enumerate() {
        let terms = keys.iter().map(|key| key.weight * value(key, d));
        let mut variance = r * r * partial_sums(keys.len(), terms) + (r * output).powi(2) * (weights + 1.0);
        let mut magnitudes = 0.0;
        for (key, (relative, rounded)) in keys.iter().zip(&errors) {
            let value = value(key, d);
            let moved = (key.weight * (value - output)).powi(2) * relative;
            variance += moved + (key.weight * value).powi(2) * (rounded * rounded + r * r);
            magnitudes += value.abs();
        }
        let smallest = f64::from(f32::MIN_POSITIVE);
        *allowed = DEVIATIONS * variance.sqrt() + last_rounding(output_type, output) + smallest * magnitudes;
    }
}

/// The largest legal difference of a sum of n weights, by the squares of these and of their tolerances.
pub(super) fn tolerance_of_sum(n: f64, sum: f64, squares: f64, of_tolerances: f64) -> f64 {
    let rounded = (DEVIATIONS * rounding(ElementType::Float32)).powi(2) * of_partial_sums(n, sum, squares);
    let tolerance = (of_tolerances + rounded).sqrt();
    if tolerance.is_finite() { tolerance } else { 0.0 }
}

/// Half of the distance from 1 to the next number.
fn unit(element: ElementType) -> f64 {
    f64::exp2(f64::from(-format_of(element).digits))
}

/// The standard deviation of one rounding, relative to the value.
fn rounding(element: ElementType) -> f64 {
    unit(element) / 3f64.sqrt()
}

/// The sum of the squares of all partial sums of some terms, in the mean over their orders.
fn partial_sums(n: usize, terms: impl Iterator<Item = f64>) -> f64 {
    let (whole, squares) = terms.fold((0.0, 0.0), |(whole, squares), term| (whole + term, squares + term * term));
    of_partial_sums(n as f64, whole, squares)
}

fn of_partial_sums(n: f64, whole: f64, squares: f64) -> f64 {
    let scatter = (squares - whole * whole / n).max(0.0);
    whole * whole * (n + 1.0) * (2.0 * n + 1.0) / (6.0 * n) + scatter * (n + 1.0) / 6.0
}

/// The variance of a score in float32; of a narrower type with room for scores and masks that are rounded to it.
fn score_variance(key: &Scored, t1: ElementType, head_dim: usize, largest: f64) -> f64 {
    let r = rounding(ElementType::Float32).powi(2);
    let both = r + if t1 == ElementType::Float32 { 0.0 } else { rounding(t1).powi(2) };
    let mut sum = key.terms.product * key.terms.factor;
    let sums = key.squares + of_partial_sums(head_dim as f64, sum, key.squares);
    let mut variance = r * sums + 2.0 * both * sum * sum;
    for mask in key.terms.masks().filter(|mask| mask.is_finite()) {
        sum += mask;
        variance += (2.0 * r + both) * mask * mask + both * sum * sum;
    }
    // What a mistake adds in place of -inf is only known by the score. Beside a number beyond 2^24 no product counts.
    if key.terms.masks().any(|mask| mask == f64::NEG_INFINITY) && key.score.abs() < f64::exp2(24.0) {
        variance += r * key.score * key.score;
    }
    variance + r * (key.score - largest).powi(2)
}

/// The deviation of a weight, relative to it, where it is rounded to a type of 16 bits: none if it is of that type.
fn narrow_weight(t1: ElementType, weight: f64) -> f64 {
    let format = format_of(t1);
    let (rounded, smallest) = (format.rounded(weight), f64::exp2(f64::from(format.least)));
    if rounded == weight {
        return 0.0;
    }
    let smallest = smallest / (2.0 * 3f64.sqrt());
    rounding(t1) + smallest / weight.max(smallest)
}

/// Half a unit in the last place of a type.
fn last_rounding(element: ElementType, x: f64) -> f64 {
    let format = format_of(element);
    let (x, digits, least) = (format.rounded(x.abs()), format.digits, format.least);
    if !x.is_finite() {
        return 0.0;
    }
    let exponent = if x == 0.0 { least } else { (x.log2().floor() as i32 + 1 - digits).max(least) };
    f64::exp2(f64::from(exponent)) / 2.0
}
