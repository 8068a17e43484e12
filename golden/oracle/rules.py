"""The rules of a legal call. Collects every broken rule of the first stage that has one, so that a case which means to
break one rule is known to break no other."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import numpy as np

from .call import STATIC_SCALES, Attributes, Inputs, Types
from .key_value_cache import cache_slot, kvlen, seqlen
from .layouts import LAYOUTS, cache_shape, max_t, static_scale_shape

INDEX_INPUTS = ("seqstarts", "kvstarts", "cachestarts", "start_pos", "max_seqlen", "max_kvlen")
FLOATS = ("float32", "float16")
SCORED = (*FLOATS, "bfloat16")  # the T1 of attention and of quantization


def broken_rules(
    inputs: Inputs, cache: np.ndarray, scale: np.ndarray | None, attributes: Attributes, types: Types
) -> list[str]:
    """The error kind of every rule broken in the first stage that is not clean; empty for a legal call."""
    return first_broken(
        lambda: attribute_rules(attributes),
        lambda: type_rules(inputs, scale, attributes, types),
        lambda: rank_rules(inputs, cache, scale, attributes),
        lambda: shape_rules(inputs, cache, scale, attributes),
        lambda: starts_rules((inputs.seqstarts, len(inputs.current_key)), (inputs.kvstarts, None)),
        lambda: [*length_rules(inputs), *bound_rules(inputs)],
        lambda: slot_rules(inputs, max_t(attributes.cache_layout, cache.shape), attributes),
        lambda: conflict_rules(inputs, attributes),
        lambda: size_rules(
            attributes.num_repeat, inputs.kvstarts[-1], *inputs.current_key.shape[1:], inputs.current_key
        ),
    )


def first_broken(*stages: Callable[[], Iterable[str]]) -> list[str]:
    """What the first stage reports that reports anything."""
    return next((broken for broken in (list(stage()) for stage in stages) if broken), [])


def attribute_rules(attributes: Any, layouts: Collection[int] = LAYOUTS) -> Iterator[str]:
    """Each attribute within its range, also where another attribute makes it idle."""
    floats = (1, STATIC_SCALES) if hasattr(attributes, "cache_mode") else (1,)  # static batching has no static scales
    in_range = (
        attributes.num_layer >= 1,
        0 <= attributes.layer_idx < attributes.num_layer or attributes.num_layer < 1,
        attributes.quant_bit in (0, 4, 8),
        attributes.quant_group >= 1,
        attributes.quant_group % 2 == 0 or attributes.quant_bit != 4,
        attributes.num_repeat >= 1,
        getattr(attributes, "cache_mode", 0) in (0, 1),
        attributes.cache_layout in layouts,
        getattr(attributes, "page_size", 1) >= 1,
        attributes.quant_type == 0 or (attributes.quant_type in floats and attributes.quant_bit == 8),
        getattr(attributes, "quant_rotation", 0) in ((0, 1) if attributes.quant_bit != 0 else (0,)),
    )
    yield from ("attribute_out_of_range" for legal in in_range if not legal)


def types_go_together(types: Types, quant_bit: int, quant_type: int) -> bool:
    """Whether the table has these types; a T3 that is missing is another rule's."""
    T1, T2 = types.T1, types.T2
    legal = {
        0: (T1 in FLOATS and T2 in FLOATS) or (T1 == T2 and T1 in ("int8", "bfloat16")),
        8: T1 in SCORED and T2 == ("float8e4m3fn" if quant_type != 0 else "int8"),
        4: T1 in SCORED and T2 == "int4",
    }[quant_bit]
    return legal and types.T3 in (*FLOATS, None)


def type_rules(
    inputs: Any, scale: np.ndarray | None, attributes: Any, types: Types, indices: tuple[str, ...] = INDEX_INPUTS
) -> Iterator[str]:
    """The combination of types is in the table, and every tensor has the type it should have."""
    if not types_go_together(types, attributes.quant_bit, attributes.quant_type):
        yield "illegal_types"
    elif attributes.quant_bit != 0 and scale is None:
        yield "scale_missing"
    if inputs.current_value.dtype != inputs.current_key.dtype:
        yield "type_mismatch"
    yield from ("type_mismatch" for name in indices if getattr(inputs, name).dtype != np.int64)


def rank_rules(inputs: Inputs, cache: np.ndarray, scale: np.ndarray | None, attributes: Attributes) -> Iterator[str]:
    """Every tensor has its rank; max_seqlen and max_kvlen have rank 0 or 1."""
    if attributes.cache_mode == 1 and inputs.cachestarts.ndim == 1:
        yield "legacy_page_table"
    elif inputs.cachestarts.ndim != 1 + attributes.cache_mode:
        yield "rank_mismatch"
    ranks = (
        inputs.current_key.ndim == 3,
        inputs.current_value.ndim == 3,
        inputs.seqstarts.ndim == 1,
        inputs.kvstarts.ndim == 1,
        inputs.start_pos.ndim == 1,
        inputs.max_seqlen.ndim in (0, 1),
        inputs.max_kvlen.ndim in (0, 1),
        cache.ndim == 5,
    )
    yield from ("rank_mismatch" for legal in ranks if not legal)
    rank = 3 if attributes.quant_type == STATIC_SCALES else 5
    yield from scale_rank_rules(scale, cache, rank, attributes.quant_bit)


