//! An implementation that shares nothing with the oracle, right and wrong in many ways: the right one is not accused,
//! each wrong one is diagnosed by name.
//!
//! It works on whole tensors: elements are unpacked to numbers, gathered and scattered by lists of slots, and packed
//! again. It checks nothing, so it runs legal cases alone.

use half::f16;
use kvcache_conformance::diagnosis::KnownMistakes;
use kvcache_conformance::{CallResult, Case, Expected, Implementation, Outcome, Outputs, Tensor};
use kvcache_schema::ElementType;

use super::trial::{diagnosed, telling};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Wrong {
    Nothing,
    Ties,
    Nibbles,
    Epsilon,
    OutputRows,
    Repeat,
    Layouts,
    Pages,
    Scales,
    Reciprocal,
    Layers,
    Order,
    StartPos,
    NanReplaced,
    Mean,
    ValuesNotStored,
    HighNibblesUnsigned,
    TiesOfInt4,
    ReciprocalOfPaged,
    /// Every third quotient is truncated.
    RoundedSomehow,
    /// Of three scales one is stored too large, one too small, by the least that there is.
    ScalesSomehow,
    /// The same of values that are loaded.
    ValuesSomehow,
    Undiagnosed,
}

struct Flat(Wrong);

/// The elements of a tensor: numbers of floats and codes, bits of indices.
fn unpack(tensor: &Tensor, wrong: Wrong) -> Vec<f32> {
    let bytes = tensor.bytes();
    match tensor.element() {
        ElementType::Float32 => bytes.chunks(4).map(|x| f32::from_le_bytes(x.try_into().unwrap())).collect(),
        ElementType::Float16 => bytes.chunks(2).map(|x| f16::from_le_bytes(x.try_into().unwrap()).to_f32()).collect(),
        ElementType::Int8 => bytes.iter().map(|&x| f32::from(x as i8)).collect(),
        _ => {
            let order = if wrong == Wrong::Nibbles { [4, 0] } else { [0, 4] };
            let code = |byte: u8, shift: i32| match wrong {
                Wrong::HighNibblesUnsigned if shift == 4 => f32::from(byte >> 4),
                _ => f32::from((byte >> shift << 4) as i8 >> 4),
            };
            bytes.iter().flat_map(|&byte| order.map(|shift| code(byte, shift))).collect()
        }
    }
}

fn pack(like: &Tensor, shape: &[usize], values: &[f32], wrong: Wrong) -> Tensor {
    let bytes: Vec<u8> = match like.element() {
        ElementType::Float32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        ElementType::Float16 => values.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect(),
        ElementType::Int8 => values.iter().map(|&x| x as i8 as u8).collect(),
        _ => {
            let nibbles = values.chunks(2).map(|pair| (pair[0] as i8 as u8 & 15, pair[1] as i8 as u8 & 15));
            let swapped = wrong == Wrong::Nibbles;
            nibbles.map(|(first, second)| if swapped { first << 4 | second } else { second << 4 | first }).collect()
        }
    };
    Tensor::new(like.element(), shape.to_vec(), &bytes).unwrap()
}

fn indices(tensor: &Tensor) -> Vec<i64> {
    tensor.bytes().chunks(8).map(|x| i64::from_le_bytes(x.try_into().unwrap())).collect()
}

/// The tensor with 0 in the place of each NaN.
fn without_nan(tensor: &Tensor, wrong: Wrong) -> Tensor {
    let values: Vec<_> = unpack(tensor, wrong).iter().map(|&x| if x.is_nan() { 0.0 } else { x }).collect();
    pack(tensor, tensor.shape(), &values, wrong)
}

/// Rounds to the type of a tensor.
fn rounded(like: &Tensor, x: f32) -> f32 {
    if like.element() == ElementType::Float16 { f16::from_f32(x).to_f32() } else { x }
}

/// Of three finite values one a float of the tensor's type further from zero, one nearer, and one as it is.
fn beside(like: &Tensor, x: f32, i: usize) -> f32 {
    let step = [1, -1, 0][i % 3];
    let x = rounded(like, x);
    let next = match like.element() {
        _ if x == 0.0 => x,
        ElementType::Float16 => f16::from_bits((f16::from_f32(x).to_bits() as i16 + step) as u16).to_f32(),
        _ => f32::from_bits((x.to_bits() as i32 + i32::from(step)) as u32),
    };
    if x.is_finite() && next.is_finite() { next } else { x }
}

