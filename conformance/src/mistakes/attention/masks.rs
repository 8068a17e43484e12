//! Mistakes of attn_mask: how it is added, and beside what.

use crate::mistakes::attention::mask_elements::element;
use crate::mistakes::mistake::Mistake;
use crate::oracle::attention::decisions::Terms;
use crate::oracle::attention::ragged::Ragged;

pub(in crate::mistakes) const MISTAKES: &[Mistake] = &[
    Mistake::of_attention("attn-mask", "mask-ignored", "attn_mask is not looked at.", |behavior| {
        behavior.attention.mask_element = |_, _, _, _| None;
    }),
    Mistake::of_attention(
        "attn-mask",
        "mask-only-hides",
        "attn_mask hides keys where it is -inf, but its other values are not added.",
        |behavior| {
            behavior.attention.score = |terms| Terms { attn_mask: hidden(terms.attn_mask), ..*terms }.score();
        },
    ),
    Mistake::of_attention(
        "attn-mask",
        "mask-nan-taken-as-0",
        "NaN in attn_mask is taken as 0: it is added, and the query that sees it gives NaN.",
        |behavior| {
            behavior.attention.score =
                |terms| Terms { attn_mask: terms.attn_mask.filter(|mask| !mask.is_nan()), ..*terms }.score();
        },
    ),
    Mistake::of_attention(
        "attn-mask",
        "mask-nan-hides",
        "NaN in attn_mask hides a key: it is added, and the query that sees it gives NaN.",
        |behavior| {
            behavior.attention.score = |terms| {
                let hidden = |mask: f64| if mask.is_nan() { f64::NEG_INFINITY } else { mask };
                Terms { attn_mask: terms.attn_mask.map(hidden), ..*terms }.score()
            };
        },
    ),
    Mistake::of_attention(
        "attn-mask",
        "mask-does-not-hide",
        "Values of attn_mask are added, but for -inf, which should hide the key.",
        |behavior| {
            behavior.attention.score = |terms| {
                Terms { attn_mask: terms.attn_mask.filter(|&mask| mask != f64::NEG_INFINITY), ..*terms }.score()
            };
        },
    ),
    Mistake::of_attention(
        "attn-mask",
        "mask-multiplied",
        "Scores are multiplied with attn_mask: it is added.",
        |behavior| {
            behavior.attention.score =
                |terms| Terms { attn_mask: None, ..*terms }.score() * terms.attn_mask.unwrap_or(1.0);
        },
    ),
    Mistake::of_attention(
        "attn-mask",
        "mask-nonzero-sees",
        "attn_mask is taken as true and false: a value that is not 0 shows a key, and 0 hides it. It is added.",
        |behavior| {
            behavior.attention.score =
                |terms| Terms { attn_mask: terms.attn_mask.map(|mask| shown(mask != 0.0)), ..*terms }.score();
        },
    ),
    Mistake::of_attention(
        "attn-mask",
        "mask-nonzero-hides",
        "attn_mask is taken as true and false: a value that is not 0 hides a key. It is added.",
        |behavior| {
            behavior.attention.score =
                |terms| Terms { attn_mask: terms.attn_mask.map(|mask| shown(mask == 0.0)), ..*terms }.score();
        },
    ),
    Mistake::of_attention(
        "attn-mask",
        "mask-negative-hides",
        "attn_mask is taken as true and false: a value below 0 hides a key. It is added.",
        |behavior| {
            behavior.attention.score =
                |terms| Terms { attn_mask: terms.attn_mask.map(|mask| shown(mask >= 0.0)), ..*terms }.score();
        },
    ),
    hides_below::<100>("mask-below-100-hides", "A value of attn_mask below -100 hides a key: only -inf does."),
    hides_below::<1_000>("mask-below-1000-hides", "A value of attn_mask below -1000 hides a key: only -inf does."),
    hides_below::<9_999>("mask-of-10000-hides", "A value of attn_mask of -10000 or less hides a key: only -inf does."),
    hides_below::<10_000>("mask-below-10000-hides", "A value of attn_mask below -10000 hides a key: only -inf does."),
    hides_below::<65_503>(
        "mask-of-65504-hides",
        "A value of attn_mask of -65504, the least float16, or less hides a key: only -inf does.",
    ),
    hides_below::<100_000>(
        "mask-below-100000-hides",
        "A value of attn_mask below -100000 hides a key: only -inf does.",
    ),
    Mistake::of_attention(
        "attn-mask",
        "mask-never-positive",
        "Values of attn_mask above 0 count as 0: they are added as they are.",
        |behavior| {
            behavior.attention.score =
                |terms| Terms { attn_mask: terms.attn_mask.map(|mask| mask.min(0.0)), ..*terms }.score();
        },
    ),
    Mistake::of_attention(
        "attn-mask",
        "masks-without-log2e",
        "Inner products are multiplied with log2(e) for exp2(), and attn_mask and ALiBi are not: multiply the whole \
         score.",
        |behavior| {
            behavior.attention.score = |terms| {
                let of_base_2 = |mask: Option<f64>| mask.map(|mask| mask * std::f64::consts::LN_2);
                let (attn_mask, alibi) = (of_base_2(terms.attn_mask), of_base_2(terms.alibi));
                Terms { attn_mask, alibi, ..*terms }.score()
            };
        },
    ),
    Mistake::of_attention(
        "attn-mask",
        "mask-without-log2e",
        "Inner products are multiplied with log2(e) for exp2(), and attn_mask is not: multiply the whole score.",
        |behavior| {
            behavior.attention.score = |terms| {
                let attn_mask = terms.attn_mask.map(|mask| mask * std::f64::consts::LN_2);
                Terms { attn_mask, ..*terms }.score()
            };
        },
    ),
    Mistake::of_attention("attn-mask", "mask-subtracted", "attn_mask is subtracted: it is added.", |behavior| {
        behavior.attention.score = |terms| {
            let subtracted = |mask: f64| if mask == f64::NEG_INFINITY { mask } else { -mask };
            Terms { attn_mask: terms.attn_mask.map(subtracted), ..*terms }.score()
        };
    }),
    Mistake::of_attention(
        "attn-mask",
        "mask-before-scaling",
        "attn_mask is added to the inner product before that is divided by the square root of head_dim: add it after.",
        |behavior| {
            behavior.attention.score = |terms| {
                let product = terms.product + finite(terms.attn_mask);
                Terms { product, attn_mask: hidden(terms.attn_mask), ..*terms }.score()
            };
        },
    ),
    Mistake::of_attention(
        "attn-mask",
        "masks-before-scaling",
        "attn_mask and ALiBi are added to the inner product before that is divided by the square root of head_dim: add \
         them after.",
        |behavior| {
            behavior.attention.score = |terms| {
                let product = terms.product + finite(terms.attn_mask) + finite(terms.alibi);
                let (attn_mask, alibi) = (hidden(terms.attn_mask), hidden(terms.alibi));
                Terms { product, attn_mask, alibi, ..*terms }.score()
            };
        },
    ),
    Mistake::of_attention(
        "attn-mask.beside",
        "mask-replaces-causal-mask",
        "With an attn_mask there is no causal mask: it adds to that.",
        |behavior| {
            behavior.attention.has_causal_mask = |ragged, b| causal(ragged, b) && ragged.mask.is_none();
        },
    ),
    Mistake::of_attention(
        "attn-mask.beside",
        "mask-replaces-alibi",
        "With an attn_mask there is no ALiBi: it adds to that.",
        |behavior| behavior.attention.has_alibi = |ragged, _| ragged.is_alibi && ragged.mask.is_none(),
    ),
    Mistake::of_attention(
        "attn-mask.beside",
        "mask-replaces-all",
        "With an attn_mask there are neither causal mask nor ALiBi: it adds to them.",
        |behavior| {
            behavior.attention.has_causal_mask = |ragged, b| causal(ragged, b) && ragged.mask.is_none();
            behavior.attention.has_alibi = |ragged, _| ragged.is_alibi && ragged.mask.is_none();
        },
    ),
    Mistake::of_attention(
        "attn-mask.beside",
        "alibi-replaces-mask",
        "With ALiBi attn_mask is not looked at: both are added.",
        |behavior| {
            behavior.attention.mask_element =
                |ragged, mask, query, j| (!ragged.is_alibi).then(|| element(ragged, mask, query, j));
        },
    ),
    Mistake::of_attention(
        "attn-mask.beside",
        "causal-mask-replaces-mask",
        "In sequences with the causal mask attn_mask is not looked at: both are added.",
        |behavior| {
            behavior.attention.mask_element =
                |ragged, mask, query, j| (!causal(ragged, query.b)).then(|| element(ragged, mask, query, j));
        },
    ),
    Mistake::of_attention(
        "attn-mask",
        "mask-not-for-decoding",
        "attn_mask is left out of the first decoding_batches sequences: every sequence has a block.",
        |behavior| {
            behavior.attention.mask_element = |ragged, mask, query, j| {
                (query.b as i128 >= i128::from(ragged.decoding_batches)).then(|| element(ragged, mask, query, j))
            };
        },
    ),
    Mistake::of_attention("attn-mask", "mask-added-twice", "attn_mask is added twice.", |behavior| {
        behavior.attention.score =
            |terms| Terms { attn_mask: terms.attn_mask.map(|mask| 2.0 * mask), ..*terms }.score();
    }),
    Mistake::of_attention(
        "weights.hidden",
        "hidden-scores-not-replaced",
        "-inf is added to a score that is NaN or infinite, which gives NaN: a hidden key has score -inf, whatever its \
         inner product is.",
        |behavior| behavior.attention.score = added,
    ),
    Mistake::of_attention(
        "weights.hidden",
        "hidden-values-multiplied",
        "Values of hidden keys are multiplied with their weight 0, which gives NaN for NaN and infinity: leave them \
         out.",
        |behavior| behavior.attention.adds_hidden_values = true,
    ),
    Mistake::of_attention(
        "weights.hidden",
        "hidden-keys-count",
        "NaN and infinity reach queries from which a mask hides them: a hidden key's score is -inf whatever its inner \
         product is, and its value is left out.",
        |behavior| {
            behavior.attention.score = added;
            behavior.attention.adds_hidden_values = true;
        },
    ),
];

