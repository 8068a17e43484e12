//! Mistakes of where a head lies: layouts, layers, keys and values, and repeated heads.

use kvcache_schema::{CacheLayout, StaticCacheLayout};

use super::mistake::Mistake;
use crate::oracle::Behavior;

pub(super) const MISTAKES: &[Mistake] = &[
    confused::<0, 1>(
        "cache-layout.0",
        "layouts-confused-0-1",
        "Layouts 0 (MaxT, L, 2, H, Dh) and 1 (L, MaxT, 2, H, Dh) are confused: look at the strides of slots and \
         layers.",
    ),
    confused::<0, 2>(
        "cache-layout.0",
        "layouts-confused-0-2",
        "Layouts 0 (MaxT, L, 2, H, Dh) and 2 (L, 2, MaxT, H, Dh) are confused: look at the stride of slots.",
    ),
    confused::<0, 3>(
        "cache-layout.0",
        "layouts-confused-0-3",
        "Layouts 0 (MaxT, L, 2, H, Dh) and 3 (L, 2, H, MaxT, Dh) are confused: look at the strides of slots and heads.",
    ),
    confused::<1, 2>(
        "cache-layout.1",
        "layouts-confused-1-2",
        "Layouts 1 (L, MaxT, 2, H, Dh) and 2 (L, 2, MaxT, H, Dh) are confused: look at the strides of slots and of key \
         and value.",
    ),
    confused::<1, 3>(
        "cache-layout.1",
        "layouts-confused-1-3",
        "Layouts 1 (L, MaxT, 2, H, Dh) and 3 (L, 2, H, MaxT, Dh) are confused: look at the strides of slots and heads.",
    ),
    confused::<2, 3>(
        "cache-layout.2",
        "layouts-confused-2-3",
        "Layouts 2 (L, 2, MaxT, H, Dh) and 3 (L, 2, H, MaxT, Dh) are confused: look at the strides of slots and heads.",
    ),
    Mistake::of_static(
        "cache-layout.0",
        "static-layouts-confused",
        "Layouts 0 (MaxB, L, 2, MaxS, H, Dh) and 1 (L, MaxB, 2, H, MaxS, Dh) are confused.",
        |behavior| {
            let swapped = [StaticCacheLayout::LayerMajor, StaticCacheLayout::BatchMajor];
            behavior.static_batching.cache_layouts = swapped;
            behavior.static_batching.scale_layouts = swapped;
        },
    ),
    Mistake::new(
        "cache-layout.1",
        "layout-ignored",
        "cache_layout is not looked at, and the cache taken as of layout 0.",
        |behavior| {
            behavior.dynamic.cache_layouts = [CacheLayout::TokenMajor; CacheLayout::ALL.len()];
            behavior.static_batching.cache_layouts = [StaticCacheLayout::BatchMajor; 2];
            scale_layout_ignored(behavior);
        },
    ),
    Mistake::new(
        "cache-layout.1",
        "scale-layout-ignored",
        "scale is taken as of layout 0: its axes have the order of cache's, by cache_layout.",
        scale_layout_ignored,
    ),
    Mistake::dynamic(
        "cache-layout.2",
        "scale-layout-of-cache-layout-1",
        "scale is taken as of layout 1: its axes have the order of cache's, by cache_layout.",
        |behavior| behavior.dynamic.scale_layouts = [CacheLayout::LayerMajor; CacheLayout::ALL.len()],
    ),
    Mistake::of_static(
        "cache-layout.0",
        "batch-and-position-swapped",
        "The axes MaxB and MaxS of the cache are taken one for the other.",
        |behavior| behavior.static_batching.axes_swapped = true,
    ),
    Mistake::new(
        "layer",
        "layer-ignored",
        "layer_idx is not looked at: every layer stores to and loads from layer 0.",
        |behavior| {
            behavior.layers_stored = |_, _| vec![0];
            behavior.layer_loaded = |_| 0;
        },
    ),
    Mistake::new(
        "layer",
        "layer-ignored-by-stores",
        "Tokens are stored to layer 0: layer_idx counts for stores as it does for loads.",
        |behavior| behavior.layers_stored = |_, _| vec![0],
    ),
    Mistake::new(
        "layer",
        "layer-counted-from-1",
        "Tokens are stored to and loaded from the layer before layer_idx: layers are counted from 0.",
        |behavior| {
            behavior.layers_stored = |layer_idx, _| vec![layer_idx.saturating_sub(1)];
            behavior.layer_loaded = |layer_idx| layer_idx.saturating_sub(1);
        },
    ),
    Mistake::new(
        "layer",
        "layer-one-further",
        "Tokens are stored to and loaded from the layer behind layer_idx: layers are counted from 0.",
        |behavior| {
            behavior.layers_stored = |layer_idx, _| vec![layer_idx + 1];
            behavior.layer_loaded = |layer_idx| layer_idx + 1;
        },
    ),
    Mistake::new(
        "layer",
        "layer-ignored-by-loads",
        "Tokens are loaded from layer 0: layer_idx counts for loads as it does for stores.",
        |behavior| behavior.layer_loaded = |_| 0,
    ),
    Mistake::new(
        "untouched-layers",
        "all-layers-written",
        "Tokens are stored to every layer: they belong in layer_idx alone.",
        |behavior| behavior.layers_stored = |_, num_layer| (0..num_layer).collect(),
    ),
    Mistake::dynamic(
        "outputs.packed",
        "key-and-value-swapped",
        "The outputs key and value are exchanged.",
        |behavior| behavior.outputs = [1, 0],
    )
    .static_rule("loaded-positions")
    .attention_rule("weights"),
    Mistake::new(
        "cache-layout.0",
        "key-and-value-swapped-in-cache",
        "Keys are stored where values belong: along the axis of length 2, keys are at 0 and values at 1.",
        |behavior| (behavior.kv, behavior.scale_kv, behavior.loaded_scale_kv) = ([1, 0], [1, 0], [1, 0]),
    ),
    Mistake::new(
        "cache-layout.0",
        "value-overwrites-key",
        "The axis of keys and values is not looked at: values are stored over keys.",
        |behavior| (behavior.kv, behavior.scale_kv, behavior.loaded_scale_kv) = ([0, 0], [0, 0], [0, 0]),
    ),
    Mistake::new(
        "cache-layout.0",
        "scale-of-value-overwrites-key",
        "The axis of keys and values of scale is not looked at: scales of values are stored over those of keys.",
        |behavior| (behavior.scale_kv, behavior.loaded_scale_kv) = ([0, 0], [0, 0]),
    ),
    Mistake::dynamic("inputs.packed", "values-not-stored", "Values are not stored, keys alone are.", |behavior| {
        behavior.stored = [Some(0), None]
    })
    .static_rule("stored-positions"),
    Mistake::dynamic("inputs.packed", "keys-not-stored", "Keys are not stored, values alone are.", |behavior| {
        behavior.stored = [None, Some(1)]
    })
    .static_rule("stored-positions"),
    Mistake::dynamic(
        "inputs.packed",
        "key-stored-as-value",
        "current_key is stored as key and as value: values are in current_value.",
        |behavior| behavior.stored = [Some(0), Some(0)],
    )
    .static_rule("stored-positions"),
    Mistake::dynamic(
        "inputs.packed",
        "value-stored-as-key",
        "current_value is stored as key and as value: keys are in current_key.",
        |behavior| behavior.stored = [Some(1), Some(1)],
    )
    .static_rule("stored-positions"),
    Mistake::dynamic(
        "outputs.packed",
        "key-loaded-as-value",
        "The output value is that of keys: values are at 1 along the axis of length 2.",
        |behavior| behavior.outputs = [0, 0],
    )
    .static_rule("loaded-positions"),
    Mistake::dynamic(
        "outputs.packed",
        "value-loaded-as-key",
        "The output key is that of values: keys are at 0 along the axis of length 2.",
        |behavior| behavior.outputs = [1, 1],
    )
    .static_rule("loaded-positions"),
    rest_not_stored::<4>(
        "elements-behind-4-not-stored",
        "Elements of a head behind its last multiple of 4 are not stored: head_dim need be no multiple.",
    ),
    rest_not_stored::<8>(
        "elements-behind-8-not-stored",
        "Elements of a head behind its last multiple of 8 are not stored: head_dim need be no multiple.",
    ),
    rest_not_stored::<16>(
        "elements-behind-16-not-stored",
        "Elements of a head behind its last multiple of 16 are not stored: head_dim need be no multiple.",
    ),
    rest_not_stored::<32>(
        "elements-behind-32-not-stored",
        "Elements of a head behind its last multiple of 32 are not stored: head_dim need be no multiple.",
    ),
    first_stored::<64>(
        "first-64-elements-stored",
        "Only the first 64 elements of a head are stored: all are, whatever head_dim is.",
    ),
    rest_not_loaded::<4>(
        "elements-behind-4-not-loaded",
        "Elements of a head behind its last multiple of 4 are not loaded: head_dim need be no multiple.",
    ),
    rest_not_loaded::<8>(
        "elements-behind-8-not-loaded",
        "Elements of a head behind its last multiple of 8 are not loaded: head_dim need be no multiple.",
    ),
    rest_not_loaded::<16>(
        "elements-behind-16-not-loaded",
        "Elements of a head behind its last multiple of 16 are not loaded: head_dim need be no multiple.",
    ),
    rest_not_loaded::<32>(
        "elements-behind-32-not-loaded",
        "Elements of a head behind its last multiple of 32 are not loaded: head_dim need be no multiple.",
    ),
    first_loaded::<64>(
        "first-64-elements-loaded",
        "Only the first 64 elements of a head are loaded: all are, whatever head_dim is.",
    ),
    Mistake::new(
        "inputs.packed",
        "current-heads-first",
        "current_key and current_value are read as (H, tokens, Dh): they are (tokens, H, Dh).",
        |behavior| behavior.current_head = |_, row, h, rows, _| h * rows + row,
    )
    .static_rule("stored-positions"),
    heads_first::<0>(
        "current-heads-first-of-keys",
        "current_key is read as (H, tokens, Dh), current_value is not: both are (tokens, H, Dh).",
    ),
    heads_first::<1>(
        "current-heads-first-of-values",
        "current_value is read as (H, tokens, Dh), current_key is not: both are (tokens, H, Dh).",
    ),
    Mistake::new(
        "outputs.packed",
        "output-heads-first-in-memory",
        "key and value are written as (heads, tokens, Dh) in the memory of (tokens, heads, Dh).",
        |behavior| behavior.output_head = |row, h, rows, _| h * rows + row,
    )
    .static_rule("loaded-positions"),
    Mistake::new(
        "num-repeat",
        "first-repetition-alone",
        "The first of the repetitions of each head is written, the others stay zero: there are num_repeat of them.",
        |behavior| {
            behavior.cache_head =
                |_, output_head, _, num_repeat| (output_head % num_repeat == 0).then_some(output_head / num_repeat);
        },
    ),
    Mistake::new(
        "num-repeat",
        "two-repetitions-alone",
        "Two repetitions of each head are written, the others stay zero: there are num_repeat of them.",
        |behavior| {
            behavior.cache_head =
                |_, output_head, _, num_repeat| (output_head % num_repeat < 2).then_some(output_head / num_repeat);
        },
    ),
    Mistake::new(
        "num-repeat",
        "last-repetition-missing",
        "The last of the repetitions of each head stays zero: there are num_repeat of them.",
        |behavior| {
            behavior.cache_head = |_, output_head, _, num_repeat| {
                (num_repeat == 1 || output_head % num_repeat < num_repeat - 1).then_some(output_head / num_repeat)
            };
        },
    ),
    Mistake::new(
        "num-repeat",
        "first-heads-alone",
        "The first heads of the outputs are the cache's heads, the others stay zero: output head h is cache head h / \
         num_repeat.",
        |behavior| {
            behavior.cache_head = |_, output_head, num_heads, _| (output_head < num_heads).then_some(output_head)
        },
    ),
    Mistake::new(
        "num-repeat",
        "first-head-repeated",
        "Every output head is cache head 0: output head h is cache head h / num_repeat.",
        |behavior| behavior.cache_head = |_, _, _, _| Some(0),
    ),
    Mistake::new(
        "num-repeat",
        "repeat-interleaved",
        "Repeated heads are interleaved, output head h is cache head h % H: it should be h / num_repeat, each head \
         beside its repetitions.",
        |behavior| behavior.cache_head = |_, output_head, num_heads, _| Some(output_head % num_heads),
    ),
    Mistake::new(
        "num-repeat",
        "repeat-by-number-of-heads",
        "Output head h is cache head h / H: it should be h / num_repeat.",
        |behavior| {
            behavior.cache_head = |_, output_head, num_heads, _| Some((output_head / num_heads).min(num_heads - 1))
        },
    ),
    interleaved_alone::<0>(
        "repeat-interleaved-of-keys",
        "Repeated heads are interleaved in key, where output head h is cache head h % H, and are not in value: it should \
         be h / num_repeat in both.",
    ),
    interleaved_alone::<1>(
        "repeat-interleaved-of-values",
        "Repeated heads are interleaved in value, where output head h is cache head h % H, and are not in key: it should \
         be h / num_repeat in both.",
    ),
    Mistake::new(
        "num-repeat",
        "elements-repeated",
        "Each element is repeated num_repeat times, as by a repetition along the last axis: repeat heads.",
        |behavior| behavior.repeats_elements = true,
    ),
    Mistake::new(
        "num-repeat",
        "repeat-ignored",
        "num_repeat is not looked at: the outputs have as many heads as the cache.",
        |behavior| {
            behavior.output_heads = |num_heads, _| num_heads;
            behavior.cache_head = |_, output_head, _, _| Some(output_head);
        },
    ),
];

