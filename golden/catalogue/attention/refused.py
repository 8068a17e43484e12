"""Calls that break one rule each. What KeyValueCache refuses, the fused operator refuses too: one case of each kind."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..bits import random_values
from ..case import Case, Sequence, indices
from .case import over_cache, packed

BATCH = (Sequence(1, 1, 0), Sequence(0, 3, 4))
QUANT = dict(quant_bit=8, quant_group=4)


def fused(name: str, about: str, rule: str, types: str = "f32 f32", **attributes: int) -> Case:
    """A case over a cache: four heads on two, head_dim 8."""
    return over_cache(f"refuse-{name}", about, types, (4, 2), 8, proves=rule, **attributes)


def rows(name: str, about: str, rule: str, T1: str = "f32", heads: tuple[int, int] = (4, 2)) -> Case:
    """A case over packed keys and values."""
    return packed(f"refuse-packed-{name}", about, T1, heads, 8, proves=rule)


def both(name: str, about: str, rule: str) -> Iterator[Case]:
    """A case over a cache, and one over packed keys and values."""
    yield fused(name, about, rule)
    yield rows(name, about, rule)


def attributes() -> Iterator[Case]:
    """Attributes outside of their ranges; none counts as true because it is not 0."""
    wrong = {
        "num_heads": (0, -4),
        "head_dim": (0, -8),
        "is_causal": (-1, 2),
        "is_alibi": (-1, 2, 2**32),
        "num_kv_heads": (-1, 3, 8),
        "local_window_size": (0, -2),
        "scale": (np.nan,),
        "softcap": (-1, np.inf),
    }
    for attribute, value in ((attribute, value) for attribute, values in wrong.items() for value in values):
        spelled = f"{attribute}-{value}".replace("_", "-").replace("--", "-minus-")
        about = f"{attribute} {value}, with four query heads, is outside its range."
        mentions = [attribute] if isinstance(value, float) else [attribute, value]
        for case in both(spelled, about, "attributes.ranges"):
            yield case.refuse("attribute_out_of_range", mentions, *BATCH, wrong={attribute: value})
    of_the_cache = (("layer_idx", 1), ("quant_bit", 7), ("cache_layout", -1), ("cache_mode", 2), ("page_size", 0))
    for attribute, value in (*of_the_cache, ("quant_rotation", 1)):
        name, about = f"{attribute}-{value}".replace("_", "-"), f"{attribute} {value}, as KeyValueCache refuses it."
        case = fused(name, about, "attributes.rotation" if attribute == "quant_rotation" else "attributes.ranges")
        yield case.refuse("attribute_out_of_range", [attribute, value], *BATCH, wrong={attribute: value})


def types() -> Iterator[Case]:
    """Types that have no scores, or differ from the other tensors' type."""
    about = "int8 keys and values, which KeyValueCache stores, have no scores."
    case = over_cache("refuse-int8", about, "int8 int8", (2, 2), 8, proves="types.illegal")
    yield case.refuse("attention_type", ["int8"], *BATCH)
    case = rows("int8", "int8 keys and values have no scores.", "types.illegal", "int8", (2, 2))
    yield case.refuse("attention_type", ["int8"], *BATCH)
    case = fused("type-of-query", "query is float16, current_key is float32.", "inputs.types")
    query = case.inputs(*BATCH).query.astype(np.float16)
    yield case.refuse("type_mismatch", ["query", "float16", "float32"], *BATCH, query=query)
    case = rows("type-of-value", "value is float16, query and key are float32.", "inputs.types")
    value = case.inputs(*BATCH).value.astype(np.float16)
    yield case.refuse("type_mismatch", ["value", "float16", "float32"], *BATCH, value=value)
    for case in both("type-of-mask", "A mask of another float type than T1.", "inputs.types"):
        mask = np.zeros((4, 5), np.float16)
        yield case.refuse("type_mismatch", ["attn_mask", "float16", "float32"], *BATCH, attn_mask=mask)
    about = "A mask of int8, which other operators take as true and false."
    for case in both("type-of-mask-bool", about, "inputs.types"):
        yield case.refuse("type_mismatch", ["attn_mask", "int8"], *BATCH, attn_mask=np.zeros((4, 5), np.int8))
    for case in both("type-of-decoding-batches", "decoding_batches is int8.", "inputs.types"):
        yield case.refuse("type_mismatch", ["decoding_batches", "int8"], *BATCH, decoding_batches=np.zeros(1, np.int8))
    about = "quant_bit 8 without a scale."
    case = fused("scale-missing", about, "scale.required", "f32 int8", **QUANT)
    yield case.refuse("scale_missing", ["scale"], *BATCH)
    about = "quant_bit 8 with the scale that exports without one give: shape [0]."
    case = fused("scale-empty", about, "scale.required", "f16 int8 f16", **QUANT)
    case.set_scale(np.zeros(0, np.float16))
    yield case.refuse("scale_missing", ["scale", "quant_bit"], *BATCH)
    case = fused("types", "A float16 cache with quant_bit 8.", "types.illegal", "f32 f16 f32", **QUANT)
    yield case.refuse("illegal_types", ["float32", "float16", "quant_bit"], *BATCH)


