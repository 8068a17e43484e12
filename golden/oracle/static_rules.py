"""The rules of a legal call of static batching: every broken one of the first stage that has one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .call import Types
from .rules import attribute_rules, first_broken, scale_rank_rules, size_rules, type_rules
from .static_batching import STATIC_LAYOUTS, StaticAttributes, StaticInputs, static_cache_shape


def broken_static_rules(
    inputs: StaticInputs, cache: np.ndarray, scale: np.ndarray | None, attributes: StaticAttributes, types: Types
) -> list[str]:
    """The error kind of every rule broken in the first stage that is not clean; empty for a legal call."""
    shape = inputs.current_key.shape
    return first_broken(
        lambda: attribute_rules(attributes, STATIC_LAYOUTS),
        lambda: type_rules(inputs, scale, attributes, types, ("start_pos",)),
        lambda: rank_rules(inputs, cache, scale, attributes),
        lambda: shape_rules(inputs, cache, scale, attributes),
        lambda: position_rules(inputs, cache, attributes),
        lambda: size_rules(
            attributes.num_repeat, shape[0], inputs.start_pos.item() + shape[1], *shape[2:], inputs.current_key
        ),
    )


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
