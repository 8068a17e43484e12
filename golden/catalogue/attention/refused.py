"""Calls that break one rule each. What KeyValueCache refuses, the fused operator refuses too: one case of each kind."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..bits import random_values
from ..case import Case, Sequence
from ..refused_attributes import wrong
from ..table import of_shape, of_type, refusals
from .case import over_cache, packed

BATCH = (Sequence(1, 1, 0), Sequence(0, 3, 4))
QUANT = dict(quant_bit=8, quant_group=4)
AS_IN_CACHE = "As KeyValueCache refuses it."


def fused(name: str, about: str, types: str, *, heads: tuple[int, int] = (4, 2), **given: str | int) -> Case:
    """A case over a cache: four heads on two, head_dim 8."""
    return over_cache(name, about, types, heads, 8, **given)


def rows(name: str, about: str, types: str, *, heads: tuple[int, int] = (4, 2), **given: str | int) -> Case:
    """A case over packed keys and values."""
    return packed(name.replace("refuse-", "refuse-packed-"), about, types.split()[0], heads, 8, **given)


def mask(*shape: int, element: str = "float32") -> dict[str, np.ndarray]:
    """attn_mask of this shape and type in place of none."""
    return dict(attn_mask=np.zeros(shape, element))


# fmt: off
# Over a cache, and over packed keys and values.
BOTH = (
    ("type-of-mask", "A mask of another float type than T1.", "inputs.types", {},
     ("type_mismatch", "attn_mask, float16, float32", mask(4, 5, element="float16"))),
    ("type-of-mask-bool", "A mask of int8, which other operators take as true and false.", "inputs.types", {},
     ("type_mismatch", "attn_mask, int8", mask(4, 5, element="int8"))),
    ("type-of-decoding-batches", "decoding_batches is int8.", "inputs.types", {},
     ("type_mismatch", "decoding_batches, int8", dict(decoding_batches=of_type("int8")))),
    ("rank-of-query", "query with the heads in one axis with head_dim.", "inputs.shapes", {},
     ("rank_mismatch", "query, 2, 3", dict(query=of_shape(4, 32)))),
    ("heads-of-query", "query has eight heads, num_heads is 4.", "inputs.shapes", {},
     ("shape_mismatch", "query, 8, 4", dict(query=(4, 8, 8)))),
    ("head-dim", "head_dim is 16, all tensors have 8.", "inputs.shapes", {},
     ("shape_mismatch", "query, 8, 16", dict(head_dim=16))),
    ("decoding-batches-of-two", "decoding_batches has two numbers.", "inputs.shapes", {},
     ("shape_mismatch", "decoding_batches, 2, 1", dict(decoding_batches=[1, 1]))),
    ("rank-of-decoding-batches", "decoding_batches has two axes.", "inputs.shapes", {},
     ("rank_mismatch", "decoding_batches, 2", dict(decoding_batches=[[1]]))),
    ("sinks", "Sinks of another type, as a row, and for each key head.", "inputs.types inputs.shapes", {},
     ("type_mismatch", "head_sink, float16", dict(head_sink=np.zeros(4, np.float16))),
     ("rank_mismatch", "head_sink, 2", dict(head_sink=np.zeros((1, 4), np.float32))),
     ("shape_mismatch", "head_sink, 2, 4", dict(head_sink=np.zeros(2, np.float32)))),
    ("rank-of-mask", "A mask of rank 1, then of rank 4.", "inputs.shapes", {},
     ("rank_mismatch", "attn_mask, 1", mask(20)), ("rank_mismatch", "attn_mask, 4", mask(1, 4, 4, 5))),
    ("mask-too-narrow", "Four columns for five keys, of both ranks.", "attn-mask.width", {},
     ("mask_too_small", "attn_mask, 4, 5", mask(4, 4)), ("mask_too_small", "attn_mask, 4, 5", mask(4, 4, 4))),
    ("rows-of-mask", "Three rows, then five, for four queries.", "inputs.shapes", {},
     ("shape_mismatch", "attn_mask, 3, 4", mask(3, 5)), ("shape_mismatch", "attn_mask, 5, 4", mask(5, 5))),
    ("planes-of-mask", "A plane for each key head, and one for all: neither is one for each query head.",
     "inputs.shapes", {},
     ("shape_mismatch", "attn_mask, 2, 4", mask(2, 4, 5)), ("shape_mismatch", "attn_mask, 1, 4", mask(1, 4, 5))),
    ("decoding-batches-negative", "decoding_batches is -1, then the lowest number.", "decoding-batches", {},
     *(("decoding_batches_negative", f"decoding_batches, {n}", dict(decoding_batches=n)) for n in (-1, -(2**63)))),
)
FUSED = (
    ("int8", "int8 keys and values, which KeyValueCache stores, have no scores.", "types.illegal",
     dict(types="int8 int8", heads=(2, 2)), ("attention_type", "int8", {})),
    ("type-of-query", "query is float16, current_key is float32.", "inputs.types", {},
     ("type_mismatch", "query, float16, float32", dict(query=of_type("float16")))),
    ("scale-missing", "quant_bit 8 without a scale.", "scale.required", dict(types="f32 int8", **QUANT),
     ("scale_missing", "scale", {})),
    ("types", "A float16 cache with quant_bit 8.", "types.illegal", dict(types="f32 f16 f32", **QUANT),
     ("illegal_types", "float32, float16, quant_bit", {})),
    ("tokens-of-query", "query has another number of tokens than current_key.", "inputs.shapes", {},
     ("shape_mismatch", "query, 5, 4", dict(query=(5, 4, 8)))),
    # One case of each kind that KeyValueCache refuses; nothing is stored.
    ("seqstarts-not-zero", AS_IN_CACHE, "starts.rising", {},
     ("starts_not_zero", "seqstarts, 1", dict(seqstarts=[1, 1, 4]))),
    ("kvstarts-decrease", AS_IN_CACHE, "starts.rising", {},
     ("starts_decrease", "kvstarts, -1", dict(kvstarts=[0, -1, 5]))),
    ("kvlen", AS_IN_CACHE, "starts.kvlen", {}, ("kvlen_mismatch", "batch 0, 2", dict(start_pos=[2, 0]))),
    ("start-pos-negative", AS_IN_CACHE, "starts.start-pos", {},
     ("start_pos_negative", "start_pos, -1", dict(start_pos=[-1, 0]))),
    ("max-seqlen", AS_IN_CACHE, "bounds.max-seqlen", {}, ("max_too_small", "max_seqlen, 2, 3", dict(max_seqlen=[2]))),
    ("max-kvlen", AS_IN_CACHE, "bounds.max-kvlen", {}, ("max_too_small", "max_kvlen, 2, 3", dict(max_kvlen=[2]))),
    ("slot", AS_IN_CACHE, "slots.offset", {}, ("cache_range", "cachestarts, 10", dict(cachestarts=[0, 10]))),
    ("two-writers", AS_IN_CACHE, "order.conflict", {},
     ("write_conflict", "batch 0, batch 1", dict(cachestarts=[0, 1]))),
    ("starts-total", "seqstarts ends with three of four tokens.", "starts.total", {},
     ("starts_total", "seqstarts, 3, 4", dict(seqstarts=[0, 1, 3]))),
    ("legacy-page-table", "cache_mode 1 with a cachestarts of rank 1.", "legacy-exports", {},
     ("legacy_page_table", "cachestarts, rank 1", dict(cache_mode=1))),
    ("page", AS_IN_CACHE, "slots.paged", dict(cache_mode=1, page_size=4),
     ("page_range", "cachestarts, 11", dict(batch=(Sequence(1, 1, (0,)), Sequence(0, 3, (11,)))))),
    ("pages", AS_IN_CACHE, "slots.pages", dict(cache_mode=1, page_size=2),
     ("too_many_pages", "cachestarts, 2", dict(batch=(Sequence(1, 1, (0,)), Sequence(0, 3, (4,)))))),
    ("group", "A quant_group that does not divide head_dim.", "attributes.group-divides",
     dict(types="f32 int8 f32", **QUANT), ("head_dim_not_divisible", "8, 3", dict(quant_group=3))),
    wrong("quant_rotation", 1, "quant-rotation-1", "quant_rotation 1, as KeyValueCache refuses it.",
          "attributes.rotation"),
    *(wrong(attribute, value, f"{attribute}-{value}", f"{attribute} {value}, as KeyValueCache refuses it.")
      for attribute, value in dict(layer_idx=1, quant_bit=7, cache_layout=-1, cache_mode=2, page_size=0).items()),
)
PACKED = (
    ("int8", "int8 keys and values have no scores.", "types.illegal", dict(types="int8", heads=(2, 2)),
     ("attention_type", "int8", {})),
    ("type-of-value", "value is float16, query and key are float32.", "inputs.types", {},
     ("type_mismatch", "value, float16, float32", dict(value=of_type("float16")))),
    ("rows-of-value", "value has one row less than key.", "inputs.shapes", {},
     ("shape_mismatch", "value, 4, 5", dict(value=(4, 2, 8)))),
    ("heads-of-key", "key has one head, num_kv_heads is 2.", "inputs.shapes", {},
     ("shape_mismatch", "key, 1, 2", dict(key=(5, 1, 8)))),
    ("rank-of-key", "key with the heads in one axis with head_dim.", "inputs.shapes", {},
     ("rank_mismatch", "key, 2, 3", dict(key=of_shape(5, 16)))),
    *((name, f"Packed: {name.replace('-', ' ')}.", rules, {}, call) for name, rules, *call in (
        ("seqstarts-not-zero", "starts.rising", "starts_not_zero", "seqstarts, 1", dict(seqstarts=[1, 1, 4])),
        ("kvstarts-not-zero", "starts.rising", "starts_not_zero", "kvstarts, 1", dict(kvstarts=[1, 2, 5])),
        ("seqstarts-decrease", "starts.rising", "starts_decrease", "seqstarts, 5, 4", dict(seqstarts=[0, 5, 4])),
        ("kvstarts-decrease", "starts.rising", "starts_decrease", "kvstarts, 6, 5", dict(kvstarts=[0, 6, 5])),
        ("seqstarts-total", "starts.total", "starts_total", "seqstarts, 3, 4", dict(seqstarts=[0, 1, 3])),
        ("kvstarts-total", "starts.total", "starts_total", "kvstarts, 6, 5", dict(kvstarts=[0, 2, 6])),
        ("max-seqlen", "bounds.max-seqlen", "max_too_small", "max_seqlen, 2, 3", dict(max_seqlen=[2])),
        ("max-kvlen", "bounds.max-kvlen", "max_too_small", "max_kvlen, 2, 3", dict(max_kvlen=[2])),
        ("starts-of-another-batch", "inputs.shapes", "shape_mismatch", "kvstarts, 2, 3", dict(kvstarts=[0, 5])),
        ("rank-of-starts", "inputs.shapes", "rank_mismatch", "seqstarts, 2", dict(seqstarts=[[0, 1, 4]])))),
)
# fmt: on
# Attributes of attention outside of their ranges; none counts as true because it is not 0.
RANGES = {
    "num_heads": (0, -4),
    "head_dim": (0, -8),
    "is_causal": (-1, 2),
    "is_alibi": (-1, 2, 2**32),
    "num_kv_heads": (-1, 3, 8),
    "local_window_size": (0, -2),
    "scale": (np.nan,),
    "softcap": (-1, np.inf),
}


def cases() -> Iterator[Case]:
    for begin, table in ((fused, FUSED), (rows, PACKED), (fused, BOTH), (rows, BOTH)):
        yield from refusals(begin, BATCH, table)
    for attribute, value in ((attribute, value) for attribute, values in RANGES.items() for value in values):
        name = f"{attribute}-{value}".replace("_", "-").replace("--", "-minus-")
        about = f"{attribute} {value}, with four query heads, is outside its range."
        mentions = attribute if isinstance(value, float) else f"{attribute}, {value}"
        for begin in (fused, rows):
            yield from refusals(begin, BATCH, [wrong(attribute, value, name, about, mentions=mentions)])


def of_the_cache() -> Iterator[Case]:
    """What the changes of a row do not say."""
    about = "quant_bit 8 with the scale that exports without one give: shape [0]."
    case = fused("refuse-scale-empty", about, "f16 int8 f16", proves="scale.required", **QUANT)
    case.set_scale(np.zeros(0, np.float16))
    yield case.refuse("scale_missing", ["scale", "quant_bit"], *BATCH)
    about = "Four key heads of the attributes, two of keys and cache."
    case = fused("refuse-heads-of-keys", about, "f32 f32", proves="inputs.shapes")
    inputs = vars(case.inputs(*BATCH))
    del case.attributes["num_kv_heads"]
    yield case.refuse("shape_mismatch", ["current_key", 2, 4], **inputs)
    about = "The cache has another number of heads than the keys."
    case = fused("refuse-heads-of-cache", about, "f32 f32", proves="inputs.shapes")
    key, value = (random_values(f"{case.name} {tensor}", (4, 4, 8), "float32") for tensor in ("key", "value"))
    changes = dict(current_key=key, current_value=value, num_kv_heads=4)
    yield case.refuse("shape_mismatch", ["cache", 2, 4], *BATCH, **changes)
    about = "A refused call between two that succeed changes nothing."
    case = fused("refuse-after-a-call", about, "f32 f32", proves="refusal-leaves-memory")
    case.call(*BATCH)
    case.refuse("cache_range", ["cachestarts"], *BATCH, cachestarts=[0, 10])
    yield case.call(Sequence(2, 1, 0), Sequence(3, 1, 4), decoding_batches=2)
