"""Reproducible random values: bytes hashed from a label, numbers built from integers, never from a library's random
generator."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from functools import wraps

import numpy as np
from ml_dtypes import finfo

from oracle.call import NUMPY_TYPES

I64_MIN, I64_MAX = -(2**63), 2**63 - 1


def random_bytes(label: str, count: int) -> bytes:
    """`count` bytes that depend on the label alone."""
    return hashlib.shake_128(label.encode()).digest(count)


def random_integers(label: str, shape: tuple[int, ...], low: int, high: int) -> np.ndarray:
    """int64 values in [low, high)."""
    raw = np.frombuffer(random_bytes(label, 4 * math.prod(shape)), "<u4").astype(np.int64)
    return low + raw.reshape(shape) % (high - low)


def few_rows(draw: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Tensors of a case whose name begins with "large-" are drawn from 32 rows, so that their files compress."""

    @wraps(draw)
    def drawn(label: str, shape: tuple[int, ...], element: str) -> np.ndarray:
        if not label.startswith("large-") or math.prod(shape[:-1]) <= 32:
            return draw(label, shape, element)
        return draw(label, (32, shape[-1]), element)[random_integers(f"{label} rows", shape[:-1], 0, 32)]

    return drawn


@few_rows
def random_bits(label: str, shape: tuple[int, ...], element: str) -> np.ndarray:
    """Every bit pattern of the type, NaN and Inf included. int4 comes as int8 from -8 to 7."""
    if element == "int4":
        return random_integers(label, shape, -8, 8).astype(np.int8)
    dtype = np.dtype(NUMPY_TYPES.get(element, element)).newbyteorder("<")
    return np.frombuffer(random_bytes(label, dtype.itemsize * math.prod(shape)), dtype).reshape(shape).copy()


@few_rows
def random_values(label: str, shape: tuple[int, ...], element: str) -> np.ndarray:
    """Finite values between -8 and 8 with a full mantissa; each row has a magnitude of its own. Codes: all."""
    if element in ("int8", "int4"):
        return random_bits(label, shape, element)
    if element == "float8e4m3fn":
        codes = random_bits(label, shape, element)
        return np.where(np.isnan(codes), codes.dtype.type(0), codes)
    digits = finfo(NUMPY_TYPES[element]).nmant + 1
    mantissa = random_integers(f"{label} mantissa", shape, 1 - 2**digits, 2**digits)
    exponent = random_integers(f"{label} exponent", (*shape[:-1], 1), 3 - digits - 6, 3 - digits + 1)
    return np.ldexp(mantissa.astype(np.float64), exponent).astype(NUMPY_TYPES[element])


def random_scales(label: str, shape: tuple[int, ...], element: str) -> np.ndarray:
    """Positive values up to 1/16, as a step of quantization would be."""
    return np.abs(random_values(label, shape, element)) / np.dtype(element).type(128)
