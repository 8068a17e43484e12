//! Mistakes of the softmax, and of rows that see no key.

use half::f16;
use kvcache_schema::ElementType;

use crate::mistakes::mistake::Mistake;
use crate::oracle::attention::decisions::{Axis, RowsWithoutKeys, Terms, larger, softmax};

pub(in crate::mistakes) const MISTAKES: &[Mistake] = &[
    Mistake::of_attention(
        "weights",
        "softmax-without-maximum",
        "Exponentials are taken of the scores themselves, which overflow or vanish: subtract the largest score first.",
        |behavior| {
            behavior.attention.softmax = |_, scores| {
                // In float32, whose range it is about.
                let exps: Vec<_> = scores.iter().map(|score| score.exp() as f32).collect();
                let sum: f32 = exps.iter().sum();
                match scores.iter().all(|&score| score == f64::NEG_INFINITY) {
                    true => softmax(scores),
                    false => exps.iter().map(|exp| f64::from(exp / sum)).collect(),
                }
            };
        },
    ),
    Mistake::of_attention(
        "weights",
        "softmax-of-base-2",
        "Weights are powers of 2, not of e: multiply scores with log2(e) where exp2() takes the place of exp().",
        |behavior| {
            behavior.attention.softmax =
                |_, scores| softmax(&scores.iter().map(|score| score * std::f64::consts::LN_2).collect::<Vec<_>>());
        },
    ),
    Mistake::of_attention(
        "weights",
        "softmax-times-log2e",
        "Scores are multiplied with log2(e), as exp2() needs it, and then exp() is taken of them.",
        |behavior| {
            behavior.attention.softmax =
                |_, scores| softmax(&scores.iter().map(|score| score * std::f64::consts::LOG2_E).collect::<Vec<_>>());
        },
    ),
    Mistake::of_attention(
        "weights",
        "softmax-over-queries",
        "The weights of a key add up to 1 over the queries: those of a query should over its keys, the last axis.",
        |behavior| behavior.attention.normalized_over = Axis::Queries,
    ),
    Mistake::of_attention(
        "weights",
        "softmax-over-heads",
        "The weights of a key add up to 1 over the heads: those of a query and head should over its keys.",
        |behavior| behavior.attention.normalized_over = Axis::Heads,
    ),
    Mistake::of_attention("weights", "weights-not-normalized", "Weights are not divided by their sum.", |behavior| {
        behavior.attention.softmax = |_, scores| {
            let largest = scores.iter().copied().filter(|&score| score != f64::NEG_INFINITY).reduce(larger);
            scores.iter().map(|score| (score - largest.unwrap_or(0.0)).exp()).collect()
        };
    }),
    Mistake::of_attention(
        "weights",
        "softmax-plus-one",
        "1 is added to the sum of weights, as by an attention sink: they add up to 1.",
        |behavior| {
            behavior.attention.softmax = |_, scores| {
                let largest = scores.iter().copied().filter(|&score| score != f64::NEG_INFINITY).reduce(larger);
                let exps: Vec<_> = scores.iter().map(|score| (score - largest.unwrap_or(0.0)).exp()).collect();
                let sum: f64 = exps.iter().sum();
                exps.iter().map(|exp| exp / (sum + 1.0)).collect()
            };
        },
    ),
    Mistake::of_attention(
        "precision",
        "weights-summed-in-float16",
        "Weights are added up in float16 before they are divided by their sum, one after the other: small ones are \
         lost beside a sum that is large. Add them in float32.",
        |behavior| {
            behavior.attention.softmax = |t1, scores| match t1 {
                ElementType::Float16 => {
                    let largest = scores.iter().copied().filter(|&score| score != f64::NEG_INFINITY).reduce(larger);
                    let exps: Vec<_> = scores.iter().map(|score| (score - largest.unwrap_or(0.0)).exp()).collect();
                    let sum = exps
                        .iter()
                        .fold(f16::ZERO, |sum, &exp| f16::from_f64(sum.to_f64() + f16::from_f64(exp).to_f64()));
                    if sum == f16::ZERO { softmax(scores) } else { exps.iter().map(|exp| exp / sum.to_f64()).collect() }
                }
                _ => softmax(scores),
            };
        },
    ),
    Mistake::of_attention("weights", "softmax-missing", "Scores are taken as weights.", |behavior| {
        behavior.attention.softmax = |_, scores| scores.to_vec();
        behavior.attention.exponentiates = false;
    }),
    Mistake::of_attention(
        "weights",
        "weights-equal",
        "All keys that a query sees have the same weight: the inner products do not reach the softmax.",
        |behavior| behavior.attention.score = |terms| Terms { product: 0.0, ..*terms }.score(),
    ),
    Mistake::of_attention(
        "rows-without-keys",
        "hidden-rows-nan",
        "A query whose keys are all hidden gives NaN, -inf - -inf or 0 / 0: it should give zeros.",
        |behavior| behavior.attention.rows_without_keys = RowsWithoutKeys::NanOfHidden,
    ),
    Mistake::of_attention(
        "rows-without-keys",
        "rows-without-keys-nan",
        "A query that sees no key gives NaN, -inf - -inf or 0 / 0, also where its sequence has none: it should give \
         zeros.",
        |behavior| behavior.attention.rows_without_keys = RowsWithoutKeys::Nan,
    ),
    Mistake::of_attention(
        "rows-without-keys",
        "hidden-rows-mean",
        "A query whose keys are all hidden gives the mean of all values: it should give zeros.",
        |behavior| behavior.attention.rows_without_keys = RowsWithoutKeys::Mean,
    ),
    Mistake::of_attention(
        "rows-without-keys",
        "causal-mask-of-finite-number",
        "What should add -inf adds a large negative number: a query from which the causal mask or ALiBi hides all keys \
         gives the mean of all values, it should give zeros.",
        |behavior| behavior.attention.score = |terms| least::<{ i32::MAX }>(terms, false),
    ),
    Mistake::of_attention(
        "rows-without-keys",
        "causal-mask-of-minus-10000",
        "The causal mask and ALiBi add -10000 or such a number, as -65504, in place of -inf: a query from which they \
         hide all keys attends to them as if nothing were hidden, it should give zeros.",
        |behavior| behavior.attention.score = |terms| least::<65_504>(terms, false),
    ),
    Mistake::of_attention(
        "rows-without-keys",
        "masks-of-finite-number",
        "-inf becomes a large negative number in every mask: a query whose keys are all hidden gives the mean of all \
         values, it should give zeros.",
        |behavior| behavior.attention.score = |terms| least::<{ i32::MAX }>(terms, true),
    ),
    Mistake::of_attention(
        "rows-without-keys",
        "masks-of-minus-10000",
        "-inf becomes -10000 or such a number, as -65504, in every mask: a query whose keys are all hidden attends to \
         them as if nothing were hidden, it should give zeros.",
        |behavior| behavior.attention.score = |terms| least::<65_504>(terms, true),
    ),
    Mistake::of_attention(
        "weights.hidden",
        "hidden-keys-and-rows-not-finite",
        "Masks are added and weights multiplied whatever the numbers are: NaN reaches queries from which it is hidden, \
         and queries whose keys are all hidden give NaN in place of zeros.",
        |behavior| {
            behavior.attention.score =
                |terms| terms.masks().fold(terms.product * terms.factor, |score, mask| score + mask);
            behavior.attention.adds_hidden_values = true;
            behavior.attention.rows_without_keys = RowsWithoutKeys::NanOfHidden;
        },
    ),
    accumulator_not_rescaled::<1>("streaming-accumulator-not-rescaled-1"),
    accumulator_not_rescaled::<4>("streaming-accumulator-not-rescaled-4"),
    accumulator_not_rescaled::<8>("streaming-accumulator-not-rescaled-8"),
    accumulator_not_rescaled::<16>("streaming-accumulator-not-rescaled-16"),
    accumulator_not_rescaled::<32>("streaming-accumulator-not-rescaled-32"),
    accumulator_not_rescaled::<64>("streaming-accumulator-not-rescaled-64"),
    accumulator_not_rescaled::<128>("streaming-accumulator-not-rescaled-128"),
    accumulator_not_rescaled::<256>("streaming-accumulator-not-rescaled-256"),
    sum_not_rescaled::<1>("streaming-sum-not-rescaled-1"),
    sum_not_rescaled::<4>("streaming-sum-not-rescaled-4"),
    sum_not_rescaled::<8>("streaming-sum-not-rescaled-8"),
    sum_not_rescaled::<16>("streaming-sum-not-rescaled-16"),
    sum_not_rescaled::<32>("streaming-sum-not-rescaled-32"),
    sum_not_rescaled::<64>("streaming-sum-not-rescaled-64"),
    sum_not_rescaled::<128>("streaming-sum-not-rescaled-128"),
    sum_not_rescaled::<256>("streaming-sum-not-rescaled-256"),
    nothing_rescaled::<1>("streaming-nothing-rescaled-1"),
    nothing_rescaled::<4>("streaming-nothing-rescaled-4"),
    nothing_rescaled::<8>("streaming-nothing-rescaled-8"),
    nothing_rescaled::<16>("streaming-nothing-rescaled-16"),
    nothing_rescaled::<32>("streaming-nothing-rescaled-32"),
    nothing_rescaled::<64>("streaming-nothing-rescaled-64"),
    nothing_rescaled::<128>("streaming-nothing-rescaled-128"),
    nothing_rescaled::<256>("streaming-nothing-rescaled-256"),
];

