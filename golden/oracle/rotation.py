"""The rotation of keys before they are quantized: blocks of the normalized Sylvester-Hadamard matrix, its own inverse.

The matrix of order 2n is [[M, M], [M, -M]] of that of order n; its butterflies are additions and subtractions.
"""

from __future__ import annotations

import math

import numpy as np

from .portable import converted, plain_nan

MAX_ORDER = 256


def order(head_dim: int) -> int:
    """n, the order of a block: the largest power of two that divides the head, at most 256."""
    return math.gcd(head_dim, MAX_ORDER)


def factor(head_dim: int) -> np.float32:
    """The float32 nearest n^-1/2."""
    return np.float32(1 / math.sqrt(order(head_dim)))


def butterfly(x: np.ndarray, distance: int) -> np.ndarray:
    """The stage of a distance: of heads x (..., Dh) each a and b, which lie so far apart, become a + b and a - b."""
    pairs = x.reshape(*x.shape[:-1], x.shape[-1] // (2 * distance), 2, distance)
    a, b = pairs[..., 0, :], pairs[..., 1, :]
    return np.stack([a + b, a - b], axis=-2).reshape(x.shape)


def distances(head_dim: int) -> list[int]:
    """Those of the stages, in their order."""
    return [1 << stage for stage in range(order(head_dim).bit_length() - 1)]


def rotated(x: np.ndarray) -> np.ndarray:
    """Heads x (..., Dh) of T1, rotated in float32 and rounded to T1; heads of float64 in float64."""
    turned = x if x.dtype == np.float64 else converted(x, np.float32)
    with np.errstate(invalid="ignore", over="ignore"):  # values that are not finite reach their block
        for distance in distances(x.shape[-1]):
            turned = butterfly(turned, distance)
        turned = turned * turned.dtype.type(factor(x.shape[-1]))
    return plain_nan(converted(turned, x.dtype.type))
