//! Mistakes in the inner products of queries and keys: their factor, the heads that meet, and the precision of sums.

use kvcache_schema::ElementType;

use crate::mistakes::mistake::Mistake;
use crate::oracle::attention::decisions::Terms;

pub(in crate::mistakes) const MISTAKES: &[Mistake] = &[
    Mistake::of_attention(
        "scores",
        "score-scale-missing",
        "Inner products are not divided by the square root of head_dim.",
        |behavior| behavior.attention.factor = |_| 1.0,
    ),
    Mistake::of_attention(
        "scores",
        "score-scale-of-head-dim",
        "Inner products are divided by head_dim, or twice by its square root: divide by the square root, once.",
        |behavior| behavior.attention.factor = |ragged| 1.0 / ragged.head_dim as f64,
    ),
    Mistake::of_attention(
        "scores",
        "score-scale-inverted",
        "Inner products are multiplied with the square root of head_dim: divide by it.",
        |behavior| behavior.attention.factor = |ragged| (ragged.head_dim as f64).sqrt(),
    ),
    Mistake::of_attention(
        "scores",
        "score-scale-of-all-heads",
        "Inner products are divided by the square root of num_heads * head_dim, the size of all heads: it should be \
         that of head_dim.",
        |behavior| behavior.attention.factor = |ragged| 1.0 / ((ragged.num_heads * ragged.head_dim) as f64).sqrt(),
    ),
    Mistake::of_attention(
        "scores",
        "score-scale-of-all-key-heads",
        "Inner products are divided by the square root of num_kv_heads * head_dim: it should be that of head_dim.",
        |behavior| behavior.attention.factor = |ragged| 1.0 / ((ragged.kv_heads * ragged.head_dim) as f64).sqrt(),
    ),
    Mistake::of_attention(
        "scores",
        "score-scale-of-num-heads",
        "Inner products are divided by the square root of num_heads: it should be that of head_dim.",
        |behavior| behavior.attention.factor = |ragged| 1.0 / (ragged.num_heads as f64).sqrt(),
    ),
    Mistake::of_attention(
        "scores",
        "score-scale-of-padded-head-dim",
        "Inner products are divided by the square root of head_dim as it is padded to a power of two.",
        |behavior| {
            behavior.attention.factor = |ragged| 1.0 / (ragged.head_dim.next_power_of_two() as f64).sqrt();
        },
    ),
    Mistake::of_attention(
        "scores",
        "score-scale-of-64",
        "Inner products are divided by 8 whatever head_dim is, as if it were 64.",
        |behavior| behavior.attention.factor = |_| 0.125,
    ),
    Mistake::of_attention(
        "scores",
        "score-scale-of-128",
        "Inner products are divided by the square root of 128 whatever head_dim is.",
        |behavior| behavior.attention.factor = |_| 1.0 / 128f64.sqrt(),
    ),
    Mistake::of_attention(
        "heads.grouped",
        "query-heads-interleaved",
        "Query head h uses key head h % num_kv_heads: it should be h / (num_heads / num_kv_heads), so that neighbors \
         share one.",
        |behavior| behavior.attention.key_head = |ragged, h| h % ragged.kv_heads,
    ),
    Mistake::of_attention(
        "heads.grouped",
        "num-kv-heads-ignored",
        "Query head h uses key head h, as if there were as many: it should be h / (num_heads / num_kv_heads).",
        |behavior| behavior.attention.key_head = |_, h| h,
    ),
    Mistake::of_attention(
        "heads.grouped",
        "query-heads-beyond-keys-on-last",
        "Query head h uses key head h, and those that have none the last: it should be h / (num_heads / num_kv_heads).",
        |behavior| behavior.attention.key_head = |ragged, h| h.min(ragged.kv_heads - 1),
    ),
    Mistake::of_attention(
        "heads.grouped",
        "group-size-taken-as-key-heads",
        "Query head h uses key head h / num_kv_heads: divide by num_heads / num_kv_heads.",
        |behavior| behavior.attention.key_head = |ragged, h| h / ragged.kv_heads,
    ),
    Mistake::of_attention(
        "heads.grouped",
        "first-key-head-for-all",
        "Every query head uses key head 0: it should be h / (num_heads / num_kv_heads).",
        |behavior| behavior.attention.key_head = |_, _| 0,
    ),
    Mistake::of_attention(
        "heads.grouped",
        "key-heads-reversed",
        "Query heads use key heads in reverse order: query head h uses key head h / (num_heads / num_kv_heads).",
        |behavior| behavior.attention.key_head = |ragged, h| ragged.kv_heads - 1 - h / ragged.group(),
    ),
    Mistake::of_attention(
        "heads.grouped",
        "query-heads-interleaved-for-keys",
        "Query head h uses the key of head h % num_kv_heads, and the value of the right one: both should be of h / \
         (num_heads / num_kv_heads).",
        |behavior| {
            behavior.attention.key_head = |ragged, h| h % ragged.kv_heads;
            behavior.attention.value_head = Some(|ragged, h| h / ragged.group());
        },
    ),
    Mistake::of_attention(
        "heads.grouped",
        "query-heads-interleaved-for-values",
        "Query head h uses the value of head h % num_kv_heads, and the key of the right one: both should be of h / \
         (num_heads / num_kv_heads).",
        |behavior| behavior.attention.value_head = Some(|ragged, h| h % ragged.kv_heads),
    ),
    clipped::<10_000>(
        "scores-clipped-at-10000",
        "Scores are clipped to what is between -10000 and 10000: they have no bounds.",
    ),
    clipped::<65_504>(
        "scores-clipped-at-65504",
        "Scores are clipped to what a float16 holds, 65504: in float32 they have no such bounds.",
    ),
    capped::<30>(
        "scores-capped-at-30",
        "Scores are capped, 30 * tanh(score / 30), as some models do: they are taken as they are.",
    ),
    capped::<50>(
        "scores-capped-at-50",
        "Scores are capped, 50 * tanh(score / 50), as some models do: they are taken as they are.",
    ),
    Mistake::of_attention(
        "precision",
        "values-summed-in-float16-before-division",
        "Values are multiplied with weights that are not divided by their sum yet, and added up in float16, which has \
         no room for that: add them in float32, and round the result once.",
        |behavior| {
            behavior.attention.sums_of_values = float16_of_float16;
            behavior.attention.divides_last = true;
        },
    ),
    Mistake::of_attention(
        "precision",
        "values-summed-in-float16",
        "Weighted values are added up in float16: add them in float32, and round the result once.",
        |behavior| behavior.attention.sums_of_values = float16_of_float16,
    ),
    Mistake::of_attention(
        "precision",
        "products-summed-in-float16",
        "Inner products are added up in float16: add them in float32.",
        |behavior| behavior.attention.sums_of_products = float16_of_float16,
    ),
    Mistake::of_attention(
        "precision",
        "sums-in-float16",
        "Inner products and weighted values are added up in float16: add them in float32.",
        |behavior| {
            behavior.attention.sums_of_products = float16_of_float16;
            behavior.attention.sums_of_values = float16_of_float16;
        },
    ),
    Mistake::of_attention(
        "precision",
        "computed-in-float16",
        "Inner products and weighted values are computed in float16 where T1 is float32, too, or something else is no \
         more precise: weights or exponentials of float16, an approximate exp(), an epsilon in the sum of weights.",
        |behavior| {
            behavior.attention.sums_of_products = |_| Some(ElementType::Float16);
            behavior.attention.sums_of_values = |_| Some(ElementType::Float16);
        },
    ),
];

/// Scores that are clipped; hidden ones stay.
const fn clipped<const LARGEST: i32>(name: &'static str, about: &'static str) -> Mistake {
    Mistake::of_attention("scores", name, about, |behavior| {
        behavior.attention.score = |terms| of_seen(terms, |score| score.clamp(-f64::from(LARGEST), f64::from(LARGEST)));
    })
}

/// Scores that approach a largest one; hidden ones stay.
const fn capped<const LARGEST: i32>(name: &'static str, about: &'static str) -> Mistake {
    Mistake::of_attention("scores", name, about, |behavior| {
        behavior.attention.score =
            |terms| of_seen(terms, |score| f64::from(LARGEST) * (score / f64::from(LARGEST)).tanh());
    })
}

/// What becomes of the score of a key that is not hidden.
fn of_seen(terms: &Terms, changed: impl Fn(f64) -> f64) -> f64 {
    match terms.score() {
        f64::NEG_INFINITY => f64::NEG_INFINITY,
        score => changed(score),
    }
}

/// float16 for tensors of float16.
fn float16_of_float16(t1: ElementType) -> Option<ElementType> {
    (t1 == ElementType::Float16).then_some(ElementType::Float16)
}