def scale_rank_rules(scale: np.ndarray | None, cache: np.ndarray, rank: int, quant_bit: int) -> Iterator[str]:
    """A scale that is needed has its rank; one without elements, for a cache that has some, stands for none."""
    if quant_bit != 0 and scale.size == 0 and cache.size != 0:
        yield "scale_missing"
    elif quant_bit != 0 and scale.ndim != rank:
        yield "rank_mismatch"


def shape_rules(inputs: Inputs, cache: np.ndarray, scale: np.ndarray | None, attributes: Attributes) -> Iterator[str]:
    """B, T, H, Dh, L, MaxT agree across the tensors, one report per axis that does not."""
    pairs: list[tuple[int, int]] = []
    pairs += zip(inputs.current_value.shape, inputs.current_key.shape, strict=True)
    batch = inputs.seqstarts.size - 1
    if batch < 0:
        yield "shape_mismatch"
        return
    pairs += [(inputs.kvstarts.size, batch + 1), (inputs.cachestarts.shape[0], batch), (inputs.start_pos.size, batch)]
    pairs += [(inputs.max_seqlen.size, 1), (inputs.max_kvlen.size, 1)]
    _, num_heads, head_dim = inputs.current_key.shape
    layout = attributes.cache_layout
    outer = (layout, max_t(layout, cache.shape), attributes.num_layer, num_heads)
    pairs += zip(cache.shape, cache_shape(*outer, head_dim), strict=True)
    if attributes.quant_type == STATIC_SCALES:
        pairs += zip(scale.shape, static_scale_shape(scale.shape, attributes.num_layer, num_heads), strict=True)
    elif attributes.quant_bit != 0:
        pairs += zip(scale.shape, cache_shape(*outer, head_dim // attributes.quant_group), strict=True)
        if head_dim % attributes.quant_group != 0:
            yield "head_dim_not_divisible"
    yield from ("shape_mismatch" for got, expected in pairs if got != expected)


def starts_rules(*starts_and_rows: tuple[np.ndarray, int | None]) -> Iterator[str]:
    """Starts begin with 0 and never decrease; they end with the rows that they divide, if these are given."""
    for starts, rows in starts_and_rows:
        if starts[0] != 0:
            yield "starts_not_zero"
        yield from ("starts_decrease" for b in range(len(starts) - 1) if starts[b + 1] < starts[b])
        if rows is not None and starts[-1] != rows:
            yield "starts_total"


def length_rules(inputs: Inputs) -> Iterator[str]:
    """kvlen is start_pos + seqlen."""
    for b in range(len(inputs.start_pos)):
        if inputs.start_pos[b] < 0:
            yield "start_pos_negative"
        elif kvlen(inputs, b) != int(inputs.start_pos[b]) + seqlen(inputs, b):
            yield "kvlen_mismatch"


def bound_rules(inputs: Any) -> Iterator[str]:
    """max_seqlen and max_kvlen are upper bounds."""
    for bound, length in ((inputs.max_seqlen, seqlen), (inputs.max_kvlen, kvlen)):
        if bound.item() < max((length(inputs, b) for b in range(len(inputs.seqstarts) - 1)), default=0):
            yield "max_too_small"


def slot_rules(inputs: Inputs, max_t: int, attributes: Attributes) -> Iterator[str]:
    """Every token of the call has a slot in [0, MaxT)."""
    for b in range(len(inputs.start_pos)):
        if attributes.cache_mode == 0:
            first = int(inputs.cachestarts[b])
            if first < 0 or first + kvlen(inputs, b) > max_t:
                yield "cache_range"
            continue
        pages = -(-kvlen(inputs, b) // attributes.page_size)
        if pages > inputs.cachestarts.shape[1]:
            yield "too_many_pages"
            continue
        for p in range(pages):
            used = min(attributes.page_size, kvlen(inputs, b) - p * attributes.page_size)
            first = int(inputs.cachestarts[b, p])
            if first < 0 or first + used > max_t:
                yield "page_range"


def conflict_rules(inputs: Inputs, attributes: Attributes) -> Iterator[str]:
    """No slot is written by two tokens; one report per pair of sequences (or for one sequence) that meet."""
    writers: dict[int, int] = {}
    meetings: Counter[tuple[int, int]] = Counter()
    for b in range(len(inputs.start_pos)):
        for t in range(seqlen(inputs, b)):
            slot = cache_slot(inputs, attributes, b, int(inputs.start_pos[b]) + t)
            if slot in writers:
                meetings[writers[slot], b] += 1
            writers[slot] = b
    yield from ("write_conflict" for _ in meetings)


def size_rules(*factors_and_current: Any) -> Iterator[str]:
    """The bytes of an output, of so many elements of the type of the current tokens, fit in 64 bits."""
    *factors, current = factors_and_current
    if math.prod(map(int, factors)) * current.dtype.itemsize >= 2**63:
        yield "size_overflow"
