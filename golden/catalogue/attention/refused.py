"""Calls that break one rule each. What KeyValueCache refuses, its fused twin refuses too: one case of each kind."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..bits import random_values
from ..case import Sequence, indices
from .case import AttentionCase, over_cache, packed

BATCH = (Sequence(1, 1, 0), Sequence(0, 3, 4))
QUANT = dict(quant_bit=8, quant_group=4)


def cases() -> Iterator[AttentionCase]:
    """Everything of this module."""
    yield from attributes()
    yield from types()
    yield from shapes()
    yield from masks()
    yield from decoding_batches()
    yield from of_the_cache()
    yield from of_packed_rows()


def fused(name: str, about: str, types: str = "f32 f32", **attributes: int) -> AttentionCase:
    """A case over a cache: four heads on two, head_dim 8."""
    return over_cache(f"refuse-{name}", about, types, (4, 2), 8, **attributes)


def both(name: str, about: str) -> Iterator[AttentionCase]:
    """A case over a cache, and one over packed keys and values."""
    yield fused(name, about)
    yield packed(f"refuse-packed-{name}", about, "f32", (4, 2), 8)


def attributes() -> Iterator[AttentionCase]:
    """Attributes outside of their ranges; none counts as true because it is not 0."""
    wrong = {
        "num_heads": (0, -4),
        "head_dim": (0, -8),
        "is_causal": (-1, 2),
        "is_alibi": (-1, 2, 2**32),
        "num_kv_heads": (-1, 3, 8),
    }
    for attribute, values in wrong.items():
        for value in values:
            spelled = f"{attribute}-{value}".replace("_", "-").replace("--", "-minus-")
            for case in both(spelled, f"{attribute} {value}, with four query heads, is outside its range."):
                inputs = vars(case.inputs(BATCH, {}))
                case.attributes[attribute] = value
                yield case.refuse("attribute_out_of_range", [attribute, value], **inputs)
    of_the_cache = (("layer_idx", 1), ("quant_bit", 7), ("cache_layout", -1), ("cache_mode", 2), ("page_size", 0))
    for attribute, value in of_the_cache:
        case = fused(f"{attribute}-{value}".replace("_", "-"), f"{attribute} {value}, as KeyValueCache refuses it.")
        inputs = vars(case.inputs(BATCH, {}))
        case.attributes[attribute] = value
        yield case.refuse("attribute_out_of_range", [attribute, value], **inputs)


def types() -> Iterator[AttentionCase]:
    """Types that have no scores, or are not those of the other tensors."""
    about = "int8 keys and values, which KeyValueCache stores, have no scores."
    case = over_cache("refuse-int8", about, "int8 int8", (2, 2), 8)
    yield case.refuse("attention_type", ["int8"], *BATCH)
    case = packed("refuse-packed-int8", "int8 keys and values have no scores.", "int8", (2, 2), 8)
    yield case.refuse("attention_type", ["int8"], *BATCH)
    case = fused("type-of-query", "query is float16, current_key is float32.")
    query = case.inputs(BATCH, {}).query.astype(np.float16)
    yield case.refuse("type_mismatch", ["query", "float16", "float32"], *BATCH, query=query)
    case = packed("refuse-packed-type-of-value", "value is float16, query and key are float32.", "f32", (4, 2), 8)
    value = case.inputs(BATCH, {}).value.astype(np.float16)
    yield case.refuse("type_mismatch", ["value", "float16", "float32"], *BATCH, value=value)
    for case in both("type-of-mask", "A mask of another float type than T1."):
        mask = np.zeros((4, 5), np.float16)
        yield case.refuse("type_mismatch", ["attn_mask", "float16", "float32"], *BATCH, attn_mask=mask)
    for case in both("type-of-mask-bool", "A mask of int8, which other operators take as true and false."):
        mask = np.zeros((4, 5), np.int8)
        yield case.refuse("type_mismatch", ["attn_mask", "int8"], *BATCH, attn_mask=mask)
    for case in both("type-of-decoding-batches", "decoding_batches is int8."):
        number = np.zeros(1, np.int8)
        yield case.refuse("type_mismatch", ["decoding_batches", "int8"], *BATCH, decoding_batches=number)
    about = "quant_bit 8 without a scale."
    case = over_cache("refuse-scale-missing", about, "f32 int8", (4, 2), 8, **QUANT)
    yield case.refuse("scale_missing", ["scale"], *BATCH)
    about = "quant_bit 8 with the scale that exports without one give: shape [0]."
    case = over_cache("refuse-scale-empty", about, "f16 int8 f16", (4, 2), 8, **QUANT)
    case.cached.scale = case.cached.first_scale = np.zeros(0, np.float16)
    yield case.refuse("scale_missing", ["scale", "quant_bit"], *BATCH)
    case = over_cache("refuse-types", "A float16 cache with quant_bit 8.", "f32 f16 f32", (4, 2), 8, **QUANT)
    yield case.refuse("illegal_types", ["float32", "float16", "quant_bit"], *BATCH)


def shapes() -> Iterator[AttentionCase]:
    """Ranks and shapes that do not go with the attributes or with the other tensors."""
    for case in both("rank-of-query", "query with the heads in one axis with head_dim."):
        query = case.inputs(BATCH, {}).query.reshape(4, 32)
        yield case.refuse("rank_mismatch", ["query", 2, 3], *BATCH, query=query)
    for case in both("heads-of-query", "query has eight heads, num_heads is 4."):
        query = random_values(case.name, (4, 8, 8), "float32")
        yield case.refuse("shape_mismatch", ["query", 8, 4], *BATCH, query=query)
    for case in both("head-dim", "head_dim is 16, all tensors have 8."):
        inputs = vars(case.inputs(BATCH, {}))
        case.attributes["head_dim"] = 16
        yield case.refuse("shape_mismatch", ["query", 8, 16], **inputs)
    about = "query has another number of tokens than current_key."
    case = fused("tokens-of-query", about)
    query = random_values(case.name, (5, 4, 8), "float32")
    yield case.refuse("shape_mismatch", ["query", 5, 4], *BATCH, query=query)
    case = fused("heads-of-keys", "Four key heads of the attributes, two of keys and cache.")
    inputs = vars(case.inputs(BATCH, {}))
    del case.attributes["num_kv_heads"]
    yield case.refuse("shape_mismatch", ["current_key", 2, 4], **inputs)
    case = fused("heads-of-cache", "The cache has another number of heads than the keys.")
    inputs = case.inputs(BATCH, {})
    case.attributes["num_kv_heads"] = 4
    key, value = (random_values(f"{case.name} {tensor}", (4, 4, 8), "float32") for tensor in ("key", "value"))
    yield case.refuse("shape_mismatch", ["cache", 2, 4], **vars(inputs) | dict(current_key=key, current_value=value))
    for case in both("decoding-batches-of-two", "decoding_batches has two numbers."):
        numbers = indices([1, 1])
        yield case.refuse("shape_mismatch", ["decoding_batches", 2, 1], *BATCH, decoding_batches=numbers)
    for case in both("rank-of-decoding-batches", "decoding_batches has two axes."):
        number = indices([[1]])
        yield case.refuse("rank_mismatch", ["decoding_batches", 2], *BATCH, decoding_batches=number)


def masks() -> Iterator[AttentionCase]:
    """Masks of another shape."""
    for case in both("rank-of-mask", "A mask of rank 1, then of rank 4."):
        case.refuse("rank_mismatch", ["attn_mask", 1], *BATCH, attn_mask=np.zeros(20, np.float32))
        yield case.refuse("rank_mismatch", ["attn_mask", 4], *BATCH, attn_mask=np.zeros((1, 4, 4, 5), np.float32))
    for case in both("mask-too-narrow", "Four columns for five keys, of both ranks."):
        case.refuse("mask_too_small", ["attn_mask", 4, 5], *BATCH, attn_mask=np.zeros((4, 4), np.float32))
        yield case.refuse("mask_too_small", ["attn_mask", 4, 5], *BATCH, attn_mask=np.zeros((4, 4, 4), np.float32))
    for case in both("rows-of-mask", "Three rows, then five, for four queries."):
        for rows in (3, 5):
            mask = np.zeros((rows, 5), np.float32)
            case.refuse("shape_mismatch", ["attn_mask", rows, 4], *BATCH, attn_mask=mask)
        yield case
    about = "A plane for each key head, and one for all: neither is one for each query head."
    for case in both("planes-of-mask", about):
        for planes in (2, 1):
            mask = np.zeros((planes, 4, 5), np.float32)
            case.refuse("shape_mismatch", ["attn_mask", planes, 4], *BATCH, attn_mask=mask)
        yield case


def decoding_batches() -> Iterator[AttentionCase]:
    """decoding_batches below 0."""
    for case in both("decoding-batches-negative", "decoding_batches is -1, then the lowest number."):
        for number in (-1, -(2**63)):
            case.refuse("decoding_batches_negative", ["decoding_batches", number], *BATCH, decoding_batches=number)
        yield case


def of_the_cache() -> Iterator[AttentionCase]:
    """One case of each kind that KeyValueCache refuses; nothing is stored."""
    for name, error, mentions, changes in (
        ("seqstarts-not-zero", "starts_not_zero", ["seqstarts", 1], dict(seqstarts=indices([1, 1, 4]))),
        ("kvstarts-decrease", "starts_decrease", ["kvstarts", -1], dict(kvstarts=indices([0, -1, 5]))),
        ("kvlen", "kvlen_mismatch", ["batch 0", 2], dict(start_pos=indices([2, 0]))),
        ("start-pos-negative", "start_pos_negative", ["start_pos", -1], dict(start_pos=indices([-1, 0]))),
        ("max-seqlen", "max_too_small", ["max_seqlen", 2, 3], dict(max_seqlen=indices([2]))),
        ("max-kvlen", "max_too_small", ["max_kvlen", 2, 3], dict(max_kvlen=indices([2]))),
        ("slot", "cache_range", ["cachestarts", 10], dict(cachestarts=indices([0, 10]))),
        ("two-writers", "write_conflict", ["batch 0", "batch 1"], dict(cachestarts=indices([0, 1]))),
    ):
        yield fused(name, "As KeyValueCache refuses it.").refuse(error, mentions, *BATCH, **changes)
    case = fused("starts-total", "seqstarts ends with three of four tokens.")
    yield case.refuse("starts_total", ["seqstarts", 3, 4], *BATCH, seqstarts=indices([0, 1, 3]))
    case = fused("legacy-page-table", "cache_mode 1 with a cachestarts of rank 1.")
    inputs = vars(case.inputs(BATCH, {}))
    case.attributes["cache_mode"] = 1
    yield case.refuse("legacy_page_table", ["cachestarts", "rank 1"], **inputs)
    for name, places, error, mentions in (
        ("page", ((0,), (11,)), "page_range", ["cachestarts", 11]),
        ("pages", ((0,), (4,)), "too_many_pages", ["cachestarts", 2]),
    ):
        size = 4 if name == "page" else 2
        case = fused(name, "As KeyValueCache refuses it.", cache_mode=1, page_size=size)
        yield case.refuse(error, mentions, Sequence(1, 1, places[0]), Sequence(0, 3, places[1]))
    case = fused("group", "A quant_group that does not divide head_dim.", "f32 int8 f32", quant_bit=8, quant_group=4)
    inputs = vars(case.inputs(BATCH, {}))
    case.attributes["quant_group"] = 3
    yield case.refuse("head_dim_not_divisible", [8, 3], **inputs)
    case = fused("after-a-call", "A refused call between two that succeed changes nothing.")
    case.call(*BATCH)
    case.refuse("cache_range", ["cachestarts"], *BATCH, cachestarts=indices([0, 10]))
    yield case.call(Sequence(2, 1, 0), Sequence(3, 1, 4), decoding_batches=2)


def of_packed_rows() -> Iterator[AttentionCase]:
    """What belongs to packed keys and values alone."""
    for name, error, mentions, changes in (
        ("seqstarts-not-zero", "starts_not_zero", ["seqstarts", 1], dict(seqstarts=indices([1, 1, 4]))),
        ("kvstarts-not-zero", "starts_not_zero", ["kvstarts", 1], dict(kvstarts=indices([1, 2, 5]))),
        ("seqstarts-decrease", "starts_decrease", ["seqstarts", 5, 4], dict(seqstarts=indices([0, 5, 4]))),
        ("kvstarts-decrease", "starts_decrease", ["kvstarts", 6, 5], dict(kvstarts=indices([0, 6, 5]))),
        ("seqstarts-total", "starts_total", ["seqstarts", 3, 4], dict(seqstarts=indices([0, 1, 3]))),
        ("kvstarts-total", "starts_total", ["kvstarts", 6, 5], dict(kvstarts=indices([0, 2, 6]))),
        ("max-seqlen", "max_too_small", ["max_seqlen", 2, 3], dict(max_seqlen=indices([2]))),
        ("max-kvlen", "max_too_small", ["max_kvlen", 2, 3], dict(max_kvlen=indices([2]))),
        ("starts-of-another-batch", "shape_mismatch", ["kvstarts", 2, 3], dict(kvstarts=indices([0, 5]))),
        ("rank-of-starts", "rank_mismatch", ["seqstarts", 2], dict(seqstarts=indices([[0, 1, 4]]))),
    ):
        case = packed(f"refuse-packed-{name}", f"Packed: {name.replace('-', ' ')}.", "f32", (4, 2), 8)
        yield case.refuse(error, mentions, *BATCH, **changes)
    about = "value has one row less than key."
    case = packed("refuse-packed-rows-of-value", about, "f32", (4, 2), 8)
    value = random_values(case.name, (4, 2, 8), "float32")
    yield case.refuse("shape_mismatch", ["value", 4, 5], *BATCH, value=value)
    case = packed("refuse-packed-heads-of-key", "key has one head, num_kv_heads is 2.", "f32", (4, 2), 8)
    key = random_values(case.name, (5, 1, 8), "float32")
    yield case.refuse("shape_mismatch", ["key", 1, 2], *BATCH, key=key)
    case = packed("refuse-packed-rank-of-key", "key with the heads in one axis with head_dim.", "f32", (4, 2), 8)
    yield case.refuse("rank_mismatch", ["key", 2, 3], *BATCH, key=case.inputs(BATCH, {}).key.reshape(5, 16))
