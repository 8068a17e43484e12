"""Attributes outside their range, one at a time; no value is truncated, or accepted because it has no effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from oracle.layouts import LAYOUTS

from .bits import I64_MIN
from .case import Case, Sequence, begin

# What a kernel that keeps 32 bits would take for the value that is added.
BEYOND_32_BITS = 2**32
# Of both operators.
WRONG = {
    "num_layer": (0, I64_MIN),
    "layer_idx": (-1, 2, BEYOND_32_BITS + 1),
    "quant_bit": (-8, 1, 7, 16, BEYOND_32_BITS),
    "quant_group": (0, -8),
    "num_repeat": (0, -1),
}
OWN = {
    "cache_mode": (-1, 2, BEYOND_32_BITS + 1),
    "cache_layout": (-1, len(LAYOUTS), BEYOND_32_BITS, I64_MIN),
    "page_size": (0, I64_MIN),
    "quant_rotation": (-1, 2, BEYOND_32_BITS + 1),
}
BATCH = (Sequence(0, 2, 2),)


def cases() -> Iterator[Case]:
    yield from ranges(begin, BATCH, WRONG | OWN)
    about = "{} {} is outside its range, and refused also where it has no effect."
    for attribute, value in (("page_size", 0), ("quant_group", -2)):
        name = f"refuse-idle-{attribute}-{spelled(value)}".replace("_", "-")
        case = begin(name, about.format(attribute, value), "f16 f16", proves="attributes.ranges")
        yield refused(case, BATCH, attribute, value)
    about = "quant_rotation 1 without quantization: refused."
    case = begin("refuse-quant-rotation-unquantized", about, "f16 f16", proves="attributes.rotation")
    yield refused(case, BATCH, "quant_rotation", 1)
    about = "quant_group 0 with quant_bit 8: refused, not divided by."
    case = begin("refuse-quant-group-0-int8", about, "f16 int8 f16", proves="attributes.ranges", quant_bit=8)
    yield refused(case, BATCH, "quant_group", 0)


def ranges(begin: Callable[..., Case], call: tuple[Any, ...], wrong: dict[str, tuple[int, ...]]) -> Iterator[Case]:
    """A case for each wrong value of an operator's attributes."""
    for attribute, value in ((attribute, value) for attribute, values in wrong.items() for value in values):
        about = f"{attribute} {value} is outside its range: refused."
        name = f"refuse-{attribute}-{spelled(value)}".replace("_", "-")
        given = dict(num_layer=2 if attribute == "layer_idx" else 1)
        given |= dict(cache_mode=1) if attribute == "page_size" else {}
        yield refused(begin(name, about, "f32 f32", proves="attributes.ranges", **given), call, attribute, value)
    for quant_group in (1, 9):
        about = f"Four bits need an even quant_group; {quant_group} divides head_dim 18 and is refused all the same."
        name = f"refuse-odd-quant-group-{quant_group}-int4"
        given = dict(head_dim=18, quant_bit=4, quant_group=quant_group)
        case = begin(name, about, "f32 int4 f32", proves="attributes.ranges", **given)
        yield refused(case, call, "quant_group", quant_group)


def refused(case: Case, call: tuple[Any, ...], attribute: str, value: int) -> Case:
    """The case with one attribute made wrong after cache and scale were shaped by the right ones."""
    return case.refuse("attribute_out_of_range", [attribute, value], *call, wrong={attribute: value})


def spelled(value: int) -> str:
    """The value as a part of a name."""
    extremes = {I64_MIN: "i64-min", BEYOND_32_BITS: "2p32", BEYOND_32_BITS + 1: "2p32-plus-1"}
    return extremes.get(value, f"minus-{-value}" if value < 0 else str(value))
