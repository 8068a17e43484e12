"""A case of static batching: a cache, a scale, and the calls made on them, run through the oracle as they are added."""

from __future__ import annotations

from collections.abc import Sequence as Listed
from dataclasses import dataclass, field, replace

import numpy as np

from oracle.call import Types
from oracle.static_batching import (
    STATIC_INPUTS,
    StaticAttributes,
    StaticInputs,
    static_cache_shape,
    static_key_value_cache,
)
from oracle.static_rules import broken_static_rules

from ..bits import random_bits, random_scales, random_values
from ..case import LONG_NAMES, Refusal, Success, indices
from ..rules import named as named_rules


@dataclass
class StaticCase:
    """What one folder holds. `cache` and `scale` are the state after the steps so far; the first state is kept too."""

    name: str
    about: str
    rules: list[str]  # the ids of those that it proves
    types: Types
    attributes: dict[str, int]  # only those that the case sets
    num_heads: int
    head_dim: int
    cache: np.ndarray  # by cache_layout; int4 as int8 values
    scale: np.ndarray | None
    any_nan: str | None = None  # why a NaN may be any NaN
    steps: list[Success | Refusal] = field(default_factory=list)

    input_names = STATIC_INPUTS
    domain = "opmx"

    def __post_init__(self) -> None:
        self.first_cache = self.cache.copy()
        self.first_scale = None if self.scale is None else self.scale.copy()

    def call(self, batch: int, start_pos: int, seqlen: int, /, **changes: np.ndarray) -> StaticCase:
        """Adds a call that succeeds: `batch` sequences of `start_pos` past and `seqlen` current tokens each. `changes`
        replace inputs by name."""
        inputs = self.inputs(batch, start_pos, seqlen, changes)
        broken = broken_static_rules(inputs, self.cache, self.scale, self.set_attributes, self.types)
        assert not broken, f"{self.name}: a legal call breaks {broken}"
        key, value = static_key_value_cache(inputs, self.cache, self.scale, self.set_attributes, self.types)
        scale = None if self.scale is None else self.scale.copy()
        self.steps.append(Success(inputs, key, value, self.cache.copy(), scale))
        return self

    def refuse(
        self, error: str, mentions: Listed[object], batch: int, start_pos: int, seqlen: int, /, **changes: np.ndarray
    ) -> StaticCase:
        """Adds a call that breaks the rule `error` and no other."""
        inputs = self.inputs(batch, start_pos, seqlen, changes)
        broken = broken_static_rules(inputs, self.cache, self.scale, self.set_attributes, self.types)
        assert broken == [error], f"{self.name}: breaks {broken}, not {error} alone"
        self.steps.append(Refusal(inputs, error, [str(mention) for mention in mentions]))
        return self

    @property
    def set_attributes(self) -> StaticAttributes:
        """The attributes with the defaults for those that the case leaves out."""
        return StaticAttributes(**self.attributes)

    def inputs(self, batch: int, start_pos: int, seqlen: int, changes: dict[str, np.ndarray]) -> StaticInputs:
        """The inputs of the next call: random current tokens."""
        step = len(self.steps)
        shape = (batch, seqlen, self.num_heads, self.head_dim)
        inputs = StaticInputs(
            current_key=random_values(f"{self.name} {step} current_key", shape, self.types.T1),
            current_value=random_values(f"{self.name} {step} current_value", shape, self.types.T1),
            # A scalar or of shape [1]: even steps the one, odd steps the other.
            start_pos=indices(start_pos).reshape(() if step % 2 == 0 else (1,)),
        )
        assert changes.keys() <= set(STATIC_INPUTS), changes.keys()
        return replace(inputs, **changes)


def begin(
    name: str,
    about: str,
    types: str,
    *,
    proves: str,
    num_heads: int = 2,
    head_dim: int = 8,
    max_b: int = 3,
    max_s: int = 6,
    cache: np.ndarray | None = None,
    scale: np.ndarray | None = None,
    any_nan: str | None = None,
    **attributes: int,
) -> StaticCase:
    """A case without steps; `types` is "T1 T2" or "T1 T2 T3" in short names, `proves` the ids of rules.

    Where cache and scale are not given, the cache holds random bytes (finite floats where the call converts them) and
    the scale random steps, in the shapes that the other arguments make legal. Attributes are written as they are given.
    """
    named = Types(*(LONG_NAMES[short] for short in types.split()))
    given = StaticAttributes(**attributes)
    outer = (given.cache_layout, max_b, max_s, given.num_layer, num_heads)
    if cache is None:
        fill = random_bits if named.T1 == named.T2 else random_values
        cache = fill(f"{name} cache", static_cache_shape(*outer, head_dim), named.T2)
    if scale is None and named.T3 is not None:
        shape = static_cache_shape(*outer, head_dim // given.quant_group)
        scale = random_scales(f"{name} scale", shape, named.T3)
    rules = named_rules("StaticKeyValueCache", proves, name)
    return StaticCase(name, about, rules, named, attributes, num_heads, head_dim, cache, scale, any_nan)