impl Implementation for Flat {
    fn run(&self, case: &Case) -> Result<Vec<CallResult>, String> {
        let (wrong, attributes) = (self.0, &case.attributes);
        let (mut cache, mut scale) = (case.cache.clone(), case.scale.clone());
        let mut results = Vec::new();
        for step in &case.steps {
            let (inputs, key) = (&step.inputs, &step.inputs.current_key);
            let (starts, ends) = (indices(&inputs.seqstarts), indices(&inputs.kvstarts));
            let (table, past) = (indices(&inputs.cachestarts), indices(&inputs.start_pos));
            let (heads, head_dim) = (key.shape()[1], key.shape()[2]);
            let repeat = attributes.num_repeat as usize;
            let slot = |b: usize, t: i64| match attributes.cache_mode {
                0 => table[b] + t,
                _ => {
                    let page = table[b * inputs.cachestarts.shape()[1] + (t / attributes.page_size) as usize];
                    let size = if wrong == Wrong::Pages { attributes.page_size } else { 1 };
                    page.saturating_mul(size).saturating_add(t % attributes.page_size)
                }
            };
            // The letters of the axes, and with them the distance from a head to each neighbor, in heads.
            let layout = match (attributes.cache_layout, wrong) {
                (2, Wrong::Layouts) => 3,
                (3, Wrong::Layouts) => 2,
                (layout, _) => layout as usize,
            };
            let names = ["TLKH", "LTKH", "LKTH", "LKHT"];
            let len = |axis: char| cache.shape()[names[attributes.cache_layout as usize].find(axis).unwrap()];
            let stride = |axis: char| names[layout].split_once(axis).unwrap().1.chars().map(len).product::<usize>();
            let layer = if wrong == Wrong::Layers { 0 } else { attributes.layer_idx as usize };
            let max_t = len('T') as i64;
            let [by_slot, by_layer, by_kv, by_head] = ['T', 'L', 'K', 'H'].map(stride);
            let head = |slot: i64, kv: usize, h: usize| {
                (0..max_t)
                    .contains(&slot)
                    .then(|| slot as usize * by_slot + layer * by_layer + kv * by_kv + h * by_head)
            };

            let (old, old_scale) = (cache.clone(), scale.clone());
            let copies = cache.element() == key.element() && attributes.quant_bit == 0;
            let size = key.element().align() * head_dim;
            let mut numbers = unpack(&cache, wrong);
            let mut scales = scale.as_ref().map(|scale| unpack(scale, wrong));
            let group = attributes.quant_group as usize;
            for (kv, current) in [(0, key), (1, &inputs.current_value)] {
                if kv == 1 && wrong == Wrong::ValuesNotStored {
                    continue;
                }
                let replaced = (wrong == Wrong::NanReplaced).then(|| without_nan(current, wrong));
                let current = replaced.as_ref().unwrap_or(current);
                let values = unpack(current, wrong);
                for b in 0..past.len() {
                    for (i, row) in (starts[b]..starts[b + 1]).enumerate() {
                        let position = if wrong == Wrong::StartPos { 0 } else { past[b] } + i as i64;
                        for h in 0..heads {
                            let to = head(slot(b, position), kv, h).ok_or("index out of bounds")?;
                            let from = row as usize * heads + h;
                            if copies {
                                let bytes = &current.bytes()[from * size..][..size];
                                cache.bytes_mut()[to * size..][..size].copy_from_slice(bytes);
                                continue;
                            }
                            let x = &values[from * head_dim..][..head_dim];
                            let stored = &mut numbers[to * head_dim..][..head_dim];
                            if attributes.quant_bit == 0 {
                                stored.copy_from_slice(x);
                                continue;
                            }
                            let scales = scales.as_mut().unwrap();
                            let qmax = if attributes.quant_bit == 8 { 127.0 } else { 7.0 };
                            for (g, (x, codes)) in x.chunks(group).zip(stored.chunks_mut(group)).enumerate() {
                                let nan = x.iter().any(|x| x.is_nan());
                                let amax = match wrong {
                                    Wrong::Mean => x.iter().map(|x| x.abs()).sum::<f32>() / x.len() as f32,
                                    _ => x.iter().fold(0f32, |amax, x| amax.max(x.abs())),
                                };
                                let mut s = rounded(current, amax / qmax);
                                if wrong != Wrong::Epsilon {
                                    s = s.max(rounded(current, if wrong == Wrong::Undiagnosed { 3e-3 } else { 1e-5 }));
                                }
                                if nan {
                                    s = f32::NAN;
                                }
                                for (d, (code, x)) in codes.iter_mut().zip(x).enumerate() {
                                    let quotient = match wrong {
                                        Wrong::Reciprocal => rounded(current, x * rounded(current, 1.0 / s)),
                                        Wrong::ReciprocalOfPaged if attributes.cache_mode == 1 => {
                                            rounded(current, x * rounded(current, 1.0 / s))
                                        }
                                        _ => rounded(current, x / s),
                                    };
                                    let integer = match wrong {
                                        Wrong::Ties => quotient.round(),
                                        Wrong::RoundedSomehow if (row + d as i64) % 3 == 0 => quotient.trunc(),
                                        Wrong::TiesOfInt4 if attributes.quant_bit == 4 => quotient.round(),
                                        _ => quotient.round_ties_even(),
                                    };
                                    *code = f32::from(integer.clamp(-qmax, qmax) as i8);
                                }
                                if wrong != Wrong::Scales {
                                    scales[to * (head_dim / group) + g] = match wrong {
                                        Wrong::ScalesSomehow => {
                                            beside(scale.as_ref().unwrap(), s, row as usize + h + g)
                                        }
                                        _ => s,
                                    };
                                }
                            }
                        }
                    }
                }
            }
            if !copies {
                cache = pack(&cache, cache.shape(), &numbers, wrong);
            }
            if attributes.quant_bit != 0 {
                scale = scale.map(|scale| pack(&scale, scale.shape(), scales.as_ref().unwrap(), wrong));
            }

            let (read, read_scale) = if wrong == Wrong::Order { (&old, &old_scale) } else { (&cache, &scale) };
            let (codes, scales) = (unpack(read, wrong), read_scale.as_ref().map(|scale| (scale, unpack(scale, wrong))));
            let rows = ends[past.len()] as usize;
            let shape = [rows, heads * repeat, head_dim];
            let gather = |kv: usize| -> Result<Tensor, String> {
                let mut output = Tensor::zeros(key.element(), shape.to_vec()).unwrap();
                for b in 0..past.len() {
                    let first = if wrong == Wrong::OutputRows { starts[b] } else { ends[b] } as usize;
                    for t in 0..(ends[b + 1] - ends[b]) as usize {
                        for out in 0..heads * repeat {
                            let h = if wrong == Wrong::Repeat { out % heads } else { out / repeat };
                            let from = head(slot(b, t as i64), kv, h).ok_or("index out of bounds")?;
                            let to = ((first + t) * heads * repeat + out) * size;
                            let bytes = if copies {
                                read.bytes()[from * size..][..size].to_vec()
                            } else {
                                let mut x = codes[from * head_dim..][..head_dim].to_vec();
                                if let Some((scale, scales)) = scales.as_ref().filter(|_| attributes.quant_bit != 0) {
                                    for (d, x) in x.iter_mut().enumerate() {
                                        *x = rounded(scale, *x * scales[from * (head_dim / group) + d / group]);
                                    }
                                }
                                if wrong == Wrong::ValuesSomehow {
                                    x.iter_mut().enumerate().for_each(|(d, x)| *x = beside(key, *x, t + out + d));
                                }
                                pack(key, &[head_dim], &x, wrong).bytes().to_vec()
                            };
                            output.bytes_mut()[to..][..size].copy_from_slice(&bytes);
                        }
                    }
                }
                Ok(output)
            };
            let outcome = Outcome::Done(Outputs { key: gather(0)?, value: gather(1)? });
            results.push(CallResult { outcome, cache: cache.clone(), scale: scale.clone() });
        }
        Ok(results)
    }
}

