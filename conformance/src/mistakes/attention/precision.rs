//! Mistakes of precision: inputs, weights or results of a narrower type than float32.

use half::{bf16, f16};
use kvcache_schema::ElementType;

use crate::mistakes::mistake::Mistake;
use crate::oracle::Behavior;
use crate::oracle::attention::decisions::softmax;

pub(in crate::mistakes) const MISTAKES: &[Mistake] = &[
    inputs::<0>(
        "inputs-of-float16",
        "Queries, keys and values of float32 are rounded to float16 before they are multiplied.",
    ),
    inputs::<1>("inputs-of-bfloat16", "Queries, keys and values are rounded to bfloat16 before they are multiplied."),
    inputs::<2>(
        "inputs-of-tf32",
        "Queries, keys and values of float32 are rounded to TF32, with 10 bits, before they are multiplied.",
    ),
    Mistake::of_attention(
        "precision",
        "weights-of-float16",
        "Weights are rounded to float16 where T1 is float32: that has float32 weights.",
        |behavior| behavior.attention.softmax = |t1, scores| weights(t1, scores, to_float16),
    ),
    Mistake::of_attention(
        "precision",
        "weights-of-bfloat16",
        "Weights are rounded to bfloat16: they are of float32, or rounded to T1.",
        |behavior| behavior.attention.softmax = |_, scores| weights(ElementType::Float32, scores, to_bfloat16),
    ),
    Mistake::of_attention(
        "precision",
        "inputs-and-weights-of-float16",
        "Queries, keys, values and weights are rounded to float16 where T1 is float32, as for matrix units of float16.",
        |behavior| {
            reads::<0>(behavior);
            behavior.attention.softmax = |t1, scores| weights(t1, scores, to_float16);
        },
    ),
    Mistake::of_attention(
        "precision",
        "inputs-and-weights-of-bfloat16",
        "Queries, keys, values and weights are rounded to bfloat16, as for matrix units of bfloat16.",
        |behavior| {
            reads::<1>(behavior);
            behavior.attention.softmax = |_, scores| weights(ElementType::Float32, scores, to_bfloat16);
        },
    ),
    Mistake::of_attention(
        "precision",
        "scores-of-bfloat16",
        "Scores are rounded to bfloat16: they are of float32, or rounded to T1.",
        |behavior| behavior.attention.score = |terms| to_bfloat16(terms.score()),
    ),
    Mistake::of_attention(
        "precision",
        "output-through-float16",
        "The output is rounded to float16 where T1 is float32.",
        |behavior| behavior.attention.output = |_, x| to_float16(x),
    ),
    Mistake::of_attention(
        "precision",
        "output-through-bfloat16",
        "The output is rounded to bfloat16, and then to T1.",
        |behavior| behavior.attention.output = |_, x| to_bfloat16(x),
    ),
];

/// Inputs that are read as float16 (0), bfloat16 (1) or TF32 (2).
const fn inputs<const TYPE: usize>(name: &'static str, about: &'static str) -> Mistake {
    Mistake::of_attention("precision", name, about, reads::<TYPE>)
}

fn reads<const TYPE: usize>(behavior: &mut Behavior) {
    behavior.attention.reads = Some([to_float16, to_bfloat16, to_tf32][TYPE]);
}

/// Weights that are rounded where T1 is float32.
fn weights(t1: ElementType, scores: &[f64], round: fn(f64) -> f64) -> Vec<f64> {
    match t1 {
        ElementType::Float16 => softmax(scores),
        _ => softmax(scores).into_iter().map(round).collect(),
    }
}

fn to_float16(x: f64) -> f64 {
    f16::from_f64(x).to_f64()
}

fn to_bfloat16(x: f64) -> f64 {
    bf16::from_f32(x as f32).to_f64()
}

/// To nearest, ties to even, with 13 bits less than float32 has.
fn to_tf32(x: f64) -> f64 {
    let bits = (x as f32).to_bits();
    let rounded = bits.wrapping_add(0xfff + (bits >> 13 & 1)) & !0x1fff;
    f64::from(f32::from_bits(if x.is_finite() { rounded } else { bits }))
}
