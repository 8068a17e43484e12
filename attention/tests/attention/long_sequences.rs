//! Sequences that are longer than any block, KV split or task of a kernel: each token's output has the same bits
//! however its prompt is cut into calls, with all instruction sets that have fused multiply-adds, and on any number of
//! threads; so has `attention_mass`, which is near the reference's.

use kvcache_attention::{AttentionCpu, AttentionKernel, AttentionReference};
use kvcache_kernels::{Serial, Workers};
use kvcache_schema::{
    AttentionAttributes, CacheLayout, CacheMode, ElementType, TypeCombination, multi_head_cache_attention,
};
use kvcache_testing::attention::{Model, Part, Placement, Sequences};
use kvcache_testing::backends::{Careless, Threads};

use crate::{fast, kernels};

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

fn combinations() -> impl Iterator<Item = TypeCombination> {
    multi_head_cache_attention::all_combinations()
}

fn float(element: ElementType) -> TypeCombination {
    combinations().find(|types| [types.t1, types.t2] == [element; 2]).expect("a float's cache is legal")
}

fn part(sequence: usize, tokens: usize) -> Part {
    Part { sequence, tokens, decoding: false }
}

fn causal(types: TypeCombination, heads: [i64; 3], is_alibi: bool, mask: Option<usize>) -> Model {
    let [num_heads, num_kv_heads, head_dim] = heads;
    let is_alibi = i64::from(is_alibi);
    let attention =
        AttentionAttributes { num_heads, num_kv_heads, head_dim, is_causal: 1, is_alibi, ..Default::default() };
    // Groups that are whole registers, and others.
    let quant_group = if head_dim % 32 == 0 { 16 } else { 8 };
    Model { types, attention, quant_group, mask, has_sinks: false, seed: 11 }
}

/// The rows of sequences that get so many tokens one call after the other.
fn run(model: &Model, kernel: &dyn AttentionKernel, sequences: &[usize], cut: &[usize]) -> Vec<Vec<u8>> {
    let call = |&tokens: &usize| sequences.iter().map(|&sequence| part(sequence, tokens)).collect();
    model.run(kernel, &PLACEMENT, &cut.iter().map(call).collect::<Vec<_>>())
}

/// Each cut gives what the first one gives, with each instruction set, and the first one what it gives with another.
fn cuts_agree(model: &Model, sequences: &[usize], cuts: &[&[usize]]) {
    let mut fused = None;
    for kernel in fast() {
        let whole = run(model, &kernel, sequences, cuts[0]);
        for cut in &cuts[1..] {
            assert!(whole == run(model, &kernel, sequences, cut), "{}, {cut:?}, {model:?}", kernel.name());
        }
        // Whether plain Rust has fused multiply-adds depends on what it is compiled for.
        if kernel.name() != "cpu-portable" {
            let first = fused.get_or_insert_with(|| whole.clone());
            assert!(*first == whole, "{} gives other bits than another instruction set, {model:?}", kernel.name());
        }
    }
}

#[test]
fn prompts_of_every_type() {
    for types in combinations() {
        // Without and with whole registers, which decoding multiplies where they are.
        for heads in [[2, 1, 24], [3, 1, 32]] {
            cuts_agree(&causal(types, heads, false, None), &SEQUENCES, &[&[70], &[64, 5, 1]]);
        }
    }
}

#[test]
fn prompts_of_any_heads_under_masks() {
    let types = float(ElementType::Float32);
    for (heads, is_alibi, mask) in
        [([8, 1, 8], false, None), ([3, 3, 40], false, Some(2)), ([7, 1, 8], true, None), ([4, 2, 16], true, Some(3))]
    {
        cuts_agree(&causal(types, heads, is_alibi, mask), &SEQUENCES, &[&[75], &[64, 11], &[13, 1, 1, 60]]);
    }
}

#[test]
fn prompts_longer_than_a_kv_split() {
    let model = causal(float(ElementType::Float16), [1, 1, 8], false, None);
    cuts_agree(&model, &SEQUENCES[1..2], &[&[1050], &[1000, 49, 1]]);
}

/// Windows that begin in any block, and in any KV split, beside all that changes scores.
#[test]
fn prompts_under_windows_soft_caps_and_sinks() {
    for (heads, is_alibi, mask, local_window_size, cuts) in [
        ([3, 1, 8], true, Some(3), 1, [&[75][..], &[64, 11], &[13, 1, 1, 60]]),
        ([4, 2, 32], false, None, 64, [&[140], &[128, 12], &[129, 1, 10]]),
        ([1, 1, 8], false, None, 1000, [&[1090], &[1030, 60], &[1088, 1, 1]]),
    ] {
        let mut model = causal(float(ElementType::Float32), heads, is_alibi, mask);
        let attention = AttentionAttributes { local_window_size, scale: 0.3, softcap: 4.0, ..model.attention };
        (model.attention, model.has_sinks) = (attention, true);
        cuts_agree(&model, &SEQUENCES[1..2], &cuts);
    }
}

#[test]
fn a_key_whose_score_is_minus_infinity_by_itself_gives_no_nan() {
    let model = causal(float(ElementType::Float32), [2, 1, 8], false, None);
    for kernel in kernels() {
        let rows = run(&model, &*kernel, &SEQUENCES, &[40]);
        let (numbers, _) = rows[2].as_chunks::<4>();
        let mut last = numbers[39 * 16..].iter().map(|bytes| f32::from_ne_bytes(*bytes));
        assert!(last.all(f32::is_finite), "{}: the last token sees keys of both kinds", kernel.name());
    }
}

