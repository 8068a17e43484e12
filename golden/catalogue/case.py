"""A case: a cache, a scale, and the calls made on them, run through the oracle as they are added."""

from __future__ import annotations

from collections.abc import Sequence as Listed
from dataclasses import dataclass, field, replace

import numpy as np

from oracle.call import INPUTS, Attributes, Inputs, Types
from oracle.key_value_cache import key_value_cache
from oracle.layouts import cache_shape
from oracle.rules import broken_rules

from .bits import random_bits, random_scales, random_values
from .rules import named as named_rules

SHORT_NAMES = {"float32": "f32", "float16": "f16", "int8": "int8", "int4": "int4"}
LONG_NAMES = {short: long for long, short in SHORT_NAMES.items()}


@dataclass(frozen=True)
class Sequence:
    """One sequence's part in a call: start_pos past tokens and seqlen current ones.

    `place` is its cachestarts entry in offset mode, the list of its pages in paged mode.
    """

    start_pos: int
    seqlen: int
    place: int | tuple[int, ...]


@dataclass
class Success:
    """A call that must succeed, with its outputs and the state after it."""

    inputs: Inputs
    key: np.ndarray  # (kvstarts[B], H * num_repeat, Dh)
    value: np.ndarray  # (kvstarts[B], H * num_repeat, Dh)
    cache: np.ndarray
    scale: np.ndarray | None


@dataclass
class Refusal:
    """A call that must be refused, with the kind of its error and strings that the message contains."""

    inputs: Inputs
    error: str
    mentions: list[str]


@dataclass
class Case:
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

    def __post_init__(self) -> None:
        self.first_cache = self.cache.copy()
        self.first_scale = None if self.scale is None else self.scale.copy()

    def call(self, *sequences: Sequence, **changes: np.ndarray) -> Case:
        """Adds a call that succeeds. `changes` replace inputs by name."""
        inputs = self.inputs(sequences, changes)
        broken = broken_rules(inputs, self.cache, self.scale, self.set_attributes, self.types)
        assert not broken, f"{self.name}: a legal call breaks {broken}"
        key, value = key_value_cache(inputs, self.cache, self.scale, self.set_attributes, self.types)
        scale = None if self.scale is None else self.scale.copy()
        self.steps.append(Success(inputs, key, value, self.cache.copy(), scale))
        return self

    def refuse(self, error: str, mentions: Listed[object], *sequences: Sequence, **changes: np.ndarray) -> Case:
        """Adds a call that breaks the rule `error` and no other."""
        inputs = self.inputs(sequences, changes)
        broken = broken_rules(inputs, self.cache, self.scale, self.set_attributes, self.types)
        assert broken == [error], f"{self.name}: breaks {broken}, not {error} alone"
        self.steps.append(Refusal(inputs, error, [str(mention) for mention in mentions]))
        return self

    @property
    def input_names(self) -> tuple[str, ...]:
        """The inputs that a call is given, in their order."""
        return INPUTS

    @property
    def domain(self) -> str | None:
        """The operator's domain, where it is not that of dynamic batching."""
        return None

    @property
    def set_attributes(self) -> Attributes:
        """The attributes with the defaults for those that the case leaves out."""
        return Attributes(**self.attributes)

    def inputs(self, sequences: Listed[Sequence], changes: dict[str, np.ndarray]) -> Inputs:
        """The inputs of the next call: random current tokens, indices that follow from the sequences."""
        seqlens = [sequence.seqlen for sequence in sequences]
        kvlens = [sequence.start_pos + sequence.seqlen for sequence in sequences]
        step = len(self.steps)
        shape = (sum(seqlens), self.num_heads, self.head_dim)
        inputs = Inputs(
            current_key=random_values(f"{self.name} {step} current_key", shape, self.types.T1),
            current_value=random_values(f"{self.name} {step} current_value", shape, self.types.T1),
            seqstarts=indices([sum(seqlens[:b]) for b in range(len(sequences) + 1)]),
            kvstarts=indices([sum(kvlens[:b]) for b in range(len(sequences) + 1)]),
            cachestarts=cachestarts(sequences, self.attributes.get("cache_mode", 0)),
            start_pos=indices([sequence.start_pos for sequence in sequences]),
            # Real exports give shape [1], the specification a scalar: even steps the one, odd steps the other.
            max_seqlen=indices([max(seqlens, default=0)]).reshape((1,) if step % 2 == 0 else ()),
            max_kvlen=indices([max(kvlens, default=0)]).reshape((1,) if step % 2 == 0 else ()),
        )
        assert changes.keys() <= set(INPUTS), changes.keys()
        return replace(inputs, **changes)


def begin(
    name: str,
    about: str,
    types: str,
    *,
    proves: str,
    page: str = "KeyValueCache",
    num_heads: int = 2,
    head_dim: int = 8,
    max_t: int = 12,
    cache: np.ndarray | None = None,
    scale: np.ndarray | None = None,
    any_nan: str | None = None,
    **attributes: int,
) -> Case:
    """A case without steps; `types` is "T1 T2" or "T1 T2 T3" in short names, `proves` the ids of rules of `page`.

    Where cache and scale are not given, the cache holds random bytes (finite floats where the call converts them) and
    the scale random steps, in the shapes that the other arguments make legal. Attributes are written as they are given.
    """
    named = Types(*(LONG_NAMES[short] for short in types.split()))
    given = Attributes(**attributes)
    if cache is None:
        shape = cache_shape(given.cache_layout, max_t, given.num_layer, num_heads, head_dim)
        fill = random_bits if named.T1 == named.T2 else random_values
        cache = fill(f"{name} cache", shape, named.T2)
    if scale is None and named.T3 is not None:
        groups = head_dim // given.quant_group
        shape = cache_shape(given.cache_layout, max_t, given.num_layer, num_heads, groups)
        scale = random_scales(f"{name} scale", shape, named.T3)
    rules = named_rules(page, proves, name)
    return Case(name, about, rules, named, attributes, num_heads, head_dim, cache, scale, any_nan)


def indices(values: Listed[int] | Listed[Listed[int]] | int) -> np.ndarray:
    """int64 values of the shape that they are nested in."""
    return np.array(values, np.int64)


def cachestarts(sequences: Listed[Sequence], cache_mode: int) -> np.ndarray:
    """(B) in offset mode; (B, MaxP) in paged mode, where short lists of pages are padded with -1 as real callers do."""
    if cache_mode == 0:
        return indices([sequence.place for sequence in sequences])
    max_p = max((len(sequence.place) for sequence in sequences), default=0)
    padded = [[*sequence.place, *[-1] * (max_p - len(sequence.place))] for sequence in sequences]
    return indices(padded).reshape(len(sequences), max_p)
