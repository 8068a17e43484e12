"""Cases of the attention operators: over a cache, and over packed keys and values."""

from __future__ import annotations

from collections.abc import Sequence as Listed
from typing import Any

import numpy as np

from oracle.attention import Result, multi_head_attention, multi_head_cache_attention
from oracle.attention_call import (
    ATTENTION_INPUTS,
    CACHE_ATTENTION_INPUTS,
    AttentionAttributes,
    AttentionInputs,
    CacheAttentionInputs,
)
from oracle.call import Types

from ..bits import random_integers, random_values
from ..case import LONG_NAMES, Case, Operator, Sequence, begin_case, cache_inputs, starts_and_bounds


def query_of(case: Case, sequences: Listed[Sequence]) -> dict[str, np.ndarray]:
    """The inputs that every attention has and KeyValueCache has not."""
    tokens, query_heads = sum(sequence.seqlen for sequence in sequences), int(case.attributes["num_heads"])
    return dict(query=case.random("query", tokens, query_heads, case.head_dim), decoding_batches=case.one(0))


def inputs_over_cache(case: Case, *sequences: Sequence) -> CacheAttentionInputs:
    return CacheAttentionInputs(**vars(cache_inputs(case, *sequences)), **query_of(case, sequences))


def packed_inputs(case: Case, *sequences: Sequence) -> AttentionInputs:
    query, starts = query_of(case, sequences), starts_and_bounds(case, sequences)
    shape = (starts["kvstarts"][-1], case.num_heads, case.head_dim)
    return AttentionInputs(key=case.random("key", *shape), value=case.random("value", *shape), **starts, **query)


def run_over_cache(case: Case, inputs: CacheAttentionInputs) -> dict[str, np.ndarray]:
    given = (inputs, case.cache, case.scale, case.set_attributes, case.types)
    result = multi_head_cache_attention(*given, has_mass=case.has_mass)
    outputs, of_unrounded = rounded(result), rounded(result.unrounded) if result.unrounded else {}
    differ = any(array.tobytes() != outputs[name].tobytes() for name, array in of_unrounded.items())
    return outputs | {f"unrounded.{name}": array for name, array in of_unrounded.items() if differ}


def run_packed(case: Case, inputs: AttentionInputs) -> dict[str, np.ndarray]:
    return rounded(multi_head_attention(inputs, case.set_attributes, has_mass=case.has_mass))


OVER_CACHE = Operator(
    heading={"operator": "MultiHeadCacheAttention"},
    inputs=inputs_over_cache,
    input_names=CACHE_ATTENTION_INPUTS,
    run=run_over_cache,
    attributes=AttentionAttributes,
    fill=random_values,  # a case that begins with past tokens has numbers there, not any bits
)
PACKED = Operator({"operator": "MultiHeadAttention"}, packed_inputs, ATTENTION_INPUTS, run_packed, AttentionAttributes)


def over_cache(
    name: str,
    about: str,
    types: str,
    heads: tuple[int, int],
    head_dim: int,
    *,
    proves: str,
    max_t: int = 12,
    **attributes: float,
) -> Case:
    """A case of MultiHeadCacheAttention without steps. Heads are query heads and key heads, `proves` names rules."""
    attention = attention_attributes(heads, head_dim, attributes)
    of_cache = {name: value for name, value in attributes.items() if name not in attention}
    sizes = dict(num_heads=heads[1], head_dim=head_dim)
    case = begin_case(OVER_CACHE, name, about, types, max_t, proves=proves, **sizes, **of_cache)
    case.attributes = attention | of_cache
    return case


def packed(
    name: str, about: str, T1: str, heads: tuple[int, int], head_dim: int, *, proves: str, **attributes: float
) -> Case:
    types = Types(LONG_NAMES[T1], LONG_NAMES[T1])
    given = attention_attributes(heads, head_dim, attributes)
    return Case(PACKED, name, about, proves.split(), types, given, heads[1], head_dim)


def attention_attributes(heads: tuple[int, int], head_dim: int, attributes: dict[str, float]) -> dict[str, float]:
    """The attributes of the attention among the given ones, and those that follow from the heads."""
    names = ("is_causal", "is_alibi", "local_window_size", "scale", "softcap")
    own = {name: attributes[name] for name in names if name in attributes}
    assert all(np.float32(value) == value for value in own.values()), "attributes are int64 or float32"
    num_kv_heads = {} if heads[0] == heads[1] else dict(num_kv_heads=heads[1])
    return dict(num_heads=heads[0], head_dim=head_dim) | own | num_kv_heads


def rounded(result: Result) -> dict[str, np.ndarray]:
    """Each output and its tolerance as float32, the tolerance wider by what that may move the output."""
    both = [("attn_output", "tolerance"), ("attention_mass", "mass_tolerance")]
    given = {}
    for name, tolerance in both[: 1 if result.attention_mass is None else 2]:
        exact = getattr(result, name)
        with np.errstate(over="ignore"):
            output = exact.astype(np.float32)
        finite = np.where(np.isfinite(output), output, np.float32(0))
        moved = np.where(np.isfinite(output), np.abs(finite - np.where(np.isfinite(output), exact, 0)), 0)
        allowed = (getattr(result, tolerance) + moved).astype(np.float32)
        widened = np.where(allowed > 0, np.nextafter(allowed, np.float32(np.inf)), np.float32(0))
        given |= {name: output, tolerance: widened}
    return given


def small_scores(case: Case, *batch: Sequence, **changes: Any) -> Case:
    """The case with a call whose queries see more than one key each: their scores are small."""
    query = case.inputs(*batch).query
    return case.call(*batch, query=(query / query.dtype.type(16)).astype(query.dtype), **changes)


def mask(
    case: Case,
    sequences: Listed[Sequence],
    *,
    heads: int | None = None,
    width: int | None = None,
    forbidden: float = 0.2,
) -> np.ndarray:
    """A mask of rank 2, or of rank 3 with a plane for each of `heads`: numbers and -inf in the blocks of the sequences,
    NaN everywhere else, which nobody may read."""
    tokens = sum(sequence.seqlen for sequence in sequences)
    kvlens = [sequence.start_pos + sequence.seqlen for sequence in sequences]
    shape = (*(() if heads is None else (heads,)), tokens, sum(kvlens) if width is None else width)
    values = random_values(f"{case.name} mask", shape, case.types.T1)
    values[random_integers(f"{case.name} forbidden", shape, 0, 1000) < forbidden * 1000] = -np.inf
    outside = np.full(shape, np.nan, values.dtype)
    row = column = 0
    for sequence, kvlen in zip(sequences, kvlens, strict=True):
        block = (..., slice(row, row + sequence.seqlen), slice(column, column + kvlen))
        outside[block] = values[block]
        row, column = row + sequence.seqlen, column + kvlen
    return outside
