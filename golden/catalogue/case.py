"""A case: a cache, a scale, and the calls made on them, run through the oracle as they are added."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Listed
from dataclasses import dataclass, field, fields, replace
from typing import Any

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


@dataclass(frozen=True)
class Operator:
    """What is an operator's own in its cases."""

    heading: dict[str, str]  # what case.yaml says of it
    inputs: Callable[..., Any]  # of the case's next call: random tensors, indices that follow from what is called
    input_names: tuple[str, ...]
    run: Callable[..., dict[str, np.ndarray]]  # the outputs of a call of a case with these inputs
    attributes: type = Attributes
    shape: Callable[..., tuple[int, ...]] = cache_shape
    fill: Callable[..., np.ndarray] = random_bits  # a cache that is of T1


@dataclass
class Case:
    """What one folder holds. `cache` and `scale` are the state after the steps so far; the first state is kept too."""

    operator: Operator
    name: str
    about: str
    rules: list[str]  # the ids of those that it proves
    types: Types
    attributes: dict[str, float]  # only those that the case sets
    num_heads: int  # of cache, or of key and value
    head_dim: int
    cache: np.ndarray | None = None  # by cache_layout; int4 as int8 values
    scale: np.ndarray | None = None
    any_nan: str | None = None  # why a NaN may be any NaN
    has_mass: bool = False  # whether calls give attention_mass, too
    steps: list[Success | Refusal] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.first_cache, self.first_scale = copied(self.cache), copied(self.scale)

    def call(self, *what: Any, **changes: Any) -> Case:
        """Adds a call that succeeds. `changes` replace inputs by name."""
        inputs = self.inputs(*what, **changes)
        outputs = self.operator.run(self, inputs)
        self.steps.append(Success(inputs, outputs, copied(self.cache), copied(self.scale)))
        return self

    def refuse(self, error: str, mentions: Listed[object], *what: Any, **changes: Any) -> Case:
        """Adds a call that breaks the rule `error` and no other. Changed attributes shape no tensor."""
        attributes = {attribute.name for attribute in fields(self.operator.attributes)}
        inputs = self.inputs(*what, **{name: value for name, value in changes.items() if name not in attributes})
        self.attributes |= {name: value for name, value in changes.items() if name in attributes}
        self.steps.append(Refusal(inputs, error, [str(mention) for mention in mentions]))
        return self

    def inputs(self, *what: Any, **changes: Any) -> Any:
        """The inputs of the next call. A change is a tensor, or a function that makes one of the right tensor; a list
        of indices, a number as a tensor of one, or the shape of random values."""
        right = self.operator.inputs(self, *what)

        def changed(name: str, value: Any) -> Any:
            match value:
                case int():
                    return self.one(value)
                case list():
                    return indices(value)
                case tuple():
                    return random_values(self.name, value, self.types.T1)
            return value(getattr(right, name)) if callable(value) else value

        return replace(right, **{name: changed(name, value) for name, value in changes.items()})

    @property
    def set_attributes(self) -> Any:
        """The attributes with the defaults for those that the case leaves out."""
        return self.operator.attributes(**self.attributes)

    def with_mass(self) -> Case:
        """The case, whose calls give attention_mass, too."""
        self.has_mass = True
        return self

    def set_scale(self, scale: np.ndarray) -> None:
        """Gives the case another scale to begin with."""
        self.scale, self.first_scale = scale, scale.copy()

    def random(self, tensor: str, *shape: int) -> np.ndarray:
        """Random values of T1 for a tensor of the next call."""
        return random_values(f"{self.name} {len(self.steps)} {tensor}", shape, self.types.T1)

    def one(self, value: int) -> np.ndarray:
        """A single number. Exports give shape [1], the specification a scalar: even steps the one, odd the other."""
        return indices(value).reshape((1,) if len(self.steps) % 2 == 0 else ())


def begin_case(
    operator: Operator,
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
) -> Case:
    """A case without steps; `types` is "T1 T2" or "T1 T2 T3" in short names, `proves` the ids of rules.

    Where cache and scale are not given, the cache holds random bytes (finite floats where the call converts them) and
    the scale random steps, in the shapes that the other arguments make legal; `outer` are the lengths that no other
    tensor has. Attributes are written as they are given.
    """
    named = Types(*(LONG_NAMES[short] for short in types.split()))
    given = operator.attributes(**attributes)
    outer = (given.cache_layout, *outer, given.num_layer, num_heads)
    if cache is None:
        fill = operator.fill if named.T1 == named.T2 else random_values
        cache = fill(f"{name} cache", operator.shape(*outer, head_dim), named.T2)
    if scale is None and named.T3 is not None:
        shape = operator.shape(*outer, head_dim // given.quant_group)
        if given.quant_type == STATIC_SCALES:
            shape = (given.num_layer, 2, num_heads)
        scale = random_scales(f"{name} scale", shape, named.T3)
    return Case(operator, name, about, proves.split(), named, attributes, num_heads, head_dim, cache, scale, any_nan)


def cache_inputs(case: Case, *sequences: Sequence) -> Inputs:
    """Random current tokens, and indices that follow from the sequences."""
    starts = starts_and_bounds(case, sequences)
    shape = (starts["seqstarts"][-1], case.num_heads, case.head_dim)
    return Inputs(
        current_key=case.random("current_key", *shape),
        current_value=case.random("current_value", *shape),
        cachestarts=cachestarts(sequences, case.attributes.get("cache_mode", 0)),
        start_pos=indices([sequence.start_pos for sequence in sequences]),
        **starts,
    )


def key_and_value(case: Case, inputs: Any, *, oracle: Callable[..., Any] = key_value_cache) -> dict[str, np.ndarray]:
    key, value = oracle(inputs, case.cache, case.scale, case.set_attributes, case.types)
    return dict(key=key, value=value)


KEY_VALUE_CACHE = Operator({}, cache_inputs, INPUTS, key_and_value)


def begin(name: str, about: str, types: str, *, max_t: int = 12, **given: Any) -> Case:
    """A case of KeyValueCache without steps."""
    return begin_case(KEY_VALUE_CACHE, name, about, types, max_t, **given)


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
