"""The arithmetic of quantization: each rounding, each edge, for both widths and every pair of T1 and T3."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import ml_dtypes
import numpy as np

from . import groups
from .bits import random_bits
from .case import Case, Sequence, begin, quantized
from .groups import GROUP

# The types that are quantized.
T1S: dict[str, type[np.floating]] = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
QMAX = {8: 127, 4: 8}
CODES = {8: (-127, 127), 4: (-8, 7)}
NON_FINITE_WHY = "arithmetic makes the NaN of a group with a non-finite value, with the machine's sign and payload"
INFINITE_SCALE_WHY = "arithmetic makes a NaN of code 0 times an infinite scale, with the machine's sign and payload"


def cases() -> Iterator[Case]:
    for (T1, T3), bits in product((("f32", "f32"), ("f16", "f16"), ("f32", "f16"), ("f16", "f32")), (8, 4)):
        types = f"{T1} int{bits} {T3}"
        yield rounding(types, bits)
        yield edges(types, bits)
        yield non_finite(types, bits)
        if (bits == 8) == (T1 == T3):
            yield loaded_as_found(types, bits)


def group_case(
    name: str, subject: str, rules: str, types: str, bits: int, parts: dict[str, np.ndarray], any_nan: str | None = None
) -> Case:
    """One token of one head that is made of each part's groups (n, GROUP), then with their signs changed."""
    about, first = f"{subject}.", 0
    for what, values in parts.items():
        about += f" Groups {first} to {first + len(values) - 1}: {what}."
        first += len(values)
    token = np.concatenate(list(parts.values())).reshape(1, 1, -1)
    given = dict(num_heads=1, head_dim=token.size, max_t=2) | quantized(types, bits, GROUP)
    case = begin(f"{name}-{types.replace(' ', '-')}", about, types, proves=rules, any_nan=any_nan, **given)
    return case.call(Sequence(0, 1, 1), current_key=token, current_value=-token)


def rounding(types: str, bits: int) -> Case:
    """Values that distinguish the right order of roundings from others."""
    rules, parts = rounding_parts(types, bits)
    return group_case("rounding", "Where another order of roundings gives other codes", rules, types, bits, parts)


def rounding_parts(types: str, bits: int) -> tuple[str, dict[str, np.ndarray]]:
    """The rules that these groups prove, and groups for each of them."""
    T1, _, T3 = types.split()
    real, qmax = T1S[T1], QMAX[bits]

    def unrounded_quotient(x: np.ndarray, amax: np.floating, s: np.floating) -> np.ndarray:
        return x.astype(np.float64) / np.float64(s)

    def reciprocal(x: np.ndarray, amax: np.floating, s: np.floating) -> np.ndarray:
        return x * (real(1) / s)

    def unrounded_step(x: np.ndarray, amax: np.floating, s: np.floating) -> np.ndarray:
        return x.astype(np.float64) / (np.float64(amax) / qmax)

    def step_of_scale(x: np.ndarray, amax: np.floating, s: np.floating) -> np.ndarray:
        return x / np.float16(s).astype(real)

    parts = {
        "quotients of exactly k + 1/2, half goes to the even code": groups.ties(real, qmax),
        "quotients one float beside k + 1/2": groups.near_ties(real, qmax),
    }
    wrongs = {
        f"the quotient is rounded to {real.__name__} before it is rounded to an integer": unrounded_quotient,
        "a real division, where the reciprocal's product differs": reciprocal,
        f"the step is rounded to {real.__name__} before it divides": unrounded_step,
    }
    rules = "quantizing.amax-quotient quantizing.code-quotient quantizing.real-division quantizing.ties-to-even"
    if bits == 4:
        # An eighth is exact but among denormals, which are beside the constant 1e-5.
        del wrongs[f"the step is rounded to {real.__name__} before it divides"]
        parts["steps around 1e-5, halfway between two denormals of float16"] = groups.around_eps(real, qmax)
    if (T1, T3) == ("f32", "f16"):
        rules += " quantizing.step-of-t1"
        wrongs["the float32 step divides, not the float16 scale it becomes"] = step_of_scale
    for what, wrong_quotient in wrongs.items():
        parts[what] = groups.revealing(f"{types} {what}", real, qmax, wrong_quotient)
    return rules, parts


