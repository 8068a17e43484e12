//! Mistakes of refusal: legal calls of attention that are refused, and illegal ones that are made.

use kvcache_schema::ElementType;

use crate::mistakes::mistake::Mistake;
use crate::oracle::attention::ragged::Ragged;
use crate::oracle::{ATTENTION_KINDS, Verdict};

pub(in crate::mistakes) const MISTAKES: &[Mistake] = &[
    Mistake::of_attention(
        "attn-mask.empty",
        "empty-mask-refused",
        "An attn_mask without elements is refused: it is as good as none.",
        |behavior| behavior.attention.refuses = |ragged| ragged.empty_mask,
    ),
    Mistake::of_attention(
        "attn-mask.width",
        "wider-mask-refused",
        "An attn_mask with more columns than there are keys is refused: it may be padded.",
        |behavior| {
            behavior.attention.refuses =
                |ragged| ragged.mask.is_some_and(|mask| mask.width as i64 != ragged.total_keys());
        },
    ),
    Mistake::of_attention(
        "attn-mask",
        "mask-of-rank-2-refused",
        "An attn_mask of rank 2 is refused, which is for all query heads.",
        |behavior| behavior.attention.refuses = |ragged| ragged.mask.is_some_and(|mask| mask.planes.is_none()),
    ),
    Mistake::of_attention(
        "attn-mask",
        "mask-of-rank-3-refused",
        "An attn_mask of rank 3 is refused, which has a plane for each query head.",
        |behavior| behavior.attention.refuses = |ragged| ragged.mask.is_some_and(|mask| mask.planes.is_some()),
    ),
    Mistake::of_attention("attn-mask", "masks-refused", "Every attn_mask with elements is refused.", |behavior| {
        behavior.attention.refuses = |ragged| ragged.mask.is_some();
    }),
    Mistake::of_attention(
        "heads.grouped",
        "several-grouped-heads-refused",
        "More key heads than one and fewer than query heads are refused, or fail in a broadcast: each serves \
         num_heads / num_kv_heads query heads.",
        |behavior| {
            behavior.attention.refuses = |ragged| ragged.kv_heads != ragged.num_heads && ragged.kv_heads != 1;
        },
    ),
    Mistake::of_attention(
        "heads.grouped",
        "grouped-heads-refused",
        "Fewer key heads than query heads are refused: each serves num_heads / num_kv_heads query heads.",
        |behavior| behavior.attention.refuses = |ragged| ragged.kv_heads != ragged.num_heads,
    ),
    Mistake::of_attention("alibi", "alibi-refused", "is_alibi 1 is refused.", |behavior| {
        behavior.attention.refuses = |ragged| ragged.is_alibi;
    }),
    Mistake::of_attention("causal-mask", "is-causal-0-refused", "is_causal 0 is refused.", |behavior| {
        behavior.attention.refuses = |ragged| !ragged.is_causal;
    }),
    Mistake::of_attention(
        "decoding-batches",
        "large-decoding-batches-refused",
        "decoding_batches above the number of sequences is refused: it counts as that.",
        |behavior| {
            behavior.attention.refuses = |ragged| i128::from(ragged.decoding_batches) > ragged.len() as i128;
        },
    ),
    Mistake::of_attention(
        "causal-mask.decoding",
        "several-queries-of-decoding-refused",
        "More than one query in one of the first decoding_batches sequences is refused: they are legal.",
        |behavior| {
            behavior.attention.refuses = |ragged| {
                let is_decoding = |b: usize| (b as i128) < i128::from(ragged.decoding_batches);
                (0..ragged.len()).any(|b| is_decoding(b) && ragged.seqlen(b) > 1)
            };
        },
    ),
    Mistake::of_attention(
        "inputs.shapes",
        "decoding-batches-must-be-scalar",
        "decoding_batches of shape [1] is refused: real exports have that.",
        |behavior| behavior.attention.refuses = |ragged| !ragged.scalar_decoding_batches,
    ),
    Mistake::of_attention(
        "inputs.shapes",
        "decoding-batches-must-be-vector",
        "decoding_batches as a scalar is refused.",
        |behavior| behavior.attention.refuses = |ragged| ragged.scalar_decoding_batches,
    ),
    Mistake::of_attention(
        "rows-without-keys",
        "sequences-without-keys-refused",
        "A sequence with more queries than keys, or with none, is refused, or fails where the largest of no scores is \
         taken: queries that see no key give zeros.",
        |behavior| {
            behavior.attention.refuses =
                |ragged| (0..ragged.len()).any(|b| ragged.kvlen(b) == 0 && ragged.seqlen(b) > 0);
        },
    ),
    Mistake::of_attention(
        "starts.empty",
        "sequences-without-queries-refused",
        "A sequence without queries is refused: it has no rows in the output.",
        |behavior| behavior.attention.refuses = |ragged| (0..ragged.len()).any(|b| ragged.seqlen(b) == 0),
    ),
    Mistake::of_attention(
        "starts.empty",
        "attention-of-no-sequences-refused",
        "A call without sequences is refused: its output is empty.",
        |behavior| behavior.attention.refuses = Ragged::is_empty,
    ),
    Mistake::of_attention(
        "bounds.max-kvlen",
        "attention-bounds-must-be-exact",
        "max_seqlen or max_kvlen above the longest sequence is refused: they are upper bounds.",
        |behavior| {
            behavior.attention.refuses = |ragged| {
                let longest = (0..ragged.len()).map(|b| ragged.seqlen(b)).max().unwrap_or(0);
                ragged.max_kvlen != ragged.longest() || ragged.max_seqlen != longest
            };
        },
    ),
    Mistake::of_attention(
        "scores",
        "head-dim-above-128-refused",
        "A head_dim above 128 is refused: every size is legal.",
        |behavior| behavior.attention.refuses = |ragged| ragged.head_dim > 128,
    ),
    Mistake::of_attention(
        "scores",
        "head-dim-must-be-power-of-two",
        "A head_dim that is no power of two is refused: every size is legal.",
        |behavior| behavior.attention.refuses = |ragged| !ragged.head_dim.is_power_of_two(),
    ),
    Mistake::of_attention("types.legal", "float16-refused", "float16 queries are refused.", |behavior| {
        behavior.attention.refuses = |ragged| ragged.t1 == ElementType::Float16;
    }),
    Mistake::of_attention("types.legal", "float32-refused", "float32 queries are refused.", |behavior| {
        behavior.attention.refuses = |ragged| ragged.t1 == ElementType::Float32;
    }),
    accepts::<0>("types.illegal", "accepts-int8-attention", "int8 queries are accepted, which have no scores."),
    accepts::<1>(
        "attn-mask.width",
        "accepts-narrow-mask",
        "An attn_mask with fewer columns than there are keys is accepted.",
    ),
    accepts::<2>("decoding-batches", "accepts-negative-decoding-batches", "A negative decoding_batches is accepted."),
    Mistake::of_attention(
        "inputs.types",
        "accepts-any-type-of-mask",
        "The type of attn_mask is not checked.",
        |behavior| {
            behavior.verdict = |refusal| accepted(refusal.kind == "type_mismatch" && refusal.is_of("attn_mask"));
        },
    ),
    Mistake::of_attention(
        "inputs.types",
        "accepts-any-type-of-query",
        "The type of query is not checked.",
        |behavior| {
            behavior.verdict = |refusal| accepted(refusal.kind == "type_mismatch" && refusal.is_of("query"));
        },
    ),
    Mistake::of_attention(
        "inputs.shapes",
        "accepts-any-shape-of-mask",
        "The heads and rows of attn_mask are not checked: one plane is not one for each query head.",
        |behavior| {
            behavior.verdict = |refusal| accepted(refusal.kind == "shape_mismatch" && refusal.is_of("attn_mask"));
        },
    ),
    Mistake::of_attention(
        "inputs.shapes",
        "accepts-any-rank-of-mask",
        "The rank of attn_mask is not checked: it is 2 or 3.",
        |behavior| {
            behavior.verdict = |refusal| accepted(refusal.kind == "rank_mismatch" && refusal.is_of("attn_mask"));
        },
    ),
    Mistake::of_attention(
        "inputs.shapes",
        "accepts-any-shape-of-query",
        "The shape of query is not checked: its heads are num_heads, and its rows those of the current tokens.",
        |behavior| {
            behavior.verdict = |refusal| accepted(refusal.kind == "shape_mismatch" && refusal.is_of("query"));
        },
    ),
    Mistake::of_attention(
        "inputs.shapes",
        "accepts-any-shape-of-decoding-batches",
        "The shape of decoding_batches is not checked: it is one number.",
        |behavior| {
            behavior.verdict = |refusal| {
                let form = ["shape_mismatch", "rank_mismatch"].contains(&refusal.kind);
                accepted(form && refusal.is_of("decoding_batches"))
            };
        },
    ),
];

/// A kind of error that no call is refused with.
const fn accepts<const KIND: usize>(rule: &'static str, name: &'static str, about: &'static str) -> Mistake {
    Mistake::of_attention(rule, name, about, |behavior| {
        behavior.verdict = |refusal| accepted(refusal.kind == ATTENTION_KINDS[KIND]);
    })
}

fn accepted(accepted: bool) -> Verdict {
    if accepted { Verdict::Accepted } else { Verdict::Refused }
}
