//! Mistakes of scales: what they are made of, for which values they are made, what is stored, and which one a code is
//! loaded with.

use std::slice;

use super::mistake::Mistake;
use crate::oracle::Place;
use crate::oracle::arithmetic::{Group, Shares};

pub(super) const MISTAKES: &[Mistake] = &[
    Mistake::new(
        "quantizing.groups",
        "mean-for-amax",
        "The scale is made of the mean magnitude of a group: it should be made of the largest one.",
        |behavior| behavior.arithmetic.amax = |group, values| group.to_t1(mean(values.iter().map(|x| x.abs()))),
    ),
    Mistake::new(
        "quantizing.groups",
        "mean-for-amax-in-order",
        "The scale is made of the mean magnitude of a group, summed in float32 one after the other: it should be made \
         of the largest one.",
        |behavior| {
            behavior.arithmetic.amax =
                |_, values| f64::from(values.iter().map(|&x| x.abs() as f32).sum::<f32>() / values.len() as f32);
        },
    ),
    Mistake::new(
        "quantizing.groups",
        "mean-for-amax-in-pairs",
        "The scale is made of the mean magnitude of a group, summed in float32 as numpy does: it should be made of the \
         largest one.",
        |behavior| {
            behavior.arithmetic.amax = |group, values| {
                let values: Vec<_> = values.iter().map(|&x| x.abs() as f32).collect();
                group.to_t1((sum_of_eight_lanes(&values) / values.len() as f32).into())
            };
        },
    ),
    Mistake::new(
        "quantizing.groups",
        "root-mean-square-for-amax",
        "The scale is made of the root mean square of a group: it should be made of the largest magnitude.",
        |behavior| behavior.arithmetic.amax = |_, values| mean(values.iter().map(|x| x * x)).sqrt(),
    ),
    Mistake::new(
        "quantizing.groups",
        "half-range-for-amax",
        "The scale is made of half of the range, (max - min) / 2: it should be made of the largest magnitude, codes \
         have no zero point.",
        |behavior| {
            behavior.arithmetic.amax = |group, values| {
                let (least, most) = extremes(values.iter().copied());
                group.to_t1(most - least) / 2.0
            };
        },
    ),
    Mistake::new(
        "quantizing.groups",
        "least-for-amax",
        "The scale is made of the smallest magnitude of a group: it should be made of the largest one.",
        |behavior| behavior.arithmetic.amax = |_, values| extremes(values.iter().map(|x| x.abs())).0,
    ),
    Mistake::new(
        "quantizing.groups",
        "first-for-amax",
        "The scale is made of the first value of a group alone: it should be made of the largest magnitude of all.",
        |behavior| behavior.arithmetic.amax = |_, values| values.first().map_or(0.0, |x| x.abs()),
    ),
    Mistake::new(
        "quantizing.groups",
        "last-value-not-in-amax",
        "The last value of a group does not count toward its scale: look at the end of the loop over the group.",
        |behavior| {
            behavior.arithmetic.amax =
                |_, values| {
                    largest(values.split_last().map_or(values, |(last, others)| {
                        if others.is_empty() { slice::from_ref(last) } else { others }
                    }))
                }
        },
    ),
    amax_of_first::<4>("amax-of-first-4", "Only the first 4 values of a group count toward its scale: all do."),
    amax_of_first::<8>("amax-of-first-8", "Only the first 8 values of a group count toward its scale: all do."),
    amax_of_first::<16>("amax-of-first-16", "Only the first 16 values of a group count toward its scale: all do."),
    amax_of_first::<32>("amax-of-first-32", "Only the first 32 values of a group count toward its scale: all do."),
    rest_not_in_amax::<4>(
        "values-behind-4-not-in-amax",
        "Values of a group behind its last multiple of 4 do not count toward its scale.",
    ),
    rest_not_in_amax::<8>(
        "values-behind-8-not-in-amax",
        "Values of a group behind its last multiple of 8 do not count toward its scale.",
    ),
    rest_not_in_amax::<16>(
        "values-behind-16-not-in-amax",
        "Values of a group behind its last multiple of 16 do not count toward its scale.",
    ),
    Mistake::new(
        "quantizing.groups",
        "quant-group-8-in-stores",
        "Scales are made of 8 elements of a head each, as by the default of quant_group: it is an attribute.",
        |behavior| behavior.arithmetic.group = |d, _, groups| (d / 8).min(groups - 1),
    ),
    Mistake::new(
        "quantizing.groups",
        "quant-group-8",
        "Every 8 elements of a head have a scale, as by the default of quant_group: it is an attribute.",
        |behavior| {
            behavior.arithmetic.group = |d, _, groups| (d / 8).min(groups - 1);
            behavior.arithmetic.loaded_group = |d, _, groups| (d / 8).min(groups - 1);
        },
    ),
    Mistake::new(
        "quantizing.groups",
        "scale-of-first-head-stored",
        "The scales of head 0 are stored for all heads: each has its own.",
        |behavior| behavior.scale_source_head = |_| 0,
    ),
    Mistake::new(
        "quantizing.groups",
        "scale-of-first-head-in-loads",
        "All heads are loaded with the scales of head 0: each has its own.",
        |behavior| behavior.loaded_scale_head = |_| 0,
    ),
    scale_of_slot::<1>(
        "scale-of-next-slot-in-loads",
        "Tokens are loaded with the scales of the slot behind theirs: each slot has its own.",
    ),
    scale_of_slot::<-1>(
        "scale-of-slot-before-in-loads",
        "Tokens are loaded with the scales of the slot before theirs: each slot has its own.",
    ),
    Mistake::new(
        "quantizing.groups",
        "scale-of-first-token-in-loads",
        "All tokens of a sequence are loaded with the scales of its first one: each has its own.",
        |behavior| behavior.loaded_scale_place = |_, first| first,
    ),
    Mistake::new(
        "quantizing.groups",
        "scale-of-first-current-token-stored",
        "The scales of a sequence's first current token are stored for all of them: each has its own.",
        |behavior| behavior.scale_source_row = |_, first| first,
    ),
    Mistake::new(
        "quantizing.groups",
        "scale-of-first-row-stored",
        "The scales of the first row of current_key and current_value are stored for all current tokens: each has its \
         own.",
        |behavior| behavior.scale_source_row = |_, _| 0,
    ),
    Mistake::new(
        "quantizing.groups",
        "scale-of-next-slot-stored",
        "Scales are stored for the slot behind that of their token: each slot has its own.",
        |behavior| behavior.scale_place = |own, _| Place { slot: own.slot + 1, ..own },
    ),
    Mistake::new(
        "quantizing.groups",
        "scales-stored-for-first-current-token",
        "Scales of all current tokens of a sequence are stored in the slot of its first one: each has its own.",
        |behavior| behavior.scale_place = |_, first| first,
    ),
    Mistake::new(
        "untouched-layers",
        "layer-ignored-by-scale",
        "Scales are stored for layer 0, and loaded from it, whatever layer_idx is.",
        |behavior| (behavior.scale_layer, behavior.loaded_scale_layer) = (|_| 0, |_| 0),
    ),
    Mistake::new(
        "untouched-layers",
        "layer-ignored-by-stores-of-scale",
        "Scales are stored for layer 0 whatever layer_idx is, and loaded from the layer that they belong to.",
        |behavior| behavior.scale_layer = |_| 0,
    ),
    Mistake::new(
        "quantizing.groups",
        "layer-ignored-by-loads-of-scale",
        "Scales are loaded from layer 0 whatever layer_idx is.",
        |behavior| behavior.loaded_scale_layer = |_| 0,
    ),
    Mistake::new(
        "quantizing.groups",
        "scale-shared-by-key-and-value",
        "Key and value of a token share scales: each has its own.",
        |behavior| behavior.arithmetic.shares_scale.key_or_value = false,
    ),
    Mistake::new(
        "quantizing.groups",
        "scale-of-all-tokens",
        "The tokens of a call share the scales of each head: amax is taken over the wrong axis, every token has scales \
         of its own.",
        |behavior| behavior.arithmetic.shares_scale.row = false,
    ),
    Mistake::new(
        "quantizing.groups",
        "amax-not-reset-between-tokens",
        "The largest magnitude runs on from token to token: each token has scales of its own.",
        |behavior| behavior.arithmetic.shares_scale.rows_before = true,
    ),
    Mistake::new(
        "quantizing.groups",
        "amax-not-reset-between-groups",
        "The largest magnitude runs on from group to group of a head: each group has a scale of its own.",
        |behavior| behavior.arithmetic.shares_scale.groups_before = true,
    ),
    Mistake::new(
        "quantizing.groups",
        "scale-per-tensor",
        "One scale is made for all of current_key, and one for all of current_value: each group of quant_group \
         neighbors has its own.",
        |behavior| {
            behavior.arithmetic.shares_scale = Shares { row: false, head: false, group: false, ..Shares::GROUP };
        },
    ),
    Mistake::new(
        "non-finite.nan",
        "nan-gets-least-scale",
        "A NaN makes the scale 1e-5, as fmax(s, 1e-5) or s > 1e-5 ? s : 1e-5 have it: the scale should be NaN.",
        |behavior| {
            behavior.arithmetic.step = |group, amax| {
                let (step, least) = (group.to_t1(amax / group.qmax()), group.to_t1(1e-5));
                if step > least { step } else { least }
            };
        },
    ),
    Mistake::new(
        "quantizing.epsilon",
        "eps-for-zeros-alone",
        "1e-5 is the scale of a group of zeros alone: it is the least scale of all, max(amax / qmax, 1e-5).",
        |behavior| {
            behavior.arithmetic.step = |group, amax| match group.to_t1(amax / group.qmax()) {
                0.0 => group.to_t1(1e-5),
                step => step,
            };
        },
    ),
    eps::<3>("eps-of-1e-3", "The least scale is 1e-3: it should be 1e-5."),
    eps::<4>("eps-of-1e-4", "The least scale is 1e-4: it should be 1e-5."),
    eps::<7>("eps-of-1e-7", "The least scale is 1e-7: it should be 1e-5."),
    eps::<9>("eps-of-1e-9", "The least scale is 1e-9: it should be 1e-5."),
    eps::<10>("eps-of-1e-10", "The least scale is 1e-10: it should be 1e-5."),
    eps::<12>("eps-of-1e-12", "The least scale is 1e-12: it should be 1e-5."),
    Mistake::new(
        "quantizing.epsilon",
        "eps-of-machine-epsilon",
        "The least scale is the machine epsilon of float32, 2^-23: it should be 1e-5.",
        |behavior| behavior.arithmetic.step = |group, amax| at_least(group, amax, f32::EPSILON.into()),
    ),
    Mistake::new(
        "quantizing.amax-quotient",
        "scale-of-power-of-two",
        "The scale is rounded up to a power of two: it should be max(amax / qmax, 1e-5).",
        |behavior| {
            behavior.arithmetic.step = |group, amax| at_least(group, amax, 1e-5).log2().ceil().exp2();
        },
    ),
    Mistake::new(
        "quantizing.step-of-t1",
        "scale-without-qmax",
        "The scale is amax, not divided by qmax, so that codes are from -1 to 1: it should be max(amax / qmax, 1e-5).",
        |behavior| {
            behavior.arithmetic.step = |group, amax| {
                let least = group.to_t1(1e-5);
                if amax < least { least } else { amax }
            };
        },
    ),
    Mistake::new(
        "scale.rounded-to-t3",
        "amax-stored-as-scale",
        "scale holds amax: it should hold the step between codes, max(amax / qmax, 1e-5).",
        |behavior| {
            behavior.arithmetic.stored_scale = |group, steps| group.to_t3(steps.amax);
            behavior.arithmetic.value =
                |group, code, scale| group.to_t1(group.to_t3(f64::from(code) * group.to_t3(scale / group.qmax())));
        },
    ),
    Mistake::new(
        "scale.rounded-to-t3",
        "reciprocal-stored-as-scale",
        "scale holds 1 / s: it should hold s, which codes are multiplied with.",
        |behavior| {
            behavior.arithmetic.stored_scale = |group, steps| group.to_t3(group.to_t1(1.0 / steps.step));
            behavior.arithmetic.value = |group, code, scale| group.to_t1(group.to_t3(f64::from(code) / scale));
        },
    ),
    Mistake::new(
        "scale.rounded-to-t3",
        "reciprocal-stored-but-multiplied",
        "scale holds 1 / s, and codes are multiplied with it: it should hold s.",
        |behavior| {
            behavior.arithmetic.stored_scale = |group, steps| group.to_t3(group.to_t1(1.0 / steps.step));
        },
    ),
    Mistake::new(
        "dequantizing.rounded-to-t3",
        "codes-divided-by-scale",
        "Codes are divided by their scale when they are loaded: multiply them.",
        |behavior| behavior.arithmetic.value = |group, code, scale| group.to_t1(group.to_t3(f64::from(code) / scale)),
    ),
    Mistake::dynamic(
        "scale.rounded-to-t3",
        "scale-saturates",
        "A step beyond the largest number of T3 is stored as that number: it should become an infinity.",
        |behavior| {
            behavior.arithmetic.stored_scale = |group, steps| match group.t3 {
                kvcache_schema::ElementType::Float16 if steps.step.is_finite() && steps.scale.is_infinite() => {
                    half::f16::MAX.into()
                }
                _ => steps.scale,
            };
        },
    ),
    Mistake::dynamic(
        "scale.rounded-to-t3",
        "denormal-scales-flushed",
        "A float16 scale that is denormal is stored as 0: it should be stored as the value that it is.",
        |behavior| {
            behavior.arithmetic.stored_scale = |group, steps| match group.t3 {
                kvcache_schema::ElementType::Float16 if steps.scale < half::f16::MIN_POSITIVE.into() => 0.0,
                _ => steps.scale,
            };
        },
    ),
    Mistake::dynamic(
        "dequantizing.rounded-to-t3",
        "least-scale-in-loads",
        "A scale below 1e-5 is loaded as 1e-5: only stores have a least scale.",
        |behavior| {
            behavior.arithmetic.value = |group, code, scale| {
                let least = group.to_t3(1e-5);
                group.to_t1(group.to_t3(f64::from(code) * if scale < least { least } else { scale }))
            };
        },
    ),
    Mistake::new(
        "quantizing.groups",
        "scale-of-key-stored-for-value",
        "Values are coded with their own steps, but the scales of the keys are stored for them.",
        |behavior| behavior.scale_source = [0, 0],
    ),
    Mistake::new(
        "quantizing.groups",
        "scale-of-key-for-value",
        "Values are coded with the steps of the keys, whose scales are stored for them, too: each has its own.",
        |behavior| (behavior.step_source, behavior.scale_source) = ([0, 0], [0, 0]),
    ),
    Mistake::new(
        "quantizing.groups",
        "scales-of-values-not-stored",
        "The scales of values are not stored, those of keys are: both are.",
        |behavior| behavior.stores_scale = [true, false],
    ),
    Mistake::new(
        "quantizing.groups",
        "scale-of-key-in-loads-of-value",
        "Values are loaded with the scales of the keys: each has its own.",
        |behavior| behavior.loaded_scale_kv = [0, 0],
    ),
    Mistake::new(
        "quantizing.groups",
        "scale-of-first-group-in-loads",
        "All elements of a head are loaded with its first scale: element d has scale d / quant_group.",
        |behavior| behavior.arithmetic.loaded_group = |_, _, _| 0,
    ),
    Mistake::new(
        "quantizing.groups",
        "scales-tiled-in-loads",
        "Scales are tiled along a head, element d is loaded with scale d % groups: repeat each quant_group times, \
         element d has scale d / quant_group.",
        |behavior| behavior.arithmetic.loaded_group = |d, _, groups| d % groups,
    ),
    Mistake::new(
        "quantizing.groups",
        "scales-by-number-of-groups",
        "Element d is loaded with scale d / (Dh / quant_group): with scale d / quant_group.",
        |behavior| behavior.arithmetic.loaded_group = |d, _, groups| (d / groups).min(groups - 1),
    ),
    Mistake::new(
        "quantizing.groups",
        "quant-group-8-in-loads",
        "Every 8 elements of a head are loaded with the next scale, as by the default of quant_group: it is an \
         attribute.",
        |behavior| behavior.arithmetic.loaded_group = |d, _, groups| (d / 8).min(groups - 1),
    ),
];