def edges(types: str, bits: int) -> Case:
    """Zeros, denormals, the constant 1e-5, every magnitude and both ends of the codes."""
    T1, _, T3 = types.split()
    real, qmax, (low_code, high_code) = T1S[T1], QMAX[bits], CODES[bits]
    low, high, stride = (-24, 15, 1) if "f16" in (T1, T3) else (-149, 120, 7)
    tiny = float(ml_dtypes.finfo(real).smallest_subnormal)
    zeros = np.zeros((4, GROUP), real)
    zeros[1] = -0.0
    zeros[2] = [tiny, -tiny, 2 * tiny, -3 * tiny, 0.0, -0.0, tiny, tiny]
    zeros[3] = [1, -1e-3, 1e-3, -tiny, -0.0, -(2**-9), 0.0, -1]
    parts = {
        "amax / qmax up to four floats below, at and above 1e-5": groups.around_eps(real, qmax),
        "zeros, -0.0, denormals, small negatives whose code 0 loads as +0.0": zeros,
        f"the largest and the float before it, of both signs, codes from {low_code} to {high_code}": groups.ends(
            types, real
        ),
        f"magnitudes from 2^{low} to 2^{high}": groups.sweep(f"sweep {types}", real, low, high)[::stride],
    }
    subject = "The step never falls below 1e-5 in T1, the codes stay within their range"
    return group_case("edges", subject, "quantizing.epsilon quantizing.qmax quantizing.groups", types, bits, parts)


def sixteen_levels(T1: type[np.floating]) -> dict[str, np.ndarray]:
    """By rule, groups (n, GROUP) of finite values for which 15 codes, or another sign of the scale, give other bits."""
    tiny = float(ml_dtypes.finfo(T1).smallest_subnormal)
    sizes = np.array([[0.37], [1], [3.3], [190]])
    positive, negative = np.array([8, -6, 3, 7, -1, 4.4, 0, -7.9]), np.array([-8, -6, 3, 7, -1, 4.4, 0, 7.9])
    opposite = np.array([-8, 7.4, 7.5, 7.6, 7.99, 6.5, 7, -0.4])
    ties = np.array([[1, -1, 0.99, -0.99, 0.5, -0.5, 0.06, 0], [-3, 0, 0.1, 2, -1, 3, 3, -3], [0] * 8, [-0.0] * 8])
    below = np.array([[tiny, -tiny, 0, 0, 0, 0, 0, 0], [1e-6, 0, -1e-6, 0, 0, 0, 0, 0]])
    parts = {
        "quantizing.int4-sign": np.concatenate([sizes * positive, sizes * negative, [[1e-6] * 8, [-tiny] * 8]]),
        "quantizing.int4-lowest": sizes * np.array([-8, -7.6, -7.4, -6.5, -7.5, -5, -0.4, 0]),
        "quantizing.int4-clamp": sizes * opposite,
        "quantizing.int4-tie": np.concatenate([ties, below]),
    }
    return {rule: values.astype(T1) for rule, values in parts.items()}


def infinities(T1: type[np.floating]) -> dict[str, np.ndarray]:
    """By rule, groups (n, GROUP) with infinities."""
    inf = np.inf
    one = [[1, -2, 3, inf, 0, 0.5, -4, 2], [inf, 1, inf, -3, 0, 0, 0, 0], [inf] * 8]
    return {
        "non-finite.int4-infinity": np.array(one, T1),
        "non-finite.int4-infinities": np.array([[1, -2, 3, inf, 0, -inf, -4, 2], [-inf, inf] * 4], T1),
    }


def int4_rules() -> Iterator[Case]:
    """What int4 has for itself: a case for each rule."""
    for types in ("f32 int4 f16", "f16 int4 f32", "bf16 int4 f32"):
        real = T1S[types.split()[0]]
        for rule, values in (sixteen_levels(real) | infinities(real)).items():
            any_nan = None if np.isfinite(values).all() else NON_FINITE_WHY
            subject = rule.split(".")[1].replace("-", " ")
            what = f"what `{rule}` tells apart, and then with other signs"
            name = rule.split(".")[1]
            yield group_case(name, f"Groups of {subject}", rule, types, 4, {what: values}, any_nan)


