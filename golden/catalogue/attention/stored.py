"""What is stored and loaded is KeyValueCache's: values for which another arithmetic gives other bits in the cache."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .. import groups
from ..arithmetic import QMAX, T1S, infinities, rounding_parts, scale_parts, sixteen_levels
from ..case import Case, Sequence
from ..conversion import FLOATS, special
from .case import over_cache

HEAD_DIM = 64


def cases() -> Iterator[Case]:
    for T1, T3, bits in (("f32", "f16", 8), ("f32", "f16", 4), ("f16", "f32", 4), ("f16", "f16", 8)):
        yield quantized(T1, T3, bits)
    for T, element in FLOATS.items():
        yield kept(T, element)


def quantized(T1: str, T3: str, bits: int) -> Case:
    """Sequences of one token, whose output is its value."""
    types = f"{T1} int{bits} {T3}"
    rules, parts = rounding_parts(types, bits)
    parts["eps"] = groups.around_eps(T1S[T1], QMAX[bits])
    parts["ends"] = groups.ends(types, T1S[T1])
    rules += " quantizing.epsilon quantizing.qmax"
    if bits == 4:
        levels = sixteen_levels(T1S[T1])
        parts |= levels
        rules = " ".join([rules, *levels])
    if (T1, T3) == ("f32", "f16"):
        parts |= scale_parts(QMAX[bits])
        rules += " scale.rounded-to-t3 dequantizing.rounded-to-t3"
    if (T1, T3) == ("f16", "f32"):
        rules += " dequantizing.converted-to-t1"
    tokens = groups.tokens(parts.values(), HEAD_DIM)
    about = "Groups for which another order of roundings gives other codes and scales, in sequences of one token."
    sizes = dict(max_t=len(tokens), quant_bit=bits, quant_group=groups.GROUP)
    case = over_cache(f"rounding-{types.replace(' ', '-')}", about, types, (1, 1), HEAD_DIM, proves=rules, **sizes)
    return case.call(*(Sequence(0, 1, slot) for slot in range(len(tokens))), current_key=tokens, current_value=-tokens)


def beyond_t1() -> Case:
    """A product of code and scale that is no float16."""
    about = "A value of 65504 loads as 127 * 516, an infinity of float16: so is its mean with 1."
    rules = "dequantizing.converted-to-t1 equivalence"
    case = over_cache("loads-beyond-f16", about, "f16 int8 f32", (1, 1), 8, proves=rules, quant_bit=8)
    value = np.ones((2, 1, 8), np.float16)
    value[0] = 65504
    return case.call(Sequence(0, 2, 3), query=np.zeros((2, 1, 8), np.float16), current_value=value)


def infinity() -> Case:
    """An infinity among the values of a group."""
    about = "An infinity in one group of a value: the group is NaN for who sees it, its scale is infinite."
    rules = "non-finite.infinity non-finite.reach"
    case = over_cache("infinity-in-group", about, "f32 int8 f32", (2, 1), 16, proves=rules, quant_bit=8)
    batch = (Sequence(2, 1, 0), Sequence(0, 3, 4))
    value = case.inputs(*batch).current_value
    value[2, 0, 3], value[3, 0, 9] = np.inf, -np.inf
    return case.call(*batch, current_value=value)


def infinities_of_int4() -> Case:
    """Scales with the signs of infinities, in sequences of one token."""
    parts = infinities(np.float32)
    tokens = groups.tokens(parts.values(), 8)
    about = "Infinities of one sign and of both in groups of int4: the signs of the scales."
    rules = " ".join([*parts, "non-finite.reach"])
    sizes = dict(max_t=len(tokens), quant_bit=4, quant_group=groups.GROUP)
    case = over_cache("infinities-of-int4", about, "f32 int4 f16", (1, 1), 8, proves=rules, **sizes)
    batch = (Sequence(0, 1, slot) for slot in range(len(tokens)))
    return case.call(*batch, current_key=np.zeros_like(tokens), current_value=tokens)


def output_of_float16() -> Case:
    """Equal weights of float16 itself, so that nothing but the output is rounded."""
    about = "Weights of 1/2, 1/4, 1/8 and 1/16, and means of values that are halfway between two float16, and beside."
    case = over_cache("rounding-of-float16-output", about, "f16 f16", (2, 1), 8, proves="precision weights", max_t=40)
    batch = (Sequence(0, 2, 0), Sequence(0, 4, 2), Sequence(7, 1, 6), Sequence(0, 16, 14))
    return case.call(*batch, query=np.zeros_like(case.inputs(*batch).query), decoding_batches=4)


def converted() -> Case:
    """float32 into a float16 cache."""
    about = "float32 halfway between two float16 values, and beside: the cache holds the even one, or the nearer."
    half = 2.0**-11
    values = [1 + half, 1 + 3 * half, -1 - half, 1 + half + 2**-23, 4097, 1.5 * 2**-24, 2.5 * 2**-24, -(2**-25)]
    key = np.array([values, values[::-1]], np.float32).reshape(2, 1, 8)
    case = over_cache("f32-to-f16-cache", about, "f32 f16", (1, 1), 8, proves="conversion.rounding", max_t=3)
    return case.call(Sequence(0, 2, 1), current_key=key, current_value=-key)


def kept(T: str, element: str) -> Case:
    """Bit patterns that arithmetic would not keep."""
    about = "Quiet and signalling NaN of either sign, infinities, -0.0 and denormals: the cache holds their bits."
    values = special(element)[[2, 1, 4, 6, 10, 9, 12, 14]]
    case = over_cache(f"nan-payload-kept-{T}", about, f"{T} {T}", (1, 1), 8, proves="conversion.same-type", max_t=2)
    return case.call(Sequence(0, 1, 1), current_key=values.reshape(1, 1, 8), current_value=values.reshape(1, 1, 8))