#[test]
fn wrong_ones_are_named_and_the_right_one_is_not() {
    let legal = |case: &Case| case.steps.iter().all(|step| matches!(step.expected, Expected::Success(_)));
    let cases: Vec<_> = telling().into_iter().filter(legal).collect();
    let known = KnownMistakes::new(&cases);
    let mut problems = Vec::new();
    for (wrong, name) in [
        (Wrong::Nothing, None),
        (Wrong::Ties, Some("half-away-from-even")),
        (Wrong::Nibbles, Some("nibbles-swapped")),
        (Wrong::Epsilon, Some("eps-missing")),
        (Wrong::OutputRows, Some("kvstarts-ignored")),
        (Wrong::Repeat, Some("repeat-interleaved")),
        (Wrong::Layouts, Some("layouts-confused-2-3")),
        (Wrong::Pages, Some("page-index-for-slot")),
        (Wrong::Scales, Some("scale-stale")),
        (Wrong::Reciprocal, Some("reciprocal-multiplication")),
        (Wrong::Layers, Some("layer-ignored")),
        (Wrong::Order, Some("loads-before-stores")),
        (Wrong::StartPos, Some("start-pos-ignored")),
        (Wrong::NanReplaced, Some("nan-replaced-on-store")),
        (Wrong::Mean, Some("mean-for-amax-in-order")),
        (Wrong::ValuesNotStored, Some("values-not-stored")),
        (Wrong::HighNibblesUnsigned, Some("high-nibbles-unsigned")),
        (Wrong::TiesOfInt4, Some("half-away-from-even")),
        (Wrong::ReciprocalOfPaged, Some("reciprocal-multiplication")),
        (Wrong::RoundedSomehow, Some("codes-off-by-one")),
        (Wrong::ScalesSomehow, Some("scales-off-by-a-unit")),
        (Wrong::ValuesSomehow, Some("values-off-by-a-unit")),
        (Wrong::Undiagnosed, None),
    ] {
        let (diagnosis, _) = diagnosed(&Flat(wrong), &cases, &known);
        let named = diagnosis.explanations.first().map(|explanation| explanation.mistake);
        let all_explained = diagnosis.explanations.len() <= 1 && (name.is_none() || diagnosis.unexplained.is_empty());
        let part = match wrong {
            Wrong::TiesOfInt4 => "T2 is int4",
            Wrong::ReciprocalOfPaged => "cache_mode is 1",
            _ => "",
        };
        let scope = diagnosis.explanations.first().map_or(String::new(), |explanation| explanation.scope.to_string());
        if named != name || !all_explained || scope != part || (diagnosis.failed > 0) != (wrong != Wrong::Nothing) {
            problems.push(format!("{wrong:?}: {} failed: {diagnosis}", diagnosis.failed));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