def shapes() -> Iterator[Case]:
    """Ranks and shapes that do not go with the attributes or with the other tensors."""
    for case in both("rank-of-query", "query with the heads in one axis with head_dim.", "inputs.shapes"):
        yield case.refuse("rank_mismatch", ["query", 2, 3], *BATCH, query=case.inputs(*BATCH).query.reshape(4, 32))
    for case in both("heads-of-query", "query has eight heads, num_heads is 4.", "inputs.shapes"):
        query = random_values(case.name, (4, 8, 8), "float32")
        yield case.refuse("shape_mismatch", ["query", 8, 4], *BATCH, query=query)
    for case in both("head-dim", "head_dim is 16, all tensors have 8.", "inputs.shapes"):
        yield case.refuse("shape_mismatch", ["query", 8, 16], *BATCH, wrong=dict(head_dim=16))
    about = "query has another number of tokens than current_key."
    case = fused("tokens-of-query", about, "inputs.shapes")
    yield case.refuse("shape_mismatch", ["query", 5, 4], *BATCH, query=random_values(case.name, (5, 4, 8), "float32"))
    case = fused("heads-of-keys", "Four key heads of the attributes, two of keys and cache.", "inputs.shapes")
    inputs = vars(case.inputs(*BATCH))
    del case.attributes["num_kv_heads"]
    yield case.refuse("shape_mismatch", ["current_key", 2, 4], **inputs)
    case = fused("heads-of-cache", "The cache has another number of heads than the keys.", "inputs.shapes")
    key, value = (random_values(f"{case.name} {tensor}", (4, 4, 8), "float32") for tensor in ("key", "value"))
    changes = dict(current_key=key, current_value=value)
    yield case.refuse("shape_mismatch", ["cache", 2, 4], *BATCH, wrong=dict(num_kv_heads=4), **changes)
    for case in both("decoding-batches-of-two", "decoding_batches has two numbers.", "inputs.shapes"):
        yield case.refuse("shape_mismatch", ["decoding_batches", 2, 1], *BATCH, decoding_batches=indices([1, 1]))
    for case in both("rank-of-decoding-batches", "decoding_batches has two axes.", "inputs.shapes"):
        yield case.refuse("rank_mismatch", ["decoding_batches", 2], *BATCH, decoding_batches=indices([[1]]))


def sinks() -> Iterator[Case]:
    for case in both("sinks", "Sinks of another type, as a row, and for each key head.", "inputs.types inputs.shapes"):
        case.refuse("type_mismatch", ["head_sink", "float16"], *BATCH, head_sink=np.zeros(4, np.float16))
        case.refuse("rank_mismatch", ["head_sink", 2], *BATCH, head_sink=np.zeros((1, 4), np.float32))
        yield case.refuse("shape_mismatch", ["head_sink", 2, 4], *BATCH, head_sink=np.zeros(2, np.float32))