/// Values that are taken as -inf because they are below `-BOUND`.
const fn hides_below<const BOUND: i32>(name: &'static str, about: &'static str) -> Mistake {
    Mistake::of_attention("attn-mask", name, about, |behavior| {
        behavior.attention.score = |terms| {
            let hidden = |mask: f64| if mask < -f64::from(BOUND) { f64::NEG_INFINITY } else { mask };
            Terms { attn_mask: terms.attn_mask.map(hidden), ..*terms }.score()
        };
    })
}

/// Whether a sequence has the causal mask, as the specification has it.
fn causal(ragged: &Ragged, b: usize) -> bool {
    ragged.is_causal && ragged.seqlen(b) > 1 && b as i128 >= i128::from(ragged.decoding_batches)
}

/// What a mask adds, but for -inf.
fn finite(mask: Option<f64>) -> f64 {
    mask.filter(|&mask| mask != f64::NEG_INFINITY).unwrap_or(0.0)
}

/// A mask that hides what it hides, and adds nothing else.
fn hidden(mask: Option<f64>) -> Option<f64> {
    mask.filter(|&mask| mask == f64::NEG_INFINITY)
}

/// A mask that shows a key or hides it.
fn shown(is_shown: bool) -> f64 {
    if is_shown { 0.0 } else { f64::NEG_INFINITY }
}

/// The score where masks are added whatever they are.
fn added(terms: &Terms) -> f64 {
    terms.masks().fold(terms.product * terms.factor, |score, mask| score + mask)
}