def non_finite(types: str, bits: int) -> Case:
    """NaN and Inf make their group load as NaN, in this call and in the next, and change no other group."""
    values = np.tile(np.array([1, -2, 3, 0.5, -0.25, 0, 4, -4], T1S[types.split()[0]]), (6, 1))
    values[0, 3] = np.nan
    values[1, 0] = np.inf
    values[2, 7] = -np.inf
    values[3, 1], values[3, 6] = np.nan, np.inf
    values[4, :] = np.nan
    subject = "NaN makes the step NaN, Inf makes it Inf, both make the codes 0: the group loads as NaN, no other does"
    parts = {"one NaN, Inf, -Inf, NaN beside Inf, only NaN, and none of them": values}
    case = group_case("poison", subject, "non-finite.nan non-finite.infinity", types, bits, parts, NON_FINITE_WHY)
    return case.call(Sequence(1, 1, 0))


def loaded_as_found(types: str, bits: int) -> Case:
    """Codes and scales that no store writes."""
    name = f"found-in-cache-{types.replace(' ', '-')}"
    T3 = T1S[types.split()[2]]
    tiny = float(np.finfo(T3).smallest_subnormal)
    steps = np.array([tiny, 3 * tiny, -0.5, 0.0, -0.0, 1, 2**-14 / 3, 300.125], T3)
    scale = np.stack([steps, steps[::-1]] * 3).reshape(3, 1, 2, 1, 8)
    lowest = -(2 ** (bits - 1))
    cache = random_bits(f"{name} cache", (3, 1, 2, 1, 64), f"int{bits}")
    cache[..., ::8] = lowest
    cache[..., 1::8] = 0
    about = f"A prefix with code {lowest}, with negative, zero and denormal scales, loads by the same product."
    rules = "dequantizing.rounded-to-t3 dequantizing.converted-to-t1" + (" int4.nibbles" if bits == 4 else "")
    state = dict(cache=cache, scale=scale)
    case = begin(name, about, types, proves=rules, num_heads=1, head_dim=64, **state, quant_bit=bits, quant_group=GROUP)
    return case.call(Sequence(2, 1, 0))


def scale_conversion() -> Iterator[Case]:
    """A float32 step becomes a float16 scale."""
    rules = "scale.rounded-to-t3 dequantizing.rounded-to-t3"
    for bits, qmax in QMAX.items():
        types = f"f32 int{bits} f16"
        parts = scale_parts(qmax)
        beyond = "products of code and scale beyond float16, Inf in a float32 key"
        parts[beyond] = of_steps([65504, 600, 3e4, 9400], qmax)
        yield group_case(
            "scale-to-f16", "A float32 step becomes a float16 scale, nearest even", rules, types, bits, parts
        )

        parts = {"steps around and far beyond 65520": of_steps([65519.99, 65520, 65536, 1e6, 1e30, 2e36], qmax)}
        subject = "A float32 step from 65520 on is an infinite float16 scale: codes load as Inf, code 0 as NaN"
        yield group_case("scale-overflows-f16", subject, rules, types, bits, parts, INFINITE_SCALE_WHY)


def scale_parts(qmax: int) -> dict[str, np.ndarray]:
    """Groups whose float32 step is no float16."""
    half = 2.0**-11
    halfway = [1 + half, 1 + 3 * half, 1 + 2 * half, 2 + 2 * half]
    return {
        "steps halfway between two float16 values, and on one": of_steps(halfway, qmax),
        "steps among float16's denormals": of_steps([2**-14 - 2**-25, 2.5 * 2**-16, 1e-5, 1.1e-5], qmax),
    }


def of_steps(steps: list[float], qmax: int) -> np.ndarray:
    """Groups (n, GROUP) of float32 with these steps."""
    shares = np.array([1, -1, 0.75, -0.3, 0.01, 0, 0.5, -0.9], np.float32)
    return (np.array(steps) * qmax).astype(np.float32)[:, None] * shares


def largest_values() -> Iterator[Case]:
    """The ends of T1's range."""
    rules = "quantizing.amax-quotient dequantizing.rounded-to-t3 dequantizing.converted-to-t1"
    for bits, (T1, T3) in product((8, 4), (("f16", "f32"), ("f16", "f16"), ("f32", "f32"))):
        largest = np.finfo(T1S[T1]).max
        values = np.full((3, GROUP), largest, T1S[T1])
        values[1] = largest / np.array([1, -2, 4, -8, 16, -32, 64, -128], T1S[T1])
        values[2, ::2] = -np.nextafter(largest, T1S[T1](0))
        subject = "Where the step of the largest values was rounded up, what is loaded is beyond T1: Inf"
        if bits == 4:
            subject = "An eighth of the largest values is exact: they load as they are"
        parts = {f"values up to {float(largest):.6g}": values}
        yield group_case("largest", subject, rules, f"{T1} int{bits} {T3}", bits, parts)
