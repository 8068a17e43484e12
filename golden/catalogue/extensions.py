"""bfloat16 and float8, extensions: their rows of the table of types, their rounding, and what does not go with them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from ml_dtypes import float8_e4m3fn

from . import groups
from .arithmetic import QMAX, T1S, edges, group_case, non_finite, rounding
from .bits import random_bits
from .case import Case, Sequence, begin, quantized
from .combinations import SCHEMA, combination, names
from .groups import GROUP
from .refused_attributes import wrong
from .refused_types import illegal
from .table import refusals

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
        yield combination(number, number % 4, number % 2, types, (1, 4)[number // 2 % 2], quant_bit)


def arithmetic() -> Iterator[Case]:
    """Roundings to eight digits."""
    for types, bits in ((types, bits) for types, bits in TYPES.items() if bits != 0 and "fp8" not in types):
        yield rounding(types, bits)
        yield edges(types, bits)
    yield non_finite("bf16 int8 f32", 8)
    yield non_finite("bf16 int4 f16", 4)


def float8() -> Iterator[Case]:
    """The rounding and the edges of float8, and what its groups are made of."""
    codes = np.arange(0x7F, dtype=np.uint8).view(float8_e4m3fn).astype(np.float64)
    for types in (types for types in TYPES if "fp8" in types):
        real = T1S[types.split()[0]]
        middles = ((codes[1:] + codes[:-1]) / 16).astype(real)
        beside = np.stack([np.nextafter(middles, real(0)), np.nextafter(middles, real(np.inf))], axis=1)
        parts = {
            "quotients halfway between two codes, half goes to the even one": groups.rows(middles, 56),
            "quotients one float beside": groups.rows(beside.reshape(-1)[::3], 56),
            "amax / qmax up to four floats below, at and above 1e-5": groups.around_eps(real, 448),
            "zeros of either sign": np.array([[0, -0.0] * 4, [1, -1e-5, 1e-5, -0.0, 0, -(2**-9), 2**-14, -1]], real),
            "the largest and the float before it": groups.ends(types, real),
        }
        rules = "quantizing.float8 quantizing.ties-to-even quantizing.epsilon quantizing.code-quotient"
        yield group_case("rounding", "Codes of float8", rules, types, 8, parts)
    yield non_finite("f32 fp8 f16", 8)
    yield non_finite("f16 fp8 f32", 8)


def float8_found() -> Case:
    """Codes that no store writes."""
    about = "A prefix with every code: 0x7f and 0xff are NaN, all others are multiplied by their scale."
    state = dict(cache=np.arange(256, dtype=np.uint8).reshape(2, 1, 2, 1, 64).view(float8_e4m3fn))
    why = "arithmetic makes the NaN of a NaN code and a scale, with the machine's sign and payload"
    given = state | dict(num_heads=1, head_dim=64, any_nan=why) | quantized("f32 fp8 f16", 8, GROUP)
    case = begin("found-in-cache-f32-fp8-f16", about, "f32 fp8 f16", proves="quantizing.float8", max_t=2, **given)
    return case.call(Sequence(2, 0, 0))


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
    given = dict(proves="conversion.same-type", cache_layout=2, num_repeat=2)
    case = begin("random-bits-kept-bf16", about, "bf16 bf16", **given)
    return case.call(Sequence(1, 4, 1), current_key=values, current_value=values[::-1])


def refused() -> Iterator[Case]:
    """Rows that the table does not have, and what does not go with `quant_type`."""
    table = [illegal(types, quant_bit=quant_bit) for quant_bit, refused in ILLEGAL.items() for types in refused]
    about, given = "A scale is float32 or float16, never bfloat16.", dict(types="bf16 int8 bf16", quant_bit=8)
    table.append(("scale-bf16", about, "types.illegal", given, ("illegal_types", "bfloat16, quant_bit, 8", {})))
    about = "{types} is illegal with quant_bit {quant_bit} and quant_type {quant_type}."
    for types, quant_bit, quant_type in (("f16 fp8 f16", 8, 0), ("f16 int8 f16", 8, 1), ("f16 fp8", 0, 0)):
        table.append(illegal(types, about, quant_bit=quant_bit, quant_type=quant_type))
    outside = (("f16 int4 f16", 4, 1), ("f16 f16", 0, 1), ("f16 int4 f16", 4, 2), ("f16 fp8 f16", 8, 3))
    for types, quant_bit, quant_type in outside:
        about = f"quant_type {quant_type} with quant_bit {quant_bit} is outside its range."
        name = f"quant-type-{quant_type}-quant-bit-{quant_bit}"
        table.append(wrong("quant_type", quant_type, name, about, types=types, quant_bit=quant_bit))
    yield from refusals(begin, (Sequence(0, 2, 3),), table)