def masks() -> Iterator[Case]:
    for case in both("rank-of-mask", "A mask of rank 1, then of rank 4.", "inputs.shapes"):
        case.refuse("rank_mismatch", ["attn_mask", 1], *BATCH, attn_mask=np.zeros(20, np.float32))
        yield case.refuse("rank_mismatch", ["attn_mask", 4], *BATCH, attn_mask=np.zeros((1, 4, 4, 5), np.float32))
    for case in both("mask-too-narrow", "Four columns for five keys, of both ranks.", "attn-mask.width"):
        case.refuse("mask_too_small", ["attn_mask", 4, 5], *BATCH, attn_mask=np.zeros((4, 4), np.float32))
        yield case.refuse("mask_too_small", ["attn_mask", 4, 5], *BATCH, attn_mask=np.zeros((4, 4, 4), np.float32))
    for case in both("rows-of-mask", "Three rows, then five, for four queries.", "inputs.shapes"):
        for rows in (3, 5):
            case.refuse("shape_mismatch", ["attn_mask", rows, 4], *BATCH, attn_mask=np.zeros((rows, 5), np.float32))
        yield case
    about = "A plane for each key head, and one for all: neither is one for each query head."
    for case in both("planes-of-mask", about, "inputs.shapes"):
        for planes in (2, 1):
            mask = np.zeros((planes, 4, 5), np.float32)
            case.refuse("shape_mismatch", ["attn_mask", planes, 4], *BATCH, attn_mask=mask)
        yield case


def decoding_batches() -> Iterator[Case]:
    about = "decoding_batches is -1, then the lowest number."
    for case in both("decoding-batches-negative", about, "decoding-batches"):
        for number in (-1, -(2**63)):
            case.refuse("decoding_batches_negative", ["decoding_batches", number], *BATCH, decoding_batches=number)
        yield case


def of_the_cache() -> Iterator[Case]:
    """One case of each kind that KeyValueCache refuses; nothing is stored."""
    for name, rule, error, mentions, changes in (
        ("seqstarts-not-zero", "starts.rising", "starts_not_zero", ["seqstarts", 1], dict(seqstarts=[1, 1, 4])),
        ("kvstarts-decrease", "starts.rising", "starts_decrease", ["kvstarts", -1], dict(kvstarts=[0, -1, 5])),
        ("kvlen", "starts.kvlen", "kvlen_mismatch", ["batch 0", 2], dict(start_pos=[2, 0])),
        ("start-pos-negative", "starts.start-pos", "start_pos_negative", ["start_pos", -1], dict(start_pos=[-1, 0])),
        ("max-seqlen", "bounds.max-seqlen", "max_too_small", ["max_seqlen", 2, 3], dict(max_seqlen=[2])),
        ("max-kvlen", "bounds.max-kvlen", "max_too_small", ["max_kvlen", 2, 3], dict(max_kvlen=[2])),
        ("slot", "slots.offset", "cache_range", ["cachestarts", 10], dict(cachestarts=[0, 10])),
        ("two-writers", "order.conflict", "write_conflict", ["batch 0", "batch 1"], dict(cachestarts=[0, 1])),
    ):
        wrong = {tensor: indices(values) for tensor, values in changes.items()}
        yield fused(name, "As KeyValueCache refuses it.", rule).refuse(error, mentions, *BATCH, **wrong)
    case = fused("starts-total", "seqstarts ends with three of four tokens.", "starts.total")
    yield case.refuse("starts_total", ["seqstarts", 3, 4], *BATCH, seqstarts=indices([0, 1, 3]))
    case = fused("legacy-page-table", "cache_mode 1 with a cachestarts of rank 1.", "legacy-exports")
    yield case.refuse("legacy_page_table", ["cachestarts", "rank 1"], *BATCH, wrong=dict(cache_mode=1))
    for name, rule, places, error, mentions in (
        ("page", "slots.paged", ((0,), (11,)), "page_range", ["cachestarts", 11]),
        ("pages", "slots.pages", ((0,), (4,)), "too_many_pages", ["cachestarts", 2]),
    ):
        case = fused(name, "As KeyValueCache refuses it.", rule, cache_mode=1, page_size=4 if name == "page" else 2)
        yield case.refuse(error, mentions, Sequence(1, 1, places[0]), Sequence(0, 3, places[1]))
    about = "A quant_group that does not divide head_dim."
    case = fused("group", about, "attributes.group-divides", "f32 int8 f32", **QUANT)
    yield case.refuse("head_dim_not_divisible", [8, 3], *BATCH, wrong=dict(quant_group=3))
    case = fused("after-a-call", "A refused call between two that succeed changes nothing.", "refusal-leaves-memory")
    case.call(*BATCH)
    case.refuse("cache_range", ["cachestarts"], *BATCH, cachestarts=indices([0, 10]))
    yield case.call(Sequence(2, 1, 0), Sequence(3, 1, 4), decoding_batches=2)


