"""Values: bits that must be kept, roundings, and values that are not finite. The arithmetic has its cases in
dynamic batching; these show that it is the same here."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from oracle.static_batching import STATIC_LAYOUTS

from .. import groups
from ..arithmetic import NON_FINITE_WHY, QMAX, T1S, infinities, rounding_parts, scale_parts, sixteen_levels
from ..bits import random_bits
from ..case import Case
from ..conversion import FLOATS, NAN_WHY
from .case import begin


def cases() -> Iterator[Case]:
    for (T1, T3), quant_bit, cache_layout in product((("f32", "f32"), ("f16", "f32")), (8, 4), STATIC_LAYOUTS):
        if (T1 == "f32") == (cache_layout == 0):
            yield rounding(T1, T3, quant_bit, cache_layout)
            yield non_finite(T1, T3, quant_bit, cache_layout)
    for quant_bit in (8, 4):
        yield from order_of_roundings(quant_bit)


def bits_kept() -> Iterator[Case]:
    """Where T1 is T2, bytes are copied, also a NaN's."""
    for (T, element), cache_layout in product(FLOATS.items(), STATIC_LAYOUTS):
        name = f"random-bits-kept-{T}-layout{cache_layout}"
        values = random_bits(f"{name} current", (2, 3, 2, 8), element)
        about = "Random bit patterns are stored and loaded as they are."
        case = begin(name, about, f"{T} {T}", proves="conversion.same-type", cache_layout=cache_layout)
        yield case.call(2, 1, 3, current_key=values, current_value=values[::-1].copy())


def converted() -> Iterator[Case]:
    """Between float types: ties, overflow, denormals, NaN and infinities."""
    finite = [1 + 2.0**-11, 1 + 3 * 2.0**-11, 65519.996, 65520, -(2**-25), 1.5 * 2**-24, -0.0, 3.4e38]
    values = np.array(finite * 2, np.float32).reshape(2, 1, 1, 8)
    about = "float32 into a float16 cache: round to nearest, ties to even."
    case = begin("f32-to-f16-cache", about, "f32 f16", proves="conversion.rounding", num_heads=1, max_s=2)
    yield case.call(2, 1, 1, current_key=values, current_value=-values)
    special = np.array([np.nan, np.inf, -np.inf, -np.nan, 1, -1, 0, 65504] * 2).reshape(2, 1, 1, 8)
    for T1, T2, element in (("f32", "f16", np.float32), ("f16", "f32", np.float16)):
        about = "NaN and infinities pass through a cache of the other float type."
        name, sizes = f"{T1}-to-{T2}-cache-nan-inf", dict(num_heads=1, max_s=2)
        case = begin(name, about, f"{T1} {T2}", proves="conversion.rounding", **sizes, any_nan=NAN_WHY)
        yield case.call(2, 1, 1, current_key=special.astype(element), current_value=-special.astype(element))


def rounding(T1: str, T3: str, quant_bit: int, cache_layout: int) -> Case:
    """Quotients at and beside ties."""
    parts = [groups.ties(T1S[T1], QMAX[quant_bit]), groups.near_ties(T1S[T1], QMAX[quant_bit])]
    levels = sixteen_levels(T1S[T1]) if quant_bit == 4 else {}
    parts += [groups.around_eps(T1S[T1], QMAX[quant_bit]), *levels.values()]
    values = np.concatenate(parts)
    values = values[: len(values) // 2 * 2].reshape(2, 1, 1, -1)
    name = f"rounding-{T1}-int{quant_bit}-{T3}-layout{cache_layout}"
    about = "Quotients of k + 1/2, one float beside, and steps around 1e-5."
    attributes = dict(quant_bit=quant_bit, quant_group=groups.GROUP, cache_layout=cache_layout)
    sizes = dict(num_heads=1, head_dim=values.shape[-1], max_b=2, max_s=1)
    rules = " ".join(["quantizing.ties-to-even quantizing.code-quotient quantizing.epsilon quantizing.qmax", *levels])
    case = begin(name, about, f"{T1} int{quant_bit} {T3}", proves=rules, **sizes, **attributes)
    return case.call(2, 0, 1, current_key=values, current_value=-values)


def order_of_roundings(quant_bit: int) -> Iterator[Case]:
    """Values that distinguish the right order of roundings from others."""
    attributes = dict(quant_bit=quant_bit, quant_group=groups.GROUP, cache_layout=quant_bit // 8)
    for T1, T3 in (("f32", "f16"), ("f16", "f32")):
        types = f"{T1} int{quant_bit} {T3}"
        rules, parts = rounding_parts(types, quant_bit)
        if T3 == "f16":
            parts |= scale_parts(QMAX[quant_bit])
            rules += " scale.rounded-to-t3 dequantizing.rounded-to-t3"
        else:
            parts["largest"] = np.full((1, groups.GROUP), np.finfo(T1S[T1]).max, T1S[T1])
            rules += " dequantizing.converted-to-t1"
        values = groups.tokens(parts.values(), 64)[None]
        about = "Groups for which another order of roundings gives other codes, scales or outputs."
        sizes = dict(num_heads=1, head_dim=64, max_b=1, max_s=values.shape[1])
        case = begin(f"order-of-roundings-{types.replace(' ', '-')}", about, types, proves=rules, **sizes, **attributes)
        yield case.call(1, 0, values.shape[1], current_key=values, current_value=-values)


def infinities_of_int4() -> Case:
    """Scales with the signs of infinities."""
    parts = infinities(np.float32)
    values = groups.tokens(parts.values(), 8)[None]
    about = "Infinities of one sign and of both in groups of int4: the signs of the scales."
    sizes = dict(num_heads=1, head_dim=8, max_b=1, max_s=values.shape[1], any_nan=NON_FINITE_WHY)
    rules = " ".join(parts)
    case = begin("infinities-of-int4", about, "f32 int4 f16", proves=rules, quant_bit=4, quant_group=8, **sizes)
    return case.call(1, 0, values.shape[1], current_key=values, current_value=-values)


def non_finite(T1: str, T3: str, quant_bit: int, cache_layout: int) -> Case:
    """NaN and Inf make their group load as NaN, in this call and in the next, and change no other group or sequence."""
    values = np.tile(np.array([1, -2, 3, 0.5, -0.25, 0, 4, -4], T1S[T1]), (2, 2, 2, 2))
    values[0, 1, 0, 3] = np.nan
    values[1, 0, 1, 8] = np.inf
    values[1, 1, 1, 15] = -np.inf
    name = f"non-finite-{T1}-int{quant_bit}-{T3}-layout{cache_layout}"
    about = "A NaN and infinities in three groups: these load as NaN, then and in the next call; no other group does."
    attributes = dict(quant_bit=quant_bit, quant_group=8, cache_layout=cache_layout)
    attributes |= dict(any_nan=NON_FINITE_WHY)
    rules = "non-finite.nan non-finite.infinity"
    case = begin(name, about, f"{T1} int{quant_bit} {T3}", proves=rules, head_dim=16, **attributes)
    return case.call(2, 1, 2, current_key=values, current_value=values[:, ::-1].copy()).call(2, 3, 1)