/// The score where masks add no less than `-LEAST`: the computed ones, or all. `i32::MAX` stands for a number beside
/// which no score counts.
fn least<const LEAST: i32>(terms: &Terms, of_all: bool) -> f64 {
    let least = if LEAST == i32::MAX { -1e30 } else { -f64::from(LEAST) };
    let at_least = |mask: Option<f64>| mask.map(|mask| if mask == f64::NEG_INFINITY { least } else { mask });
    let attn_mask = if of_all { at_least(terms.attn_mask) } else { terms.attn_mask };
    Terms { causal: at_least(terms.causal), alibi: at_least(terms.alibi), attn_mask, ..*terms }.score()
}

/// A streaming softmax over blocks of `N` keys whose sum of values is not rescaled.
const fn accumulator_not_rescaled<const N: usize>(name: &'static str) -> Mistake {
    let about = "Of a softmax that goes over keys block by block, the sum of values is not rescaled where a block has \
                 a larger score than those before.";
    Mistake::of_attention("weights", name, about, |behavior| {
        behavior.attention.softmax = |_, scores| streaming::<N>(scores, [false, true]);
    })
}

/// The same whose sum of weights is not rescaled.
const fn sum_not_rescaled<const N: usize>(name: &'static str) -> Mistake {
    let about = "Of a softmax that goes over keys block by block, the sum of weights is not rescaled where a block \
                 has a larger score than those before.";
    Mistake::of_attention("weights", name, about, |behavior| {
        behavior.attention.softmax = |_, scores| streaming::<N>(scores, [true, false]);
    })
}

