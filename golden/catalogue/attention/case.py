"""Cases of the attention operators: over a cache, and over packed keys and values."""

from __future__ import annotations

from collections.abc import Sequence as Listed
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

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
from ..case import LONG_NAMES, Case, Sequence, starts_and_bounds


@dataclass
class AttentionCase(Case):
    """A case of MultiHeadCacheAttention."""

    query_heads: int = 0
    has_mass: bool = False

    page: ClassVar[str] = "MultiHeadCacheAttention"
    input_names, attributes_type = CACHE_ATTENTION_INPUTS, AttentionAttributes
    fill = staticmethod(random_values)  # a case that begins with past tokens has numbers there, not any bits

    @property
    def heading(self) -> dict[str, Any]:
        """The operator, and the outputs where there are others than it always has."""
        outputs = {"outputs": ["attn_output", "attention_mass"]} if self.has_mass else {}
        return {"operator": self.page} | outputs

    def with_mass(self) -> Self:
        """The case, whose calls give attention_mass, too."""
        self.has_mass = True
        return self

    def inputs(self, *sequences: Sequence, **changes: Any) -> Any:
        """The inputs of the next call: random tensors, indices that follow from the sequences."""
        if isinstance(changes.get("decoding_batches"), int):
            changes["decoding_batches"] = self.one(changes["decoding_batches"])
        query = self.random("query", sum(sequence.seqlen for sequence in sequences), self.query_heads, self.head_dim)
        return replace(self.given(sequences, query=query, decoding_batches=self.one(0)), **changes)

    def given(self, sequences: Listed[Sequence], **common: np.ndarray) -> Any:
        """The inputs with those that both operators have."""
        return CacheAttentionInputs(**vars(super().inputs(*sequences)), **common)

    def run(self, inputs: Any) -> dict[str, np.ndarray]:
        given = (inputs, self.cache, self.scale, self.set_attributes, self.types)
        result = multi_head_cache_attention(*given, has_mass=self.has_mass)
        outputs, of_unrounded = rounded(result), rounded(result.unrounded) if result.unrounded else {}
        differ = any(array.tobytes() != outputs[name].tobytes() for name, array in of_unrounded.items())
        return outputs | {f"unrounded.{name}": array for name, array in of_unrounded.items() if differ}


@dataclass
class PackedCase(AttentionCase):
    """A case of MultiHeadAttention."""

    page, input_names = "MultiHeadAttention", ATTENTION_INPUTS

    def given(self, sequences: Listed[Sequence], **common: np.ndarray) -> AttentionInputs:
        """The inputs with those that both operators have."""
        starts = starts_and_bounds(self, sequences)
        shape = (starts["kvstarts"][-1], self.num_heads, self.head_dim)
        return AttentionInputs(key=self.random("key", *shape), value=self.random("value", *shape), **starts, **common)

    def run(self, inputs: AttentionInputs) -> dict[str, np.ndarray]:
        return rounded(multi_head_attention(inputs, self.set_attributes, has_mass=self.has_mass))


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
) -> AttentionCase:
    """A case of MultiHeadCacheAttention without steps. Heads are query heads and key heads, `proves` names rules."""
    attention = attention_attributes(heads, head_dim, attributes)
    of_cache = {name: value for name, value in attributes.items() if name not in attention}
    sizes = dict(num_heads=heads[1], head_dim=head_dim)
    case = AttentionCase.begin(name, about, types, max_t, proves=proves, **sizes, **of_cache)
    case.attributes, case.query_heads = attention | of_cache, heads[0]
    return case


def packed(
    name: str, about: str, T1: str, heads: tuple[int, int], head_dim: int, *, proves: str, **attributes: float
) -> PackedCase:
    types = Types(LONG_NAMES[T1], LONG_NAMES[T1])
    given = attention_attributes(heads, head_dim, attributes)
    return PackedCase(name, about, proves.split(), types, given, heads[1], head_dim, None, None, query_heads=heads[0])


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


def small_scores(case: AttentionCase, *batch: Sequence, **changes: Any) -> AttentionCase:
    """The case with a call whose queries see more than one key each: their scores are small."""
    query = case.inputs(*batch).query
    return case.call(*batch, query=(query / query.dtype.type(16)).astype(query.dtype), **changes)


def mask(
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
    values = random_values(f"{case.name} mask", shape, case.types.T1)
    values[random_integers(f"{case.name} forbidden", shape, 0, 1000) < forbidden * 1000] = -np.inf
    outside = np.full(shape, np.nan, values.dtype)
    row = column = 0
    for sequence, kvlen in zip(sequences, kvlens, strict=True):
        block = (..., slice(row, row + sequence.seqlen), slice(column, column + kvlen))
        outside[block] = values[block]
        row, column = row + sequence.seqlen, column + kvlen
    return outside
