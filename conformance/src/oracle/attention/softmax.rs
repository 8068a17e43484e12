//! The weights of scores.

use half::f16;
use kvcache_schema::ElementType;

use crate::oracle::attention::decisions::{Attention, Softmax};
use crate::oracle::numbers::to_float16;

/// The weights of scores that add up to 1.
pub(super) fn weights(attention: &Attention, t1: ElementType, scores: &[f64]) -> Vec<f64> {
    let times = |factor: f64| scores.iter().map(|score| score * factor).collect::<Vec<_>>();
    let exps = || -> Vec<f64> {
        let largest = largest(scores).filter(|&largest| largest != f64::NEG_INFINITY).unwrap_or(0.0);
        scores.iter().map(|score| (score - largest).exp()).collect()
    };
    let divided = |exps: Vec<f64>, sum: f64| exps.iter().map(|exp| exp / sum).collect();
    match attention.softmax {
        Softmax::WithoutMaximum if scores.iter().any(|&score| score != f64::NEG_INFINITY) => {
            // In float32, whose range it is about.
            let exps: Vec<_> = scores.iter().map(|score| score.exp() as f32).collect();
            let sum: f32 = exps.iter().sum();
            exps.iter().map(|exp| f64::from(exp / sum)).collect()
        }
        Softmax::BaseTwo => softmax(&times(std::f64::consts::LN_2)),
        Softmax::TimesLog2e => softmax(&times(std::f64::consts::LOG2_E)),
        Softmax::NotNormalized => exps(),
        Softmax::PlusOne => {
            let exps = exps();
            let sum = exps.iter().sum::<f64>() + 1.0;
            divided(exps, sum)
        }
        Softmax::SummedInFloat16 if t1 == ElementType::Float16 => {
            let exps = exps();
            let add = |sum: f16, &exp: &f64| f16::from_f64(sum.to_f64() + to_float16(exp));
            let sum = exps.iter().fold(f16::ZERO, add).to_f64();
            if sum == 0.0 { softmax(scores) } else { divided(exps, sum) }
        }
        Softmax::Missing => scores.to_vec(),
        Softmax::Float16 if t1 == ElementType::Float32 => softmax(scores).into_iter().map(to_float16).collect(),
        Softmax::ValuesNotRescaled => streaming(scores, attention.n, [false, true]),
        Softmax::SumNotRescaled => streaming(scores, attention.n, [true, false]),
        Softmax::NothingRescaled => streaming(scores, attention.n, [false, false]),
        _ => softmax(scores),
    }
}

/// The weights of scores: zeros where every score is -inf.
fn softmax(scores: &[f64]) -> Vec<f64> {
    let Some(largest) = largest(scores).filter(|&largest| largest != f64::NEG_INFINITY) else {
        return vec![0.0; scores.len()];
    };
    let exps: Vec<_> = scores.iter().map(|&score| (score - largest).exp()).collect();
    let sum: f64 = exps.iter().sum();
    exps.iter().map(|exp| exp / sum).collect()
}

/// The largest; NaN if one is.
fn largest(scores: &[f64]) -> Option<f64> {
    let larger = |a: f64, b: f64| if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) };
    scores.iter().copied().reduce(larger)
}

/// The weights of a softmax over blocks of `n` keys, of which the sum of values and that of weights are rescaled or
/// not.
fn streaming(scores: &[f64], n: usize, rescaled: [bool; 2]) -> Vec<f64> {
    let Some(whole) = largest(scores).filter(|&largest| largest != f64::NEG_INFINITY) else {
        return vec![0.0; scores.len()];
    };
    let mut exps = [Vec::new(), Vec::new()];
    for (i, block) in scores.chunks(n).enumerate() {
        let so_far = largest(&scores[..(i * n + block.len())]).unwrap_or(whole);
        for (exps, rescaled) in exps.iter_mut().zip(rescaled) {
            let from = if rescaled { whole } else { so_far };
            exps.extend(block.iter().map(|&score| if score == f64::NEG_INFINITY { 0.0 } else { (score - from).exp() }));
        }
    }
    let sum: f64 = exps[1].iter().sum();
    exps[0].iter().map(|exp| exp / sum).collect()
}