/// The model and the placement of a combination of types, which stands for others, too.
fn example((i, types): (usize, TypeCombination)) -> (Model, Placement) {
    let attention = AttentionAttributes {
        num_heads: 2,
        head_dim: 8,
        num_kv_heads: 1 + (i % 2) as i64,
        is_alibi: i64::from(i % 3 == 2),
        local_window_size: [-1, 900, 40][i / 2 % 3],
        softcap: [0.0, 5.0][i / 4 % 2],
        ..AttentionAttributes::default()
    };
    let model = Model {
        types,
        attention,
        quant_group: 8,
        mask: (i % 2 == 1).then_some(2),
        has_sinks: i % 3 == 0,
        seed: i as u64,
    };
    let (layout, mode) = (CacheLayout::ALL[i % 4], CacheMode::ALL[i / 2 % 2]);
    (model, Placement { layout, mode, page_size: 100, ..PLACEMENT })
}

fn examples() -> Vec<(Model, Placement)> {
    let types = combinations()
        .filter(|types| types.t3.is_none_or(|t3| t3 == types.t1) && (types.t1 == types.t2 || types.t3.is_some()));
    types.enumerate().map(example).collect()
}

/// Sequences of which each has so many tokens, the last of which are the parts of the next call.
fn before<'a>(model: &'a Model, placement: &Placement, sizes: &[(usize, usize)]) -> (Sequences<'a>, Vec<Part>) {
    let mut sequences = Sequences::new(model, placement, &sizes.iter().map(|size| size.0).collect::<Vec<_>>());
    sequences.store(&sizes.iter().map(|(all, new)| all - new).collect::<Vec<_>>());
    (sequences, sizes.iter().enumerate().map(|(sequence, size)| part(sequence, size.1)).collect())
}

/// The fast kernels, which split the smallest call.
fn splitting() -> impl Iterator<Item = AttentionCpu> {
    fast().map(|kernel| kernel.with_parallel_cost(0))
}

/// Decoding tokens and a prompt, of sequences of several KV splits among short ones.
const SIZES: [(usize, usize); 6] = [(40, 1), (2100, 1), (3, 3), (0, 0), (1100, 5), (64, 1)];

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    for (model, placement) in &examples() {
        let (sequences, parts) = before(model, placement, &SIZES);
        for kernel in splitting() {
            let attend = |workers: &dyn Workers| sequences.clone().attend(&kernel, &parts, workers);
            let expected = attend(&Serial);
            let workers: [&dyn Workers; 5] = [&Threads(1), &Threads(2), &Threads(3), &Threads(7), &Careless(3)];
            for (i, workers) in workers.into_iter().enumerate() {
                assert!(attend(workers) == expected, "{}, workers {i}, {model:?}", kernel.name());
            }
        }
    }
}

/// Each on a cache of its own and with threads of its own: what is kept between calls is one call's at a time.
#[test]
fn calls_at_once_give_the_same_bits() {
    let examples = examples();
    let calls: Vec<_> = examples.iter().map(|(model, placement)| before(model, placement, &SIZES)).collect();
    for kernel in splitting() {
        let attend = |i: usize, workers: &dyn Workers| calls[i].0.clone().attend(&kernel, &calls[i].1, workers);
        let expected: Vec<_> = (0..calls.len()).map(|i| attend(i, &Serial)).collect();
        std::thread::scope(|scope| {
            for first in 0..4 {
                let (attend, expected, calls, examples, kernel) = (&attend, &expected, &calls, &examples, &kernel);
                scope.spawn(move || {
                    for i in (0..calls.len()).map(|i| (first + i) % calls.len()) {
                        assert!(attend(i, &Threads(2)) == expected[i], "{}, {:?}", kernel.name(), examples[i]);
                    }
                });
            }
        });
    }
}

/// The mass of a sequence is near the sum of the reference, of the same bits on threads and alone.
#[test]
fn mass_is_the_sum_of_probabilities() {
    // Several KV splits, a prompt of several chunks of queries, decoding tokens, and no tokens.
    const SIZES: [(usize, usize); 6] = [(70, 70), (1100, 1), (90, 3), (1030, 5), (0, 0), (64, 0)];
    let bits = |mass: &[f32]| mass.iter().map(|sum| sum.to_bits()).collect::<Vec<_>>();
    for (model, placement) in examples().iter().step_by(3) {
        let (sequences, parts) = before(model, placement, &SIZES);
        let mass = |kernel: &dyn AttentionKernel, parts: &[Part], workers: &dyn Workers| {
            let (output, mass) = sequences.clone().attend_with_mass(kernel, parts, workers);
            assert!(output == sequences.clone().attend(kernel, parts, workers), "attn_output is another");
            mass
        };
        let naive = mass(&AttentionReference, &parts, &Serial);
        let heads = model.attention.num_heads as usize;
        for kernel in splitting() {
            let all = mass(&kernel, &parts, &Serial);
            for (i, (&got, &expected)) in all.iter().zip(&naive).enumerate() {
                let near = (got - expected).abs() <= 1e-4 * (1.0 + expected);
                assert!(near || got.is_nan() && expected.is_nan(), "{i}: {got} instead of {expected}");
            }
            assert!(bits(&mass(&kernel, &parts, &Threads(3))) == bits(&all), "{}, threads", kernel.name());
            let alone: Vec<_> = parts.iter().map(|&part| mass(&kernel, &[part], &Serial)).collect();
            for (h, row) in all.chunks(all.len() / heads).enumerate() {
                let of_head = alone.iter().flat_map(|alone| &alone[h * alone.len() / heads..][..alone.len() / heads]);
                assert!(bits(row).into_iter().eq(of_head.map(|sum| sum.to_bits())), "{}, head {h}", kernel.name());
            }
        }
    }
}