/// A scale that only the first `N` values of a group count toward.
const fn amax_of_first<const N: usize>(name: &'static str, about: &'static str) -> Mistake {
    Mistake::new("quantizing.groups", name, about, |behavior| {
        behavior.arithmetic.amax = |_, values| largest(&values[..values.len().min(N)]);
    })
}

/// A scale that the values behind the last multiple of `N` do not count toward.
const fn rest_not_in_amax<const N: usize>(name: &'static str, about: &'static str) -> Mistake {
    Mistake::dynamic("quantizing.groups", name, about, |behavior| {
        behavior.arithmetic.amax = |_, values| match values.len() / N * N {
            0 => largest(values),
            whole => largest(&values[..whole]),
        };
    })
}

/// The scales of the slot that is `BY` further.
const fn scale_of_slot<const BY: i64>(name: &'static str, about: &'static str) -> Mistake {
    Mistake::new("quantizing.groups", name, about, |behavior| {
        behavior.loaded_scale_place = |own, _| Place { slot: own.slot + BY, ..own };
    })
}

/// Another constant where 1e-5 belongs: 10 to the power of -`EXPONENT`.
const fn eps<const EXPONENT: i32>(name: &'static str, about: &'static str) -> Mistake {
    Mistake::new("quantizing.epsilon", name, about, |behavior| {
        behavior.arithmetic.step = |group, amax| at_least(group, amax, 10f64.powi(-EXPONENT));
    })
}

