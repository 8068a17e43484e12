"""The rules of a legal call of the attention operators: every broken one of the first stage that has one."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from . import rules
from .attention import given
from .attention_call import AttentionAttributes, AttentionInputs, CacheAttentionInputs
from .call import NUMPY_TYPES, Types
from .layouts import max_t


def broken_cache_attention_rules(
    inputs: CacheAttentionInputs,
    cache: np.ndarray,
    scale: np.ndarray | None,
    attributes: AttentionAttributes,
    types: Types,
) -> list[str]:
    """What a call of MultiHeadCacheAttention breaks: rules of KeyValueCache, and those of the attention."""
    return rules.first_broken(
        lambda: [*attribute_rules(attributes), *rules.attribute_rules(attributes)],
        lambda: [*type_rules(inputs, types.T1), *rules.type_rules(inputs, scale, attributes, types)],
        lambda: [*rank_rules(inputs), *rules.rank_rules(inputs, cache, scale, attributes)],
        lambda: [
            *shape_rules(inputs, [inputs.current_key], len(inputs.query), attributes),
            *rules.shape_rules(inputs, cache, scale, attributes),
        ],
        lambda: rules.starts_rules((inputs.seqstarts, len(inputs.current_key)), (inputs.kvstarts, None)),
        lambda: [*rules.length_rules(inputs), *rules.bound_rules(inputs), *bound_rules(inputs)],
        lambda: rules.slot_rules(inputs, max_t(attributes.cache_layout, cache.shape), attributes),
        lambda: rules.conflict_rules(inputs, attributes),
    )


def broken_attention_rules(inputs: AttentionInputs, attributes: AttentionAttributes, types: Types) -> list[str]:
    """What a call of MultiHeadAttention breaks."""
    return rules.first_broken(
        lambda: attribute_rules(attributes),
        lambda: [*type_rules(inputs, types.T1), *packed_type_rules(inputs)],
        lambda: [*rank_rules(inputs), *packed_rank_rules(inputs)],
        lambda: [
            *shape_rules(inputs, [inputs.key, inputs.value], len(inputs.key), attributes),
            *packed_shape_rules(inputs),
        ],
        lambda: rules.starts_rules((inputs.seqstarts, len(inputs.query)), (inputs.kvstarts, len(inputs.key))),
        lambda: [*rules.bound_rules(inputs), *bound_rules(inputs)],
    )


def attribute_rules(attributes: AttentionAttributes) -> Iterator[str]:
    """Each attribute of the attention within its range."""
    in_range = (
        attributes.num_heads >= 1,
        attributes.head_dim >= 1,
        attributes.is_causal in (0, 1),
        attributes.is_alibi in (0, 1),
        attributes.num_kv_heads >= 0,
        attributes.num_kv_heads <= 0 or attributes.num_heads % attributes.num_kv_heads == 0,
        math.isfinite(attributes.scale),
        math.isfinite(attributes.softcap) and attributes.softcap >= 0,
        attributes.local_window_size == -1 or attributes.local_window_size >= 1,
    )
    yield from ("attribute_out_of_range" for legal in in_range if not legal)


def type_rules(inputs: AttentionInputs | CacheAttentionInputs, T1: str) -> Iterator[str]:
    """A T1 that has scores, and what must be of it; decoding_batches is int64."""
    if T1 not in rules.SCORED:
        yield "attention_type"
    for tensor in (inputs.query, given(inputs.attn_mask), given(inputs.head_sink)):
        if tensor is not None and tensor.dtype != NUMPY_TYPES[T1]:
            yield "type_mismatch"
    if inputs.decoding_batches.dtype != np.int64:
        yield "type_mismatch"


def rank_rules(inputs: AttentionInputs | CacheAttentionInputs) -> Iterator[str]:
    """query has three axes, a mask two or three, a sink one, decoding_batches one or none."""
    mask, sinks = given(inputs.attn_mask), given(inputs.head_sink)
    ranks = (
        inputs.query.ndim == 3,
        mask is None or mask.ndim in (2, 3),
        sinks is None or sinks.ndim == 1,
        inputs.decoding_batches.ndim in (0, 1),
    )
    yield from ("rank_mismatch" for legal in ranks if not legal)


def shape_rules(
    inputs: AttentionInputs | CacheAttentionInputs,
    keys: list[np.ndarray],
    key_rows: int,
    attributes: AttentionAttributes,
) -> Iterator[str]:
    """Heads are those of the attributes, rows those of the other tensors; one report per axis that does not agree."""
    tokens, _, head_dim = inputs.query.shape
    pairs = list(zip(inputs.query.shape[1:], (attributes.num_heads, attributes.head_dim), strict=True))
    for tensor in keys:
        pairs += zip(tensor.shape, (key_rows, attributes.kv_heads, head_dim), strict=True)
    mask = given(inputs.attn_mask)
    if mask is not None:
        pairs += zip(mask.shape[:-1], (attributes.num_heads, tokens)[3 - mask.ndim :], strict=True)
    if given(inputs.head_sink) is not None:
        pairs.append((inputs.head_sink.size, attributes.num_heads))
    pairs.append((inputs.decoding_batches.size, 1))
    yield from ("shape_mismatch" for got, expected in pairs if got != expected)


def bound_rules(inputs: AttentionInputs | CacheAttentionInputs) -> Iterator[str]:
    """A mask has a column for every key, and decoding_batches counts sequences."""
    mask = given(inputs.attn_mask)
    if mask is not None and mask.shape[-1] < inputs.kvstarts[-1]:
        yield "mask_too_small"
    if inputs.decoding_batches.item() < 0:
        yield "decoding_batches_negative"


def packed_type_rules(inputs: AttentionInputs) -> Iterator[str]:
    """key and value are of T1, as query is; the other indices are int64."""
    for tensor in (inputs.key, inputs.value):
        if tensor.dtype != inputs.query.dtype:
            yield "type_mismatch"
    for name in ("seqstarts", "kvstarts", "max_seqlen", "max_kvlen"):
        if getattr(inputs, name).dtype != np.int64:
            yield "type_mismatch"


def packed_rank_rules(inputs: AttentionInputs) -> Iterator[str]:
    """Ranks of what MultiHeadCacheAttention does not have, or has with KeyValueCache."""
    ranks = (
        inputs.key.ndim == 3,
        inputs.value.ndim == 3,
        inputs.seqstarts.ndim == 1,
        inputs.kvstarts.ndim == 1,
        inputs.max_seqlen.ndim in (0, 1),
        inputs.max_kvlen.ndim in (0, 1),
    )
    yield from ("rank_mismatch" for legal in ranks if not legal)


def packed_shape_rules(inputs: AttentionInputs) -> Iterator[str]:
    """Starts of as many sequences, and bounds of one number."""
    if inputs.seqstarts.size == 0 or inputs.kvstarts.size != inputs.seqstarts.size:
        yield "shape_mismatch"
    yield from ("shape_mismatch" for bound in (inputs.max_seqlen, inputs.max_kvlen) if bound.size != 1)