/// The same of which neither is rescaled.
const fn nothing_rescaled<const N: usize>(name: &'static str) -> Mistake {
    let about = "Of a softmax that goes over keys block by block, neither the sum of values nor that of weights is \
                 rescaled where a block has a larger score than those before.";
    Mistake::of_attention("weights", name, about, |behavior| {
        behavior.attention.softmax = |_, scores| streaming::<N>(scores, [false, false]);
    })
}

/// The weights of a softmax over blocks of `N` keys, of which the sum of values and that of weights are rescaled or
/// not.
fn streaming<const N: usize>(scores: &[f64], rescaled: [bool; 2]) -> Vec<f64> {
    let largest = |scores: &[f64]| scores.iter().copied().fold(f64::NEG_INFINITY, larger);
    let whole = largest(scores);
    if whole == f64::NEG_INFINITY {
        return vec![0.0; scores.len()];
    }
    let mut so_far = f64::NEG_INFINITY;
    let mut exps = [Vec::new(), Vec::new()];
    for block in scores.chunks(N) {
        so_far = larger(so_far, largest(block));
        for (exps, rescaled) in exps.iter_mut().zip(rescaled) {
            let from = if rescaled { whole } else { so_far };
            let exp = |&score: &f64| if score == f64::NEG_INFINITY { 0.0 } else { (score - from).exp() };
            exps.extend(block.iter().map(exp));
        }
    }
    let sum: f64 = exps[1].iter().sum();
    exps[0].iter().map(|exp| exp / sum).collect()
}
