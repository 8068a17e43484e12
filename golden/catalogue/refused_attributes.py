"""Attributes outside their range, one at a time; no value is truncated, or accepted because it has no effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from oracle.layouts import LAYOUTS

from .bits import I64_MIN
from .case import Case, Sequence, begin
from .table import Row, refusals

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


def cases() -> Iterator[Case]:
    yield from refusals(begin, (Sequence(0, 2, 2),), [*ranges(WRONG | OWN), *_beside_others()])


def wrong(
    attribute: str,
    value: float,
    name: str,
    about: str,
    rules: str = "attributes.ranges",
    mentions: str = "",
    **given: Any,
) -> Row:
    """A row with one attribute made wrong after cache and scale were shaped by the right ones."""
    call = ("attribute_out_of_range", mentions or f"{attribute}, {value}", {attribute: value})
    return name, about, rules, given, call


def ranges(values: Mapping[str, tuple[int, ...]]) -> Iterator[Row]:
    """A row for each wrong value of an operator's attributes."""
    for attribute, value in ((attribute, value) for attribute, values in values.items() for value in values):
        given = dict(num_layer=2 if attribute == "layer_idx" else 1)
        given |= dict(cache_mode=1) if attribute == "page_size" else {}
        about = f"{attribute} {value} is outside its range: refused."
        yield wrong(attribute, value, f"{attribute}-{spelled(value)}", about, **given)
    for quant_group in (1, 9):
        about = f"Four bits need an even quant_group; {quant_group} divides head_dim 18 and is refused all the same."
        given = dict(types="f32 int4 f32", head_dim=18, quant_bit=4, quant_group=quant_group)
        yield wrong("quant_group", quant_group, f"odd-quant-group-{quant_group}-int4", about, **given)


def _beside_others() -> Iterator[Row]:
    """Values that are refused whatever the other attributes make of them, and one that they make wrong."""
    for attribute, value in (("page_size", 0), ("quant_group", -2)):
        about = f"{attribute} {value} is outside its range, and refused also where it has no effect."
        yield wrong(attribute, value, f"idle-{attribute}-{spelled(value)}", about, types="f16 f16")
    about = "quant_rotation 1 without quantization: refused."
    yield wrong("quant_rotation", 1, "quant-rotation-unquantized", about, "attributes.rotation", types="f16 f16")
    about = "quant_group 0 with quant_bit 8: refused, not divided by."
    yield wrong("quant_group", 0, "quant-group-0-int8", about, types="f16 int8 f16", quant_bit=8)


def spelled(value: int) -> str:
    """The value as a part of a name."""
    extremes = {I64_MIN: "i64-min", BEYOND_32_BITS: "2p32", BEYOND_32_BITS + 1: "2p32-plus-1"}
    return extremes.get(value, f"minus-{-value}" if value < 0 else str(value))
