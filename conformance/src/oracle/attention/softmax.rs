//! The weights of scores.

use crate::oracle::attention::decisions::{Attention, Softmax};

/// The weights of scores that add up to 1; zeros where every score is -inf.
pub(super) fn weights(attention: &Attention, scores: &[f64]) -> Vec<f64> {
    let larger = |a: f64, b: f64| if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) };
    let largest = |scores: &[f64]| scores.iter().copied().fold(f64::NEG_INFINITY, larger);
    let whole = largest(scores);
    if whole == f64::NEG_INFINITY {
        return vec![0.0; scores.len()];
    }
    let exps = |factor: f64| scores.iter().map(move |score| ((score - whole) * factor).exp());
    let divided = |exps: Vec<f64>, sum: f64| exps.iter().map(|exp| exp / sum).collect();
    // A softmax over blocks of n keys, of which the sums of values and of weights are rescaled or not.
    let streaming = |values_rescaled: bool, weights_rescaled: bool| {
        let of_blocks = |rescaled: bool| {
            let blocks = scores.chunks(attention.n).enumerate();
            blocks.flat_map(move |(i, block)| {
                let so_far = largest(&scores[..i * attention.n + block.len()]);
                let from = if rescaled { whole } else { so_far };
                block.iter().map(move |&score| if score == f64::NEG_INFINITY { 0.0 } else { (score - from).exp() })
            })
        };
        divided(of_blocks(values_rescaled).collect(), of_blocks(weights_rescaled).sum())
    };
    match attention.softmax {
        Softmax::Right => divided(exps(1.0).collect(), exps(1.0).sum()),
        // In float32, whose range it is about.
        Softmax::WithoutMaximum => {
            let sum: f32 = scores.iter().map(|score| score.exp() as f32).sum();
            scores.iter().map(|score| f64::from(score.exp() as f32 / sum)).collect()
        }
        Softmax::BaseTwo => divided(exps(std::f64::consts::LN_2).collect(), exps(std::f64::consts::LN_2).sum()),
        Softmax::TimesLog2e => divided(exps(std::f64::consts::LOG2_E).collect(), exps(std::f64::consts::LOG2_E).sum()),
        Softmax::NotNormalized => exps(1.0).collect(),
        Softmax::PlusOne => divided(exps(1.0).collect(), exps(1.0).sum::<f64>() + 1.0),
        Softmax::ValuesNotRescaled => streaming(false, true),
        Softmax::SumNotRescaled => streaming(true, false),
        Softmax::NothingRescaled => streaming(false, false),
    }
}
