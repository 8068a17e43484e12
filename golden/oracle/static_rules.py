"""The rules of a legal call of static batching: every broken one of the first stage that has one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .call import Types
from .rules import scale_rank_rules, types_go_together
from .static_batching import STATIC_LAYOUTS, StaticAttributes, StaticInputs, static_cache_shape


def broken_static_rules(
    inputs: StaticInputs, cache: np.ndarray, scale: np.ndarray | None, attributes: StaticAttributes, types: Types
) -> list[str]:
    """The error kind of every rule broken in the first stage that is not clean; empty for a legal call."""
    stages = (
        lambda: attribute_rules(attributes),
        lambda: type_rules(inputs, scale, attributes, types),
        lambda: rank_rules(inputs, cache, scale, attributes),
        lambda: shape_rules(inputs, cache, scale, attributes),
        lambda: position_rules(inputs, cache, attributes),
        lambda: size_rules(inputs, attributes),
    )
    return next((broken for broken in (list(stage()) for stage in stages) if broken), [])


def attribute_rules(attributes: StaticAttributes) -> Iterator[str]:
    """Each attribute within its range, also where another attribute makes it idle."""
    in_range = (
        attributes.num_layer >= 1,
        0 <= attributes.layer_idx < attributes.num_layer or attributes.num_layer < 1,
        attributes.quant_bit in (0, 4, 8),
        attributes.quant_group >= 1,
        attributes.quant_group % 2 == 0 or attributes.quant_bit != 4,
        attributes.num_repeat >= 1,
        attributes.cache_layout in STATIC_LAYOUTS,
    )
    yield from ("attribute_out_of_range" for legal in in_range if not legal)


def type_rules(
    inputs: StaticInputs, scale: np.ndarray | None, attributes: StaticAttributes, types: Types
) -> Iterator[str]:
    """The combination of types is in the table, and every tensor has the type it should have."""
    if not types_go_together(types, attributes.quant_bit):
        yield "illegal_types"
    elif attributes.quant_bit != 0 and scale is None:
        yield "scale_missing"
    if inputs.current_value.dtype != inputs.current_key.dtype:
        yield "type_mismatch"
    if inputs.start_pos.dtype != np.int64:
        yield "type_mismatch"


def rank_rules(
    inputs: StaticInputs, cache: np.ndarray, scale: np.ndarray | None, attributes: StaticAttributes
) -> Iterator[str]:
    """Every tensor has its rank; start_pos has rank 0 or 1."""
    ranks = (
        inputs.current_key.ndim == 4,
        inputs.current_value.ndim == 4,
        inputs.start_pos.ndim in (0, 1),
        cache.ndim == 6,
    )
    yield from ("rank_mismatch" for legal in ranks if not legal)
    yield from scale_rank_rules(scale, cache, 6, attributes.quant_bit)


def shape_rules(
    inputs: StaticInputs, cache: np.ndarray, scale: np.ndarray | None, attributes: StaticAttributes
) -> Iterator[str]:
    """B, S, H, Dh, L, MaxB, MaxS agree across the tensors, one report per axis that does not."""
    pairs = list(zip(inputs.current_value.shape, inputs.current_key.shape, strict=True))
    pairs.append((inputs.start_pos.size, 1))
    batch, _, num_heads, head_dim = inputs.current_key.shape
    max_b, max_s = (length(cache, attributes, axis) for axis in ("MaxB", "MaxS"))
    outer = (attributes.cache_layout, max_b, max_s, attributes.num_layer, num_heads)
    pairs += zip(cache.shape, static_cache_shape(*outer, head_dim), strict=True)
    if attributes.quant_bit != 0:
        pairs += zip(scale.shape, static_cache_shape(*outer, head_dim // attributes.quant_group), strict=True)
        if head_dim % attributes.quant_group != 0:
            yield "head_dim_not_divisible"
    yield from ("shape_mismatch" for got, expected in pairs if got != expected)
    if batch > max_b:
        yield "batch_too_large"


def length(cache: np.ndarray, attributes: StaticAttributes, axis: str) -> int:
    """The length of one axis of the cache."""
    return cache.shape[STATIC_LAYOUTS[attributes.cache_layout].index(axis)]


def position_rules(inputs: StaticInputs, cache: np.ndarray, attributes: StaticAttributes) -> Iterator[str]:
    """start_pos is at least 0 and start_pos + S at most MaxS."""
    if inputs.start_pos.item() < 0:
        yield "start_pos_negative"
    elif inputs.start_pos.item() + inputs.current_key.shape[1] > length(cache, attributes, "MaxS"):
        yield "position_range"


def size_rules(inputs: StaticInputs, attributes: StaticAttributes) -> Iterator[str]:
    """The bytes of an output fit in 64 bits."""
    batch, seqlen, num_heads, head_dim = inputs.current_key.shape
    elements = batch * (inputs.start_pos.item() + seqlen) * num_heads * attributes.num_repeat * head_dim
    if elements * inputs.current_key.dtype.itemsize >= 2**63:
        yield "size_overflow"
