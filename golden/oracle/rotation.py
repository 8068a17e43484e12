"""The rotation of keys before they are quantized: blocks of the normalized Sylvester-Hadamard matrix, its own inverse.

The matrix of order 2n is [[M, M], [M, -M]], where M is the one of order n; its butterflies are additions and
subtractions.
"""

from __future__ import annotations

import math

import numpy as np

from .call import STATIC_SCALES, Attributes
from .portable import converted, plain_nan

POWERS = [2**exponent for exponent in range(9)]


def order(head_dim: int, group: int) -> int:
    """n, the order of a block: the largest power of two that divides the head, at most the group or 32 and at most 256.

    `group` is `quant_group`, or with static scales `head_dim`.
    """
    return max(n for n in POWERS if head_dim % n == 0 and n <= max(32, group))


def order_of(attributes: Attributes, head_dim: int) -> int:
    """The order of a call's blocks."""
    return order(head_dim, head_dim if attributes.quant_type == STATIC_SCALES else attributes.quant_group)


def factor(n: int) -> np.float32:
    """The float32 nearest n^-1/2."""
    return np.float32(1 / math.sqrt(n))


def butterfly(x: np.ndarray, distance: int) -> np.ndarray:
    """The stage of a distance: of heads x (..., Dh) each a and b, which lie so far apart, become a + b and a - b."""
    pairs = x.reshape(*x.shape[:-1], x.shape[-1] // (2 * distance), 2, distance)
    a, b = pairs[..., 0, :], pairs[..., 1, :]
    return np.stack([a + b, a - b], axis=-2).reshape(x.shape)


def distances(n: int) -> list[int]:
    """The stages' distances, in their order."""
    return [distance for distance in POWERS if distance < n]


def rotated(x: np.ndarray, n: int) -> np.ndarray:
    """Heads x (..., Dh) of T1, rotated in blocks of n in float32 and rounded to T1; heads of float64 in float64."""
    turned = x if x.dtype == np.float64 else converted(x, np.float32)
    with np.errstate(invalid="ignore", over="ignore"):  # values that are not finite reach their block
        for distance in distances(n):
            turned = butterfly(turned, distance)
        turned = turned * turned.dtype.type(factor(n))
    return plain_nan(converted(turned, x.dtype.type))