/// amax / qmax, or, if that is less, the constant rounded to T1.
fn at_least(group: &Group<'_>, amax: f64, constant: f64) -> f64 {
    let (step, least) = (group.to_t1(amax / group.qmax()), group.to_t1(constant));
    if step < least { least } else { step }
}

/// The mean; NaN if one is.
fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len();
    values.sum::<f64>() / count as f64
}

/// The least and the largest; NaN if one is.
fn extremes(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), x| match x.is_nan() || least.is_nan() {
        true => (f64::NAN, f64::NAN),
        false => (least.min(x), most.max(x)),
    })
}

/// The largest magnitude; NaN if one is.
fn largest(values: &[f64]) -> f64 {
    extremes(values.iter().map(|x| x.abs())).1
}

/// A sum of at most 128 numbers as numpy makes it along a contiguous axis: in eight lanes, then these in pairs.
fn sum_of_eight_lanes(values: &[f32]) -> f32 {
    let (whole, rest) = values.split_at(if values.len() < 8 { 0 } else { values.len() / 8 * 8 });
    let mut lanes = [0f32; 8];
    for (i, eight) in whole.chunks(8).enumerate() {
        for (lane, x) in lanes.iter_mut().zip(eight) {
            *lane = if i == 0 { *x } else { *lane + x };
        }
    }
    let [a, b, c, d, e, f, g, h] = lanes;
    rest.iter().fold(((a + b) + (c + d)) + ((e + f) + (g + h)), |sum, x| sum + x)
}
