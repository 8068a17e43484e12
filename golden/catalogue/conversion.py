"""Unquantized values: bits that must be kept, and the conversion to and from a cache of another type."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .bits import random_bits
from .case import Case, Sequence, begin

# What the cases between different types prove.
RULE = "conversion.rounding"
NAN_WHY = "a conversion of NaN between float types may choose any NaN"
FLOATS = {"f32": "float32", "f16": "float16"}


def special(element: str) -> np.ndarray:
    """Quiet and signalling NaN, infinity, zero and denormals: eight, then these with the sign bit."""
    bits, mantissa = np.dtype(element).itemsize * 8, np.finfo(element).nmant
    sign, infinity, quiet = 1 << (bits - 1), (1 << (bits - 1)) - (1 << mantissa), 1 << (mantissa - 1)
    patterns = [infinity | quiet, infinity | 1, infinity | quiet | 5, infinity | quiet - 1, infinity, 0, 1, quiet]
    return np.array([*patterns, *(pattern | sign for pattern in patterns)], f"uint{bits}").view(element)


def current(values: np.ndarray) -> dict[str, np.ndarray]:
    """current_key as the values (T, H, Dh), current_value as the values from last to first."""
    return dict(current_key=values, current_value=np.ascontiguousarray(values.reshape(-1)[::-1].reshape(values.shape)))


def bits_kept() -> Iterator[Case]:
    """Where T1 is T2, bytes are copied."""
    for T, element in FLOATS.items():
        values = special(element).reshape(2, 1, 8)
        name = f"nan-payload-kept-{T}-{T}"
        about = "Quiet and signalling NaN of either sign keep their payload, as do infinities, -0.0 and denormals."
        case = begin(name, about, f"{T} {T}", proves="conversion.same-type", num_heads=1, max_t=4, num_repeat=2)
        yield case.call(Sequence(1, 2, 1), **current(values))
    for cache_layout in (0, 3):
        name = f"every-byte-kept-int8-layout{cache_layout}"
        values = np.arange(-128, 128).astype(np.int8).reshape(4, 4, 16)
        about = "int8 to int8: all 256 values, -128 too."
        sizes = dict(num_heads=4, head_dim=16, max_t=6)
        case = begin(name, about, "int8 int8", proves="conversion.same-type", **sizes, cache_layout=cache_layout)
        yield case.call(Sequence(1, 4, 1), **current(values))
    for T, element in FLOATS.items():
        name = f"random-bits-kept-{T}"
        values = random_bits(f"{name} current", (4, 2, 8), element)
        about = "Random bit patterns are stored and loaded as they are, in pages out of order."
        given = dict(cache_mode=1, page_size=2, cache_layout=2, num_repeat=2)
        case = begin(name, about, f"{T} {T}", proves="conversion.same-type", **given)
        yield case.call(Sequence(1, 4, (7, 1, 4)), **current(values))


def narrowing() -> Iterator[Case]:
    """float32 into a float16 cache: round to nearest even; key shows what the cache kept."""
    half = 2.0**-11
    subjects = {
        "ties": (
            "Halfway between two float16 values goes to the even one; a float32 step off halfway goes to the nearer.",
            [1 + half, 1 + 3 * half, -1 - half, -1 - 3 * half, 1 + half + 2**-23, 1 + half - 2**-23, 4097, 4099],
        ),
        "overflow": (
            "From 65520, halfway between 65504 and 65536, a float16 cache holds an infinity.",
            [65504, 65519.996, 65520, -65519.996, -65520, 65536, 3.4e38, -3.4e38],
        ),
        "denormal": (
            "Below 2^-14 float16 has steps of 2^-24: ties to even, half a step or less is a zero that keeps its sign.",
            [2**-14, 2**-14 - 2**-25, 2**-24, 1.5 * 2**-24, 2.5 * 2**-24, 2**-25, 2**-25 + 2**-48, -(2**-25)],
        ),
        "zero": (
            "-0.0 and float32 denormals of either sign become zeros of that sign.",
            [0.0, -0.0, 2**-149, -(2**-149), 2**-126 - 2**-149, -(2**-127), 2**-100, -(2**-26)],
        ),
    }
    for subject, (about, values) in subjects.items():
        case = begin(f"f32-to-f16-cache-{subject}", about, "f32 f16", proves=RULE, num_heads=1, max_t=3)
        yield case.call(Sequence(1, 1, 1), **current(np.array(values, np.float32).reshape(1, 1, 8)))

    values = np.array([np.nan, np.inf, -np.inf, -np.nan, 1, -1, 0, 65504], np.float32).reshape(1, 1, 8)
    about = "NaN and infinities pass through a float16 cache as NaN and infinities."
    case = begin("f32-to-f16-cache-nan-inf", about, "f32 f16", proves=RULE, num_heads=1, max_t=3, any_nan=NAN_WHY)
    yield case.call(Sequence(1, 1, 1), **current(values))


def widening() -> Iterator[Case]:
    """float16 into a float32 cache is exact, and what the cache held before is narrowed on load."""
    smallest, largest = 2**-24, 2**-14 - 2**-24
    values = np.array([smallest, -smallest, largest, 2**-14, 65504, -65504, 0.0, -0.0], np.float16).reshape(1, 1, 8)
    about = "float16 into a float32 cache: denormals, the largest value and -0.0 are exact there and back."
    case = begin("f16-to-f32-cache-exact", about, "f16 f32", proves=RULE, num_heads=1, max_t=3)
    yield case.call(Sequence(1, 1, 1), **current(values))

    held = [1 + 2**-11, 1 + 3 * 2**-11, 65519.996, 65520, -1e30, 2**-25, 1.5 * 2**-24, -(2**-149)]
    cache = np.array(held * 6, np.float32).reshape(3, 1, 2, 1, 8)
    about = "Loading float16 from a float32 cache that holds finer and larger values rounds to nearest even."
    case = begin("f16-from-f32-cache-rounds", about, "f16 f32", proves=RULE, num_heads=1, cache=cache)
    yield case.call(Sequence(2, 1, 0))

    values = np.array([np.nan, np.inf, -np.inf, -np.nan, 1, -1, 0, 65504], np.float16).reshape(1, 1, 8)
    about = "NaN and infinities pass through a float32 cache as NaN and infinities."
    case = begin("f16-to-f32-cache-nan-inf", about, "f16 f32", proves=RULE, num_heads=1, max_t=3, any_nan=NAN_WHY)
    yield case.call(Sequence(1, 1, 1), **current(values))
