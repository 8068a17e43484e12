"""Every layout, mode, legal combination of types and num_repeat: each with its addressing, conversion and repeats."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import yaml

from oracle.layouts import LAYOUTS

from .case import SHORT_NAMES, Case, Sequence, begin, quantized

SCHEMA = yaml.safe_load((Path(__file__).parents[2] / "schema/key_value_cache.yaml").read_text())


def names(row: dict[str, str]) -> str:
    """The types of a row of the table, as `begin` takes them."""
    return " ".join(SHORT_NAMES[row[name]] for name in ("T1", "T2", "T3") if name in row)


# Each legal combination of types of the specification, and its quant_bit.
TYPES = {names(row): row["quant_bit"] for row in SCHEMA["combinations"]}
MODES = ("offset", "paged")
REPEATS = (1, 4)
GROUPS = (8, 16, 8, 32, 64, 16, 128, 32)


def cases() -> Iterator[Case]:
    """The whole product; sizes, layers, slots and groups vary along it."""
    for number, (*places, types, num_repeat) in enumerate(product(LAYOUTS, range(2), TYPES, REPEATS)):
        yield combination(number, *places, types, num_repeat, TYPES[types])


def combination(number: int, cache_layout: int, cache_mode: int, types: str, num_repeat: int, quant_bit: int) -> Case:
    """A prefill beside a decode step; small groups leave room for a third sequence that continues a prefill."""
    mode, attributes = MODES[cache_mode], dict(num_layer=2, layer_idx=number % 2, num_repeat=num_repeat)
    attributes |= dict(cache_mode=cache_mode, cache_layout=cache_layout)
    about = f"Layout {cache_layout}, {mode} mode, {types.replace(' ', '/')}, num_repeat {num_repeat}: "
    head_dim = 4 + number % 3
    quant_group = 0
    rules = f"types.legal cache-mode.{cache_mode} cache-layout.{cache_layout} layer inputs.packed outputs.packed"
    if quant_bit != 0:
        # Eight neighbors of the product share layout, mode and width, and so meet all groups.
        quant_group = GROUPS[(number + cache_layout) % len(GROUPS)]
        attributes |= quantized(types, quant_bit, quant_group)
        head_dim = 16 if quant_group == 8 else quant_group
        about += f"groups of {quant_group}, "
        rules += " quantizing.groups"
    if quant_bit == 4:
        rules += " int4.nibbles"
    if num_repeat != 1:
        rules += " num-repeat"
    if cache_mode == 1:
        attributes |= dict(page_size=2)
        rules += " pages.unaligned"
    name = f"layout{cache_layout}-{mode}-{types.replace(' ', '-')}-r{num_repeat}"
    if quant_group <= 16:
        about += "a prefill, a decode step and the second chunk of a prefill in one call."
        case = begin(name, about, types, proves=rules, num_heads=2, head_dim=head_dim, max_t=8, **attributes)
        prefill, decode, chunk = (6, 0, 3) if cache_mode == 0 else ((6,), (3, 5), (1, 0))
        return case.call(Sequence(0, 2, prefill), Sequence(2, 1, decode), Sequence(1, 2, chunk))
    about += "a prefill and a decode step in one call."
    case = begin(name, about, types, proves=rules, num_heads=1, head_dim=head_dim, max_t=5, **attributes)
    prefill, decode = (3, 0) if cache_mode == 0 else ((3,), (1,))
    return case.call(Sequence(0, 2, prefill), Sequence(1, 1, decode))
