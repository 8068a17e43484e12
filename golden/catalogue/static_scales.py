"""Codes of float8 with static scales, an extension: which head has which scale, codes, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
from ml_dtypes import float8_e4m3fn

from .arithmetic import T1S
from .bits import random_scales
from .case import LONG_NAMES, Case, Sequence, begin
from .combinations import MODES
from .extensions import TYPES as EXTENSIONS
from .table import refusals

TYPES = [types for types in EXTENSIONS if "fp8" in types]
ATTRIBUTES = dict(quant_bit=8, quant_type=2)
# Of caches with two layers and two heads.
SHAPES = ((2, 2, 2), (1, 1, 1), (1, 1, 2), (2, 1, 1), (1, 2, 1), (1, 2, 2), (2, 1, 2), (2, 2, 1))
NAN_WHY = "arithmetic makes the NaN of a NaN code or of an infinite scale, with the machine's sign and payload"


def shape_label(shape: tuple[int, ...]) -> str:
    return "-".join(map(str, shape))


def shapes() -> Iterator[Case]:
    """Every shape, in each layout and mode."""
    for number, (cache_layout, shape) in enumerate(product(range(4), SHAPES)):
        types, mode = TYPES[number % len(TYPES)], (number + cache_layout) % 2
        attributes = ATTRIBUTES | dict(num_layer=2, layer_idx=number // 2 % 2, cache_layout=cache_layout)
        attributes |= dict(num_repeat=(1, 1, 3)[number % 3], quant_group=5)
        if mode == 1:
            attributes |= dict(cache_mode=1, page_size=2)
        name = f"static-scales-{shape_label(shape)}-{MODES[mode]}-layout{cache_layout}"
        about = f"{types.replace(' ', '/')}, scales of shape {shape}: a prefill and a decode step, then another step."
        rules = f"scale.static quantizing.static attributes.group-divides layer cache-layout.{cache_layout}"
        given = attributes | dict(scale=random_scales(f"{name} scale", shape, LONG_NAMES[types.split()[2]]))
        case = begin(name, about, types, proves=rules, head_dim=(16, 5, 40, 8)[number % 4], max_t=8, **given)
        prefill, decode = (4, 0) if mode == 0 else ((4, 2), (0, 6))
        case.call(Sequence(0, 3, prefill), Sequence(2, 1, decode))
        yield case.call(Sequence(3, 1, prefill), Sequence(3, 1, decode))


def codes() -> Iterator[Case]:
    """Roundings, and what is beyond the largest number; every number is a multiple of a scale."""
    numbers = np.arange(0x7F, dtype=np.uint8).view(float8_e4m3fn).astype(np.float64)
    middles = (numbers[1:] + numbers[:-1]) / 2
    ends = [448, 464, 465, 480, 512, 57344, np.inf, 0.0, 2**-11, 2**-10, 3 * 2**-11, 2**-9, 2**-14, 447, 460, 463]
    for types in TYPES:
        t1, t3 = T1S[types.split()[0]], np.dtype(LONG_NAMES[types.split()[2]]).type
        scales = np.array([1.0, 0.3, 2.0**-12, 3.0], t3).reshape(1, 1, 4)
        quotients = np.concatenate([middles, np.nextafter(middles, 0), np.nextafter(middles, 1e3), ends])
        quotients = np.concatenate([quotients, -quotients])
        quotients = np.append(quotients, np.zeros(-len(quotients) % 16)).reshape(-1, 1, 16)
        with np.errstate(over="ignore"):  # an infinity is one of the numbers
            values = (quotients * scales.astype(np.float64).reshape(1, 4, 1)).astype(t1)
        about = "Ties to even, the numbers beside them, and saturation of infinities, too; with four scales."
        given = ATTRIBUTES | dict(num_heads=4, head_dim=16, scale=scales, max_t=len(values))
        case = begin(f"static-codes-{types.replace(' ', '-')}", about, types, proves="quantizing.static", **given)
        yield case.call(Sequence(0, len(values), 0), current_key=values, current_value=values[::-1].copy())


def non_finite() -> Iterator[Case]:
    """NaN, and scales that no calibration gives. A NaN by a NaN has the sign of either, so that none is a NaN."""
    for types in TYPES:
        t1, t3 = T1S[types.split()[0]], np.dtype(LONG_NAMES[types.split()[2]]).type
        scales = np.array([[0, -0.25, 7, np.inf, -np.inf, 1], [-0.0, 2**-24, -(2**-24), 2, 0.5, -1]])
        values = np.array([np.nan, -np.nan, np.inf, -np.inf, 0, -0.0, 1, -2, 1e-8, -500, 3], t1)
        values = np.broadcast_to(values, (1, 6, 11)).copy()
        about = "NaN, infinities and zeros by scales that are 0, negative, denormal or infinite."
        given = ATTRIBUTES | dict(num_heads=6, head_dim=11, scale=scales.reshape(1, 2, 6).astype(t3), max_t=2)
        name = f"static-non-finite-{types.replace(' ', '-')}"
        case = begin(name, about, types, proves="quantizing.static", any_nan=NAN_WHY, **given)
        yield case.call(Sequence(0, 1, 1), current_key=values, current_value=-values)


def refused() -> Iterator[Case]:
    """Scales of other shapes, and what does not go with static scales."""
    table = []
    for error, rules, shapes in (
        ("rank_mismatch", "scale.static inputs.shapes", ((8, 2, 2, 2, 1), (2, 2), (2,))),
        ("shape_mismatch", "scale.static inputs.shapes", ((3, 2, 2), (2, 3, 2), (2, 2, 3), (2, 2, 4), (2, 4, 1))),
        ("scale_missing", "scale.required", ((0,), (2, 0, 2))),
    ):
        for shape in shapes:
            about = f"Static scales of shape {shape} for 2 layers and 2 heads: refused."
            given = ATTRIBUTES | dict(types="f16 fp8 f32", num_layer=2, max_t=8, scale=np.ones(shape, np.float32))
            table.append((f"static-scales-{shape_label(shape)}", about, rules, given, (error, "scale", {})))
    given = ATTRIBUTES | dict(types="f16 fp8")
    call = ("scale_missing", "scale", {})
    table.append(("static-scales-none", "No scale with quant_type 2: refused.", "scale.required", given, call))
    about = "Codes of integers have no static scales: refused."
    given = ATTRIBUTES | dict(types="f16 int8 f16", scale=np.ones((1, 2, 2), np.float16))
    call = ("illegal_types", "int8, quant_type, 2", {})
    table.append(("static-scales-int8", about, "types.illegal", given, call))
    yield from refusals(begin, (Sequence(0, 2, 3),), table)
