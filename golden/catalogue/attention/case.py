"""A case of an attention operator: calls made on a cache, or on packed keys and values, run through the oracle."""

from __future__ import annotations

from collections.abc import Sequence as Listed
from dataclasses import dataclass, field, replace

import numpy as np

from oracle.attention import Result, multi_head_attention, multi_head_cache_attention
from oracle.attention_call import (
    ATTENTION_INPUTS,
    CACHE_ATTENTION_INPUTS,
    AttentionAttributes,
    AttentionInputs,
    CacheAttentionInputs,
)
from oracle.attention_rules import broken_attention_rules, broken_cache_attention_rules
from oracle.call import Types

from .. import case as cache_case
from ..bits import random_integers, random_values
from ..case import LONG_NAMES, Sequence, indices
from ..rules import named as named_rules


@dataclass
class Success:
    """A call that must succeed, with its output and, where there is a cache, the state after it."""

    inputs: AttentionInputs | CacheAttentionInputs
    result: Result
    cache: np.ndarray | None
    scale: np.ndarray | None


@dataclass
class AttentionCase:
    """What one folder holds. Without `cached`, a case of MultiHeadAttention; else of MultiHeadCacheAttention."""

    name: str
    about: str
    rules: list[str]  # the ids of those that it proves
    types: Types
    attributes: dict[str, int]  # only those that the case sets
    heads: tuple[int, int]  # of the random tensors: query heads and key heads
    head_dim: int  # of the random tensors
    cached: cache_case.Case | None  # the cache, its state, and the inputs that are KeyValueCache's
    steps: list[Success | cache_case.Refusal] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.cached is not None:
            self.cached.steps = self.steps  # it labels its random tensors with their number

    @property
    def operator(self) -> str:
        """The name of the case's operator."""
        return "MultiHeadAttention" if self.cached is None else "MultiHeadCacheAttention"

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of the tensors that a call is given, beside cache and scale."""
        return ATTENTION_INPUTS if self.cached is None else CACHE_ATTENTION_INPUTS

    @property
    def set_attributes(self) -> AttentionAttributes:
        """The attributes with the defaults for those that the case leaves out."""
        return AttentionAttributes(**self.attributes)

    def call(self, *sequences: Sequence, **changes: np.ndarray) -> AttentionCase:
        """Adds a call that succeeds. `changes` replace inputs by name."""
        inputs = self.inputs(sequences, changes)
        broken = self.broken_rules(inputs)
        assert not broken, f"{self.name}: a legal call breaks {broken}"
        if self.cached is None:
            self.steps.append(Success(inputs, multi_head_attention(inputs, self.set_attributes), None, None))
            return self
        cache, scale = self.cached.cache, self.cached.scale
        result = multi_head_cache_attention(inputs, cache, scale, self.set_attributes, self.types)
        self.steps.append(Success(inputs, result, cache.copy(), None if scale is None else scale.copy()))
        return self

    def refuse(self, error: str, mentions: Listed[object], *sequences: Sequence, **changes: object) -> AttentionCase:
        """Adds a call that breaks the rule `error` and no other."""
        inputs = self.inputs(sequences, changes)
        broken = self.broken_rules(inputs)
        assert broken == [error], f"{self.name}: breaks {broken}, not {error} alone"
        self.steps.append(cache_case.Refusal(inputs, error, [str(mention) for mention in mentions]))
        return self

    def broken_rules(self, inputs: AttentionInputs | CacheAttentionInputs) -> list[str]:
        """The rules that a call breaks."""
        if self.cached is None:
            return broken_attention_rules(inputs, self.set_attributes, self.types)
        cache, scale = self.cached.cache, self.cached.scale
        return broken_cache_attention_rules(inputs, cache, scale, self.set_attributes, self.types)

    def inputs(self, sequences: Listed[Sequence], changes: dict[str, object]) -> AttentionInputs | CacheAttentionInputs:
        """The inputs of the next call: random tensors, indices that follow from the sequences."""
        step = len(self.steps)
        label = f"{self.name} {step}"
        scalar = () if step % 2 == 1 else (1,)  # the specification's shape, and that of real exports
        seqlens = [sequence.seqlen for sequence in sequences]
        query_shape = (sum(seqlens), self.heads[0], self.head_dim)
        query = random_values(f"{label} query", query_shape, self.types.T1)
        decoding_batches = indices([0]).reshape(scalar)
        if self.cached is not None:
            common = vars(self.cached.inputs(sequences, {}))
            inputs = CacheAttentionInputs(**common, query=query, decoding_batches=decoding_batches)
        else:
            kvlens = [sequence.start_pos + sequence.seqlen for sequence in sequences]
            shape = (sum(kvlens), self.heads[1], self.head_dim)
            inputs = AttentionInputs(
                query=query,
                key=random_values(f"{label} key", shape, self.types.T1),
                value=random_values(f"{label} value", shape, self.types.T1),
                seqstarts=indices([sum(seqlens[:b]) for b in range(len(sequences) + 1)]),
                kvstarts=indices([sum(kvlens[:b]) for b in range(len(sequences) + 1)]),
                decoding_batches=decoding_batches,
                max_seqlen=indices([max(seqlens, default=0)]).reshape(scalar),
                max_kvlen=indices([max(kvlens, default=0)]).reshape(scalar),
            )
        if isinstance(changes.get("decoding_batches"), int):
            changes = changes | dict(decoding_batches=indices([changes["decoding_batches"]]).reshape(scalar))
        assert changes.keys() <= set(self.input_names), changes.keys()
        return replace(inputs, **changes)


def over_cache(
    name: str,
    about: str,
    types: str,
    heads: tuple[int, int],
    head_dim: int,
    *,
    proves: str,
    max_t: int = 12,
    **attributes: int,
) -> AttentionCase:
    """A case of MultiHeadCacheAttention without steps. Heads are query heads and key heads, `proves` names rules."""
    attention = attention_attributes(heads, head_dim, attributes)
    of_cache = {name: value for name, value in attributes.items() if name not in attention}
    proven = dict(proves=proves, page="MultiHeadCacheAttention")
    sizes = dict(num_heads=heads[1], head_dim=head_dim, max_t=max_t)
    cached = cache_case.begin(name, about, types, **proven, **sizes, **of_cache)
    if cached.types.T1 == cached.types.T2:  # a case that begins with past tokens has numbers there, not any bits
        cached.cache[...] = random_values(f"{name} cache", cached.cache.shape, cached.types.T2)
        cached.first_cache = cached.cache.copy()
    return AttentionCase(name, about, cached.rules, cached.types, attention | of_cache, heads, head_dim, cached)


def packed(
    name: str, about: str, T1: str, heads: tuple[int, int], head_dim: int, *, proves: str, **attributes: int
) -> AttentionCase:
    """A case of MultiHeadAttention without steps."""
    types = Types(LONG_NAMES[T1], LONG_NAMES[T1])
    rules = named_rules("MultiHeadAttention", proves, name)
    given = attention_attributes(heads, head_dim, attributes)
    return AttentionCase(name, about, rules, types, given, heads, head_dim, None)


def attention_attributes(heads: tuple[int, int], head_dim: int, attributes: dict[str, int]) -> dict[str, int]:
    """The attributes of the attention among the given ones, and those that follow from the heads."""
    own = {name: attributes[name] for name in ("is_causal", "is_alibi") if name in attributes}
    num_kv_heads = {} if heads[0] == heads[1] else dict(num_kv_heads=heads[1])
    return dict(num_heads=heads[0], head_dim=head_dim) | own | num_kv_heads


def mask(
    label: str,
    case: AttentionCase,
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
    values = random_values(f"{label} mask", shape, case.types.T1)
    values[random_integers(f"{label} forbidden", shape, 0, 1000) < forbidden * 1000] = -np.inf
    outside = np.full(shape, np.nan, values.dtype)
    row = column = 0
    for sequence, kvlen in zip(sequences, kvlens, strict=True):
        block = (..., slice(row, row + sequence.seqlen), slice(column, column + kvlen))
        outside[block] = values[block]
        row, column = row + sequence.seqlen, column + kvlen
    return outside
