"""The operator in a few lines, for the pictures: places in a cache, and the codes of a group.

python_tests/test_book.py holds it against the library.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise, product

# The axes of `cache` but the last, outermost first: slot, layer, key or value, head.
AXES = {0: ("t", "l", "kv", "h"), 1: ("l", "t", "kv", "h"), 2: ("l", "kv", "t", "h"), 3: ("l", "kv", "h", "t")}
NAMES = {0: "TokenMajor", 1: "LayerMajor", 2: "KvMajor", 3: "HeadMajor"}
SHAPES = {"t": "MaxT", "l": "L", "kv": "2", "h": "H"}


@dataclass(frozen=True)
class Place:
    """A row of `head_dim` elements of a cache: whose it is."""

    t: int
    l: int  # noqa: E741, the axis' name
    kv: int
    h: int


def memory(cache_layout: int, sizes: dict[str, int]) -> list[Place]:
    """The rows of a cache in the order of memory."""
    axes = AXES[cache_layout]
    return [Place(**dict(zip(axes, at))) for at in product(*(range(sizes[axis]) for axis in axes))]


def pieces(rows: list[Place], wanted: Callable[[Place], bool]) -> int:
    """In how many contiguous pieces of memory the wanted rows lie."""
    hits = [False, *map(wanted, rows)]
    return sum(here and not before for before, here in pairwise(hits))


def paged_slot(cachestarts: list[list[int]], page_size: int, b: int, t: int) -> int:
    """The slot of token `t` of sequence `b` in paged mode."""
    return cachestarts[b][t // page_size] + t % page_size


def float32(value: float) -> float:
    """The nearest float32, as T1 rounds."""
    return struct.unpack("f", struct.pack("f", value))[0]


@dataclass(frozen=True)
class Quantized:
    """A group of T1 float32 in a cache with float32 scales."""

    amax: float
    scale: float
    quotients: list[float]
    codes: list[int]
    loaded: list[float]


def quantize(group: list[float], quant_bit: int) -> Quantized:
    """The rules "Quantizing" and "Dequantizing" of the operator's page."""
    x = [float32(value) for value in group]
    qmax = 2 ** (quant_bit - 1) - 1
    amax = max(map(abs, x))
    scale = max(float32(amax / qmax), float32(1e-5))
    quotients = [float32(value / scale) for value in x]
    codes = [max(-qmax, min(qmax, round(quotient))) for quotient in quotients]  # round: ties to even
    return Quantized(amax, scale, quotients, codes, [float32(code * scale) for code in codes])


def nibbles(codes: list[int]) -> list[int]:
    """The bytes of int4 codes: the first of two is in the low nibble."""
    return [(low & 15) | (high & 15) << 4 for low, high in zip(codes[::2], codes[1::2])]
