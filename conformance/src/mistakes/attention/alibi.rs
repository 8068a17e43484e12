//! Mistakes of ALiBi: what it adds, for which sequences, and its slopes.

use half::{bf16, f16};

use crate::mistakes::mistake::Mistake;
use crate::oracle::attention::decisions::{Terms, slopes};

pub(in crate::mistakes) const MISTAKES: &[Mistake] = &[
    Mistake::of_attention(
        "alibi",
        "alibi-ignored",
        "is_alibi is not looked at, or its mask is computed and dropped.",
        |behavior| behavior.attention.has_alibi = |_, _| false,
    ),
    Mistake::of_attention(
        "alibi",
        "alibi-without-distance",
        "ALiBi hides the keys behind a query, but adds nothing to the others: slope[h] * (j - (m - n + i)) is missing.",
        |behavior| {
            behavior.attention.bias = |_, query, _, j| if j <= query.position() { 0.0 } else { f64::NEG_INFINITY };
        },
    ),
    Mistake::of_attention(
        "alibi",
        "alibi-sign",
        "ALiBi favors distant keys, its sign is wrong: slope[h] * (j - (m - n + i)) is at most 0.",
        |behavior| {
            behavior.attention.bias = |_, query, slope, j| match j <= query.position() {
                true => slope * (query.position() - j) as f64,
                false => f64::NEG_INFINITY,
            };
        },
    ),
    Mistake::of_attention(
        "alibi",
        "alibi-before-scaling",
        "ALiBi is added to the inner product before that is divided by the square root of head_dim: add it after.",
        |behavior| {
            behavior.attention.score = |terms| {
                let hidden = terms.alibi.filter(|&alibi| alibi == f64::NEG_INFINITY);
                let product = terms.product + terms.alibi.filter(|alibi| alibi.is_finite()).unwrap_or(0.0);
                Terms { product, alibi: hidden, ..*terms }.score()
            };
        },
    ),
    Mistake::of_attention(
        "alibi.causal",
        "alibi-not-causal",
        "ALiBi leaves queries the keys behind them, with slope[h] * (j - (m - n + i)): -inf should hide them.",
        |behavior| behavior.attention.bias = |_, query, slope, j| slope * (j - query.position()) as f64,
    ),
    Mistake::of_attention(
        "alibi",
        "alibi-times-log2e",
        "ALiBi is multiplied with log2(e), as exp2() needs it, and the inner products are not.",
        |behavior| {
            behavior.attention.bias = |_, query, slope, j| match j <= query.position() {
                true => slope * (j - query.position()) as f64 * std::f64::consts::LOG2_E,
                false => f64::NEG_INFINITY,
            };
        },
    ),
    of_distance::<0>(
        "alibi-of-squared-distance",
        "ALiBi subtracts slope[h] times the square of the distance: times the distance.",
    ),
    of_distance::<1>(
        "alibi-of-root-of-distance",
        "ALiBi subtracts slope[h] times the square root of the distance: times the distance.",
    ),
    of_distance::<2>(
        "alibi-of-logarithm-of-distance",
        "ALiBi subtracts slope[h] * log(1 + distance): slope[h] times the distance.",
    ),
    of_distance::<3>(
        "alibi-distance-of-bfloat16",
        "ALiBi's distances are rounded to bfloat16, which has not all integers beyond 256: they are of float32.",
    ),
    Mistake::of_attention(
        "alibi",
        "alibi-of-bfloat16",
        "ALiBi's slopes and what it adds are rounded to bfloat16: they are of float32.",
        |behavior| {
            behavior.attention.slope = |ragged, h| to_bfloat16(slopes(ragged.num_heads)[h]);
            behavior.attention.bias = |_, query, slope, j| match j <= query.position() {
                true => to_bfloat16(slope * to_bfloat16((j - query.position()) as f64)),
                false => f64::NEG_INFINITY,
            };
        },
    ),
    Mistake::of_attention(
        "alibi",
        "alibi-of-float16",
        "ALiBi's slopes and what it adds are rounded to float16: they are of float32.",
        |behavior| {
            behavior.attention.slope = |ragged, h| to_float16(slopes(ragged.num_heads)[h]);
            behavior.attention.bias = |_, query, slope, j| match j <= query.position() {
                true => to_float16(slope * to_float16((j - query.position()) as f64)),
                false => f64::NEG_INFINITY,
            };
        },
    ),
    Mistake::of_attention(
        "alibi.causal",
        "alibi-symmetric",
        "ALiBi leaves queries the keys behind them, with -slope[h] times the distance: -inf should hide them.",
        |behavior| {
            behavior.attention.bias = |_, query, slope, j| -slope * (j - query.position()).abs() as f64;
        },
    ),
    Mistake::of_attention(
        "alibi.causal",
        "alibi-aligned-at-start",
        "ALiBi counts a query's position from the first query, not from the first key: it is m - n + i.",
        |behavior| {
            behavior.attention.bias = |_, query, slope, j| match j <= query.i {
                true => slope * (j - query.i) as f64,
                false => f64::NEG_INFINITY,
            };
        },
    ),
    Mistake::of_attention(
        "alibi",
        "alibi-offset-of-bounds",
        "ALiBi is aligned by max_kvlen - max_seqlen: by m - n of each sequence.",
        |behavior| {
            behavior.attention.bias = |ragged, query, slope, j| {
                let position = ragged.max_kvlen - ragged.max_seqlen + query.i;
                if j <= position { slope * (j - position) as f64 } else { f64::NEG_INFINITY }
            };
        },
    ),
    Mistake::of_attention(
        "alibi",
        "alibi-offset-of-max-kvlen",
        "ALiBi is aligned by max_kvlen - n: by m - n, with the keys m of each sequence.",
        |behavior| {
            behavior.attention.bias = |ragged, query, slope, j| {
                let position = ragged.max_kvlen - query.n + query.i;
                if j <= position { slope * (j - position) as f64 } else { f64::NEG_INFINITY }
            };
        },
    ),
    Mistake::of_attention(
        "alibi.causal",
        "alibi-only-with-is-causal",
        "ALiBi is left out where is_causal is 0: it does not depend on that.",
        |behavior| behavior.attention.has_alibi = |ragged, _| ragged.is_alibi && ragged.is_causal,
    ),
    Mistake::of_attention(
        "alibi.causal",
        "alibi-not-for-decoding",
        "ALiBi is left out of the first decoding_batches sequences: every sequence has it.",
        |behavior| {
            behavior.attention.has_alibi =
                |ragged, b| ragged.is_alibi && b as i128 >= i128::from(ragged.decoding_batches);
        },
    ),
    Mistake::of_attention(
        "alibi.slopes",
        "alibi-slopes-of-any-number",
        "The slopes are 2^(-8k/num_heads) where num_heads is no power of two, too: there they are those of the power \
         below, then every second one of its double.",
        |behavior| behavior.attention.slope = |ragged, h| slope(h + 1, ragged.num_heads),
    ),
    Mistake::of_attention(
        "alibi.slopes",
        "alibi-slopes-continued",
        "Where num_heads is no power of two, 2^(-8k/c) is continued beyond c: the slopes behind are 2^(-4k/c) for odd \
         k.",
        |behavior| {
            behavior.attention.slope = |ragged, h| slope(h + 1, 1 << ragged.num_heads.max(1).ilog2());
        },
    ),
    Mistake::of_attention(
        "alibi.slopes",
        "alibi-slopes-not-every-second",
        "Where num_heads is no power of two, the slopes behind the first c are 2^(-4k/c) for every k: only odd k \
         count.",
        |behavior| {
            behavior.attention.slope = |ragged, h| {
                let c = 1 << ragged.num_heads.max(1).ilog2();
                if h < c { slope(h + 1, c) } else { slope(h - c + 1, 2 * c) }
            };
        },
    ),
    Mistake::of_attention(
        "alibi.slopes",
        "alibi-slopes-even",
        "Where num_heads is no power of two, the slopes behind the first c are 2^(-4k/c) for even k: k is odd.",
        |behavior| {
            behavior.attention.slope = |ragged, h| {
                let c = 1 << ragged.num_heads.max(1).ilog2();
                if h < c { slope(h + 1, c) } else { slope(2 * (h - c + 1), 2 * c) }
            };
        },
    ),
    Mistake::of_attention(
        "alibi.slopes",
        "alibi-slopes-of-next-power",
        "Where num_heads is no power of two, the slopes are the first of those of the next power of two: they are \
         those of the power below, then every second one of its double.",
        |behavior| {
            behavior.attention.slope = |ragged, h| slope(h + 1, ragged.num_heads.next_power_of_two());
        },
    ),
    Mistake::of_attention(
        "alibi.slopes",
        "alibi-slopes-from-one",
        "The first slope is 1, 2^(-8k/c) with k from 0: k counts from 1.",
        |behavior| {
            behavior.attention.slope = |ragged, h| {
                let c = 1 << ragged.num_heads.max(1).ilog2();
                if h < c { slope(h, c) } else { slope(2 * (h - c), 2 * c) }
            };
        },
    ),
    Mistake::of_attention(
        "alibi.slopes",
        "alibi-slopes-halved-each",
        "Slope k is 2^-k whatever num_heads is: it is 2^(-8k/c).",
        |behavior| behavior.attention.slope = |_, h| f64::exp2(-(h as f64) - 1.0),
    ),
    Mistake::of_attention(
        "alibi.slopes",
        "alibi-slopes-in-order",
        "Where num_heads is no power of two, the slopes are sorted: those of the power of two below come first.",
        |behavior| {
            behavior.attention.slope = |ragged, h| {
                let mut slopes = slopes(ragged.num_heads);
                slopes.sort_by(|a, b| b.total_cmp(a));
                slopes[h]
            };
        },
    ),
    Mistake::of_attention(
        "alibi.slopes",
        "alibi-slopes-of-double-first",
        "Where num_heads is no power of two, the slopes 2^(-4k/c) of odd k come first: those of the power of two below \
         do.",
        |behavior| {
            behavior.attention.slope = |ragged, h| {
                let mut slopes = slopes(ragged.num_heads);
                slopes.rotate_left(1 << ragged.num_heads.max(1).ilog2());
                slopes[h]
            };
        },
    ),
    Mistake::of_attention(
        "alibi.slopes",
        "alibi-slopes-reversed",
        "The slopes come in reverse order: the first head has the largest.",
        |behavior| {
            behavior.attention.slope = |ragged, h| slopes(ragged.num_heads)[ragged.num_heads - 1 - h];
        },
    ),
    Mistake::of_attention(
        "alibi.slopes",
        "alibi-slopes-of-key-heads",
        "The slopes are those of num_kv_heads heads, by key head: they are those of num_heads, by query head.",
        |behavior| behavior.attention.slope = |ragged, h| slopes(ragged.kv_heads)[h / ragged.group()],
    ),
    Mistake::of_attention(
        "alibi.slopes",
        "alibi-slope-of-key-head",
        "A query head has the slope of its key head's number: it has that of its own.",
        |behavior| behavior.attention.slope = |ragged, h| slopes(ragged.num_heads)[h / ragged.group()],
    ),
];

/// The bias by another function of the distance.
const fn of_distance<const FUNCTION: usize>(name: &'static str, about: &'static str) -> Mistake {
    Mistake::of_attention("alibi", name, about, |behavior| {
        behavior.attention.bias = |_, query, slope, j| {
            let distance = (query.position() - j) as f64;
            let function: fn(f64) -> f64 = [|x| x * x, f64::sqrt, f64::ln_1p, to_bfloat16][FUNCTION];
            if distance >= 0.0 { -slope * function(distance) } else { f64::NEG_INFINITY }
        };
    })
}

fn to_float16(x: f64) -> f64 {
    f16::from_f64(x).to_f64()
}

fn to_bfloat16(x: f64) -> f64 {
    bf16::from_f32(x as f32).to_f64()
}

/// Slope `k` of those of `count` heads.
fn slope(k: usize, count: usize) -> f64 {
    f64::exp2(-8.0 * k as f64 / count as f64)
}