/// Heads of which the elements behind the last multiple of `N` are not stored.
const fn rest_not_stored<const N: usize>(name: &'static str, about: &'static str) -> Mistake {
    Mistake::dynamic("inputs.packed", name, about, |behavior| behavior.stored_elements = |head_dim| head_dim / N * N)
}

/// The same of loads.
const fn rest_not_loaded<const N: usize>(name: &'static str, about: &'static str) -> Mistake {
    Mistake::dynamic("outputs.packed", name, about, |behavior| {
        behavior.loaded_elements = |head_dim| head_dim / N * N;
    })
}

/// Heads of which the first `N` elements alone are stored.
const fn first_stored<const N: usize>(name: &'static str, about: &'static str) -> Mistake {
    Mistake::dynamic("inputs.packed", name, about, |behavior| behavior.stored_elements = |head_dim| head_dim.min(N))
}

/// The same of loads.
const fn first_loaded<const N: usize>(name: &'static str, about: &'static str) -> Mistake {
    Mistake::dynamic("outputs.packed", name, about, |behavior| behavior.loaded_elements = |head_dim| head_dim.min(N))
}

fn scale_layout_ignored(behavior: &mut Behavior) {
    behavior.dynamic.scale_layouts = [CacheLayout::TokenMajor; CacheLayout::ALL.len()];
    behavior.static_batching.scale_layouts = [StaticCacheLayout::BatchMajor; 2];
}

/// Heads interleaved in key (0) or value (1) alone.
const fn interleaved_alone<const KV: usize>(name: &'static str, about: &'static str) -> Mistake {
    Mistake::new("num-repeat", name, about, |behavior| {
        behavior.cache_head = |key_or_value, output_head, num_heads, num_repeat| {
            Some(if key_or_value == KV { output_head % num_heads } else { output_head / num_repeat })
        };
    })
}

/// Keys (0) or values (1) alone read with the axes of heads and tokens exchanged.
const fn heads_first<const KV: usize>(name: &'static str, about: &'static str) -> Mistake {
    Mistake::new("inputs.packed", name, about, |behavior| {
        behavior.current_head = |key_or_value, row, h, rows, num_heads| match key_or_value == KV {
            true => h * rows + row,
            false => row * num_heads + h,
        };
    })
    .static_rule("stored-positions")
}

/// Two layouts taken one for the other.
const fn confused<const A: usize, const B: usize>(
    rule: &'static str,
    name: &'static str,
    about: &'static str,
) -> Mistake {
    Mistake::dynamic(rule, name, about, |behavior| {
        behavior.dynamic.cache_layouts.swap(A, B);
        behavior.dynamic.scale_layouts.swap(A, B);
    })
}
