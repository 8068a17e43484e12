"""bfloat16, an extension: its rows of the table of types, its rounding, and what does not go with it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .arithmetic import QMAX, T1S, edges, group_case, non_finite, rounding
from .bits import random_bits
from .case import LONG_NAMES, Case, Sequence, begin
from .combinations import SCHEMA, combination, names
from .groups import GROUP

# Each legal combination of types, as `begin` takes it, and its quant_bit.
TYPES = {names(row): row["quant_bit"] for row in SCHEMA["extensions"]}
ILLEGAL = {
    0: ("bf16 f32", "bf16 f16", "f32 bf16", "f16 bf16", "bf16 int8"),
    8: ("bf16 bf16 f16",),
    4: ("bf16 bf16 f16",),
}


def legal() -> Iterator[Case]:
    """Every row once, each in another layout."""
    for number, (types, quant_bit) in enumerate(TYPES.items()):
        mode = number % 2
        yield combination(
            number, number % 4, mode, ("offset", "paged")[mode], types, (1, 4)[number // 2 % 2], quant_bit
        )


def arithmetic() -> Iterator[Case]:
    """Roundings to eight digits."""
    for types, bits in ((types, bits) for types, bits in TYPES.items() if bits != 0):
        yield rounding(types, bits)
        yield edges(types, bits)
    yield non_finite("bf16 int8 f32", 8)
    yield non_finite("bf16 int4 f16", 4)


def clamped() -> Case:
    """Quotients of 127.5, which no other type has."""
    amaxes = (127 * np.arange(128, 256) / 128).astype(T1S["bf16"])
    steps = (amaxes / T1S["bf16"](127)).astype(np.float64)
    telling = amaxes[amaxes.astype(np.float64) / steps > QMAX[8] + 0.25]
    values = telling[:, None] * np.array([1, -1, 0.5, -0.5, 0.25, 0.125, -1, 1], T1S["bf16"])
    assert len(values) > 0 and values.shape[1] == GROUP, "some scales are rounded down so far"
    subject = "A scale that was rounded down: the largest quotient is 127.5, which goes to 128 and is clamped to 127"
    return group_case("clamped", subject, "quantizing.qmax", "bf16 int8 f32", 8, {"such scales": values})


def bits_kept() -> Case:
    """Every kind of NaN."""
    values = random_bits("bfloat16 kept", (4, 2, 8), "bfloat16")
    values.view(np.uint16)[0, 0] = [0x7F81, 0xFF81, 0x7FC0, 0xFFC5, 0x7F80, 0xFF80, 0x8000, 0x0001]
    about = (
        "Signaling and quiet NaN of either sign, infinities, -0.0 and random bits are stored and loaded as they are."
    )
    case = begin(
        "random-bits-kept-bf16", about, "bf16 bf16", proves="conversion.same-type", cache_layout=2, num_repeat=2
    )
    return case.call(Sequence(1, 4, 1), current_key=values, current_value=values[::-1])


def refused() -> Iterator[Case]:
    """Rows that the table does not have."""
    for quant_bit, illegal in ILLEGAL.items():
        for types in illegal:
            name = f"refuse-types-{types.replace(' ', '-')}-quant-bit-{quant_bit}"
            about = f"{types.replace(' ', '/')} is no legal combination with quant_bit {quant_bit}: refused by name."
            case = begin(name, about, types, proves="types.illegal", quant_bit=quant_bit)
            mentions = [*(LONG_NAMES[short] for short in types.split()[:2]), "quant_bit", quant_bit]
            yield case.refuse("illegal_types", mentions, Sequence(0, 2, 3))
    about = "A scale is float32 or float16, never bfloat16."
    case = begin("refuse-scale-bf16", about, "bf16 int8 bf16", proves="types.illegal", quant_bit=8)
    yield case.refuse("illegal_types", ["bfloat16", "quant_bit", 8], Sequence(0, 2, 3))
