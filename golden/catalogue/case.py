"""A case: a cache, a scale, and the calls made on them, run through the oracle as they are added. Those of the other
operators are classes of their own, which say what differs."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Listed
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np

from oracle.call import INPUTS, STATIC_SCALES, Attributes, Inputs, Types
from oracle.key_value_cache import key_value_cache
from oracle.layouts import cache_shape

from .bits import random_bits, random_scales, random_values

SHORT_NAMES = {
    "float32": "f32",
    "float16": "f16",
    "int8": "int8",
    "int4": "int4",
    "bfloat16": "bf16",
    "float8e4m3fn": "fp8",
}
LONG_NAMES = {short: long for long, short in SHORT_NAMES.items()}


@dataclass(frozen=True)
class Sequence:
    """One sequence's part in a call: start_pos past tokens and seqlen current ones.

    `place` is its cachestarts entry in offset mode, its page or the list of its pages in paged mode.
    """

    start_pos: int
    seqlen: int
    place: int | Listed[int] = 0


@dataclass
class Success:
    """A call that must succeed, with its outputs by name and the state after it."""

    inputs: Any
    outputs: dict[str, np.ndarray]
    cache: np.ndarray | None
    scale: np.ndarray | None


@dataclass
class Refusal:
    """A call that must be refused, with the kind of its error and strings that the message contains."""

    inputs: Any
    error: str
    mentions: list[str]


@dataclass
class Case:
    """What one folder holds. `cache` and `scale` are the state after the steps so far; the first state is kept too."""

    name: str
    about: str
    rules: list[str]  # the ids of those that it proves
    types: Types
    attributes: dict[str, float]  # only those that the case sets
    num_heads: int
    head_dim: int
    cache: np.ndarray | None  # by cache_layout; int4 as int8 values
    scale: np.ndarray | None
    any_nan: str | None = None  # why a NaN may be any NaN
    steps: list[Success | Refusal] = field(default_factory=list)

    heading: ClassVar[dict[str, str]] = {}  # what case.yaml says of the operator
    input_names: ClassVar[tuple[str, ...]] = INPUTS
    attributes_type: ClassVar[type] = Attributes
    shape: ClassVar[Callable[..., tuple[int, ...]]] = staticmethod(cache_shape)
    fill: ClassVar[Callable[..., np.ndarray]] = staticmethod(random_bits)  # a cache that is of T1

    def __post_init__(self) -> None:
        self.first_cache, self.first_scale = copied(self.cache), copied(self.scale)

    @classmethod
    def begin(
        cls,
        name: str,
        about: str,
        types: str,
        *outer: int,
        proves: str,
        num_heads: int = 2,
        head_dim: int = 8,
        cache: np.ndarray | None = None,
        scale: np.ndarray | None = None,
        any_nan: str | None = None,
        **attributes: int,
    ) -> Self:
        """A case without steps; `types` is "T1 T2" or "T1 T2 T3" in short names, `proves` the ids of rules.

        Where cache and scale are not given, the cache holds random bytes (finite floats where the call converts them)
        and the scale random steps, in the shapes that the other arguments make legal, of which `outer` are the lengths
        that no other tensor has. Attributes are written as they are given.
        """
        named = Types(*(LONG_NAMES[short] for short in types.split()))
        given = cls.attributes_type(**attributes)
        outer = (given.cache_layout, *outer, given.num_layer, num_heads)
        if cache is None:
            fill = cls.fill if named.T1 == named.T2 else random_values
            cache = fill(f"{name} cache", cls.shape(*outer, head_dim), named.T2)
        if scale is None and named.T3 is not None:
            shape = cls.shape(*outer, head_dim // given.quant_group)
            if given.quant_type == STATIC_SCALES:
                shape = (given.num_layer, 2, num_heads)
            scale = random_scales(f"{name} scale", shape, named.T3)
        return cls(name, about, proves.split(), named, attributes, num_heads, head_dim, cache, scale, any_nan)

    def call(self, *what: Any, **changes: Any) -> Self:
        """Adds a call that succeeds. `changes` replace inputs by name."""
        inputs = self.inputs(*what, **changes)
        self.steps.append(Success(inputs, self.run(inputs), copied(self.cache), copied(self.scale)))
        return self

    def refuse(
        self, error: str, mentions: Listed[object], *what: Any, wrong: dict[str, float] | None = None, **changes: Any
    ) -> Self:
        """Adds a call that breaks the rule `error` and no other. `wrong` attributes shape no tensor."""
        inputs = self.inputs(*what, **changes)
        self.attributes |= wrong or {}
        self.steps.append(Refusal(inputs, error, [str(mention) for mention in mentions]))
        return self

    @property
    def set_attributes(self) -> Any:
        """The attributes with the defaults for those that the case leaves out."""
        return self.attributes_type(**self.attributes)

    def set_scale(self, scale: np.ndarray) -> None:
        """Gives the case another scale to begin with."""
        self.scale, self.first_scale = scale, scale.copy()

    def random(self, tensor: str, *shape: int) -> np.ndarray:
        """Random values of T1 for a tensor of the next call."""
        return random_values(f"{self.name} {len(self.steps)} {tensor}", shape, self.types.T1)

    def one(self, value: int) -> np.ndarray:
        """A single number. Exports give shape [1], the specification a scalar: even steps the one, odd the other."""
        return indices(value).reshape((1,) if len(self.steps) % 2 == 0 else ())

    def inputs(self, *sequences: Sequence, **changes: np.ndarray) -> Any:
        """The inputs of the next call: random current tokens, indices that follow from the sequences."""
        starts = starts_and_bounds(self, sequences)
        shape = (starts["seqstarts"][-1], self.num_heads, self.head_dim)
        inputs = Inputs(
            current_key=self.random("current_key", *shape),
            current_value=self.random("current_value", *shape),
            cachestarts=cachestarts(sequences, self.attributes.get("cache_mode", 0)),
            start_pos=indices([sequence.start_pos for sequence in sequences]),
            **starts,
        )
        return replace(inputs, **changes)

    def run(self, inputs: Any) -> dict[str, np.ndarray]:
        key, value = key_value_cache(inputs, self.cache, self.scale, self.set_attributes, self.types)
        return dict(key=key, value=value)


def begin(name: str, about: str, types: str, *, max_t: int = 12, **given: Any) -> Case:
    """A case without steps, as `Case.begin` makes it."""
    return Case.begin(name, about, types, max_t, **given)


def quantized(types: str, quant_bit: int, quant_group: int) -> dict[str, int]:
    """The attributes of a cache of these types; none without quantization."""
    attributes = dict(quant_bit=quant_bit, quant_group=quant_group) if quant_bit != 0 else {}
    return attributes | (dict(quant_type=1) if types.split()[1] == "fp8" else {})


def copied(array: np.ndarray | None) -> np.ndarray | None:
    """A copy, of nothing none."""
    return None if array is None else array.copy()


def indices(values: Listed[int] | Listed[Listed[int]] | int) -> np.ndarray:
    """int64 values of the shape that they are nested in."""
    return np.array(values, np.int64)


def starts_and_bounds(case: Case, sequences: Listed[Sequence]) -> dict[str, np.ndarray]:
    """seqstarts, kvstarts, max_seqlen and max_kvlen of the next call."""
    seqlens = [sequence.seqlen for sequence in sequences]
    kvlens = [sequence.start_pos + sequence.seqlen for sequence in sequences]
    starts = {"seqstarts": seqlens, "kvstarts": kvlens}
    bounds = {"max_seqlen": seqlens, "max_kvlen": kvlens}
    return {name: indices([sum(lengths[:b]) for b in range(len(lengths) + 1)]) for name, lengths in starts.items()} | {
        name: case.one(max(lengths, default=0)) for name, lengths in bounds.items()
    }


def cachestarts(sequences: Listed[Sequence], cache_mode: int) -> np.ndarray:
    """(B) in offset mode; (B, MaxP) in paged mode, where short lists of pages are padded with -1 as real callers do."""
    if cache_mode == 0:
        return indices([sequence.place for sequence in sequences])
    pages = [[sequence.place] if isinstance(sequence.place, int) else sequence.place for sequence in sequences]
    max_p = max(map(len, pages), default=0)
    return indices([[*listed, *[-1] * (max_p - len(listed))] for listed in pages]).reshape(len(sequences), max_p)