def of_packed_rows() -> Iterator[Case]:
    """What belongs to packed keys and values alone."""
    for name, rule, error, mentions, changes in (
        ("seqstarts-not-zero", "starts.rising", "starts_not_zero", ["seqstarts", 1], dict(seqstarts=[1, 1, 4])),
        ("kvstarts-not-zero", "starts.rising", "starts_not_zero", ["kvstarts", 1], dict(kvstarts=[1, 2, 5])),
        ("seqstarts-decrease", "starts.rising", "starts_decrease", ["seqstarts", 5, 4], dict(seqstarts=[0, 5, 4])),
        ("kvstarts-decrease", "starts.rising", "starts_decrease", ["kvstarts", 6, 5], dict(kvstarts=[0, 6, 5])),
        ("seqstarts-total", "starts.total", "starts_total", ["seqstarts", 3, 4], dict(seqstarts=[0, 1, 3])),
        ("kvstarts-total", "starts.total", "starts_total", ["kvstarts", 6, 5], dict(kvstarts=[0, 2, 6])),
        ("max-seqlen", "bounds.max-seqlen", "max_too_small", ["max_seqlen", 2, 3], dict(max_seqlen=[2])),
        ("max-kvlen", "bounds.max-kvlen", "max_too_small", ["max_kvlen", 2, 3], dict(max_kvlen=[2])),
        ("starts-of-another-batch", "inputs.shapes", "shape_mismatch", ["kvstarts", 2, 3], dict(kvstarts=[0, 5])),
        ("rank-of-starts", "inputs.shapes", "rank_mismatch", ["seqstarts", 2], dict(seqstarts=[[0, 1, 4]])),
    ):
        wrong = {tensor: indices(values) for tensor, values in changes.items()}
        yield rows(name, f"Packed: {name.replace('-', ' ')}.", rule).refuse(error, mentions, *BATCH, **wrong)
    about = "value has one row less than key."
    case = rows("rows-of-value", about, "inputs.shapes")
    yield case.refuse("shape_mismatch", ["value", 4, 5], *BATCH, value=random_values(case.name, (4, 2, 8), "float32"))
    case = rows("heads-of-key", "key has one head, num_kv_heads is 2.", "inputs.shapes")
    yield case.refuse("shape_mismatch", ["key", 1, 2], *BATCH, key=random_values(case.name, (5, 1, 8), "float32"))
    case = rows("rank-of-key", "key with the heads in one axis with head_dim.", "inputs.shapes")
    yield case.refuse("rank_mismatch", ["key", 2, 3], *BATCH, key=case.inputs(*BATCH).key.reshape(5, 16))
