//! Prompts that are longer than any block, piece or task of a kernel: however they are cut into calls, each token's
//! output has the same bits, with all instruction sets that have fused multiply-adds.

use crate::kernels::kernels;
use kvcache_schema::{
    AttentionAttributes, CacheLayout, CacheMode, ElementType, TypeCombination, multi_head_cache_attention,
};
use kvcache_testing::attention_model::{Model, Part, Placement};

/// A sequence of plain numbers, one with keys that are hidden by their own numbers, and one with NaN.
const SEQUENCES: [usize; 3] = [0, 2, 3];

const PLACEMENT: Placement = Placement {
    layout: CacheLayout::HeadMajor,
    mode: CacheMode::Paged,
    page_size: 16,
    num_layer: 2,
    layer_idx: 1,
    shuffle: 5,
};

/// Calls that give each sequence so many tokens one after the other.
fn calls(sequences: &[usize], lengths: &[usize]) -> Vec<Vec<Part>> {
    let part = |tokens| move |&sequence| Part { sequence, tokens, decoding: false };
    lengths.iter().map(|&tokens| sequences.iter().map(part(tokens)).collect()).collect()
}

/// Each cut gives what the first one gives, with each instruction set, and the first one what it gives with another.
fn cuts_agree(model: &Model, sequences: &[usize], cuts: &[&[usize]]) {
    let mut fused = None;
    // The reference has neither blocks nor pieces.
    for kernel in kernels().into_iter().skip(1) {
        let whole = model.run(&*kernel, &PLACEMENT, &calls(sequences, cuts[0]));
        for cut in &cuts[1..] {
            assert!(
                whole == model.run(&*kernel, &PLACEMENT, &calls(sequences, cut)),
                "{}, {cut:?}, {model:?}",
                kernel.name()
            );
        }
        // Whether plain Rust has them depends on what it is compiled for.
        if kernel.name() != "cpu-portable" {
            let first = fused.get_or_insert_with(|| whole.clone());
            assert!(*first == whole, "{} gives other bits than another instruction set, {model:?}", kernel.name());
        }
    }
}

fn model(types: TypeCombination, heads: [i64; 3], is_alibi: bool, mask: Option<usize>) -> Model {
    let [num_heads, num_kv_heads, head_dim] = heads;
    let is_alibi = i64::from(is_alibi);
    let attention = AttentionAttributes { num_heads, num_kv_heads, head_dim, is_causal: 1, is_alibi };
    // Groups that are whole registers, and others.
    let quant_group = if head_dim % 32 == 0 { 16 } else { 8 };
    Model { types, attention, quant_group, mask, seed: 11 }
}

fn combinations() -> impl Iterator<Item = TypeCombination> {
    multi_head_cache_attention::all_combinations()
}

#[test]
fn prompts_of_every_type() {
    for types in combinations() {
        // Without and with whole registers, which decoding multiplies where they are.
        for heads in [[2, 1, 24], [3, 1, 32]] {
            cuts_agree(&model(types, heads, false, None), &SEQUENCES, &[&[70], &[64, 5, 1]]);
        }
    }
}

#[test]
fn prompts_of_any_heads_under_masks() {
    let float32 = |types: &TypeCombination| types.t1 == ElementType::Float32 && types.t2 == ElementType::Float32;
    let types = combinations().find(float32).expect("float32 is legal");
    for (heads, is_alibi, mask) in
        [([8, 1, 8], false, None), ([3, 3, 40], false, Some(2)), ([7, 1, 8], true, None), ([4, 2, 16], true, Some(3))]
    {
        cuts_agree(&model(types, heads, is_alibi, mask), &SEQUENCES, &[&[75], &[64, 11], &[13, 1, 1, 60]]);
    }
}

#[test]
fn prompts_longer_than_a_piece() {
    let types = combinations().find(|types| types.t1 == ElementType::Float16).expect("float16 is legal");
    cuts_agree(&model(types, [1, 1, 8], false, None), &SEQUENCES[1..2], &[&[1050], &[1000, 49, 1]]);
}

#[test]
fn a_key_whose_score_is_minus_infinity_by_itself_gives_no_nan() {
    let float32 = |types: &TypeCombination| types.t1 == ElementType::Float32 && types.t2 == ElementType::Float32;
    let model = model(combinations().find(float32).expect("float32 is legal"), [2, 1, 8], false, None);
    for kernel in kernels() {
        let rows = model.run(&*kernel, &PLACEMENT, &calls(&SEQUENCES, &[40]));
        let (numbers, _) = rows[2].as_chunks::<4>();
        let mut last = numbers[39 * 16..].iter().map(|bytes| f32::from_ne_bytes(*bytes));
        assert!(last.all(f32::is_finite), "{}: the last token sees keys of both kinds", kernel.name());
    }
}
