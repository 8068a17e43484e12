//! How far a result may be from the exact one, derived from the number formats and the lengths of the sums alone, as
//! `golden/oracle/attention_tolerance.py` explains it: independent errors of every rounding, eight deviations of their
//! sum, and half a unit in the last place of the result.

use half::f16;
use kvcache_schema::ElementType;

use crate::oracle::attention::scores::Terms;

const DEVIATIONS: f64 = 8.0;
const EXP_ULPS: f64 = 4.0;

/// One query's computation, over the keys that it sees.
pub(super) struct Row {
    pub(super) t1: ElementType,
    pub(super) head_dim: usize,
    pub(super) output_type: ElementType,
    pub(super) terms: Vec<Terms>,
    /// For each key the sum of the squares of its product's terms, each multiplied with the factor.
    pub(super) squares: Vec<f64>,
    pub(super) scores: Vec<f64>,
    pub(super) weights: Vec<f64>,
}

/// The largest legal difference of each element of an output from `output`, given the elements of the values.
pub(super) fn tolerance(row: &Row, output: &[f64], value: impl Fn(usize, usize) -> f64, allowed: &mut [f64]) {
    let r = rounding(ElementType::Float32);
    let exp = EXP_ULPS * 2.0 * unit(ElementType::Float32);
    let largest = row.scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let keys = 0..row.weights.len();
    let relative: Vec<_> = keys
        .clone()
        .map(|key| {
            let half = if row.t1 == ElementType::Float16 { half_precision_variance(row, key) } else { 0.0 };
            let variance = score_variance(row, key, largest, r) + half;
            // A score that is not finite has no error: what it does to the output has no tolerance either.
            exp * exp + if variance.is_finite() { variance } else { 0.0 }
        })
        .collect();
    let weights = partial_sums(keys.len(), row.weights.iter().copied());
    for (d, (allowed, &output)) in allowed.iter_mut().zip(output).enumerate() {
        let moved = keys.clone().map(|key| (row.weights[key] * (value(key, d) - output)).powi(2) * relative[key]);
        let terms = keys.clone().map(|key| row.weights[key] * value(key, d));
        let squares: f64 = terms.clone().map(|term| term * term).sum();
        // Weights that are rounded after the division: nothing makes up for their errors.
        let rounded = |key: usize| match row.t1 {
            ElementType::Float16 => half_precision_weight(row, key),
            _ => 0.0,
        };
        let rounded_terms = keys.clone().map(|key| (row.weights[key] * value(key, d) * rounded(key)).powi(2));
        let variance = moved.sum::<f64>()
            + rounded_terms.sum::<f64>()
            + r * r * (squares + partial_sums(keys.len(), terms))
            + (r * output).powi(2) * (weights + 1.0);
        let smallest = f64::from(f32::MIN_POSITIVE);
        let magnitudes: f64 = keys.clone().map(|key| value(key, d).abs()).sum();
        *allowed = DEVIATIONS * variance.sqrt() + last_rounding(row.output_type, output) + smallest * magnitudes;
    }
}

/// Half of the distance from 1 to the next number.
fn unit(element: ElementType) -> f64 {
    match element {
        ElementType::Float16 => f16::EPSILON.to_f64() / 2.0,
        _ => f64::from(f32::EPSILON) / 2.0,
    }
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

/// The variance of a score in float32.
fn score_variance(row: &Row, key: usize, largest: f64, r: f64) -> f64 {
    let (terms, squares) = (&row.terms[key], row.squares[key]);
    let product = terms.product * terms.factor;
    let sums = squares + of_partial_sums(row.head_dim as f64, product, squares);
    let mut variance = r * r * sums + 2.0 * (r * product).powi(2);
    let mut sum = product;
    for mask in terms.masks().filter(|mask| mask.is_finite()) {
        sum += mask;
        variance += 3.0 * (r * mask).powi(2) + (r * sum).powi(2);
    }
    // What a mistake adds in place of -inf is only known by the score. Beside a number beyond 2^24 no product counts.
    let score = row.scores[key];
    if terms.masks().any(|mask| mask == f64::NEG_INFINITY) && score.abs() < f64::exp2(24.0) {
        variance += (r * score).powi(2);
    }
    variance + (r * (row.scores[key] - largest)).powi(2)
}

/// The variance of a score and its weight where they are rounded to float16.
fn half_precision_variance(row: &Row, key: usize) -> f64 {
    let r = rounding(ElementType::Float16);
    let terms = &row.terms[key];
    let product = terms.product * terms.factor;
    let mut variance = 2.0 * (r * product).powi(2);
    let mut sum = product;
    for mask in terms.masks().filter(|mask| mask.is_finite()) {
        sum += mask;
        variance += (r * mask).powi(2) + (r * sum).powi(2);
    }
    variance + half_precision_weight(row, key).powi(2)
}

/// The deviation of a weight, relative to it, where it is rounded to float16: none if it is a float16 number.
fn half_precision_weight(row: &Row, key: usize) -> f64 {
    let weight = row.weights[key];
    if f16::from_f64(weight).to_f64() == weight {
        return 0.0;
    }
    let smallest = f16::MIN_POSITIVE_SUBNORMAL.to_f64() / (2.0 * 3f64.sqrt());
    rounding(ElementType::Float16) + smallest / weight.max(smallest)
}

/// Half a unit in the last place of a type.
fn last_rounding(element: ElementType, x: f64) -> f64 {
    let (x, digits, least) = match element {
        ElementType::Float16 => (f16::from_f64(x.abs()).to_f64(), 11, -24),
        _ => (f64::from(x.abs() as f32), 24, -149),
    };
    if !x.is_finite() {
        return 0.0;
    }
    let exponent = if x == 0.0 { least } else { (x.log2().floor() as i32 + 1 - digits).max(least) };
    f64::exp2(f64::from(exponent)) / 2.0
}
