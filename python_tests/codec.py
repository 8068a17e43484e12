"""How rows are stored, in numpy: the golden oracle's arithmetic over whole arrays, and the K-shift of stored keys."""

from __future__ import annotations

import numpy as np

from key_shift import turned
from kvcache import NUMPY_TYPES, CacheFormat
from setting import INT4


def encode(x: np.ndarray, format: CacheFormat) -> tuple[np.ndarray, np.ndarray | None]:
    """Rows (..., Dh) of T1 as stored: values of T2, or codes (int8, one each for int4 too) and scales of T3."""
    if not format.quant_bit:
        with np.errstate(over="ignore"):
            return x.astype(NUMPY_TYPES[format.cache_type]), None
    t1 = x.dtype.type
    groups = x.reshape(*x.shape[:-1], -1, format.quant_group)
    qmax = 2 ** (format.quant_bit - 1) - 1
    scale = np.maximum(np.abs(groups).max(-1, keepdims=True) / t1(qmax), t1(1e-5))
    codes = np.clip(np.rint(groups / scale), t1(-qmax), t1(qmax))
    return codes.astype(np.int8).reshape(x.shape), scale[..., 0].astype(NUMPY_TYPES[format.scale_type])


def decode(stored: np.ndarray, scale: np.ndarray | None, format: CacheFormat, t1: type[np.floating]) -> np.ndarray:
    """What a T1 cache node loads: rows (..., Dh)."""
    if scale is None:
        with np.errstate(over="ignore"):
            return stored.astype(t1)
    groups = stored.reshape(*stored.shape[:-1], -1, format.quant_group).astype(scale.dtype)
    return (groups * scale[..., None]).reshape(stored.shape).astype(t1)


def shifted(
    stored: np.ndarray,
    scale: np.ndarray | None,
    deltas: np.ndarray,
    format: CacheFormat,
    frequency: np.ndarray,
    style: str = "neox",
) -> tuple[np.ndarray, np.ndarray | None]:
    """Stored keys after a K-shift: decoded to float32, turned, encoded; rows of delta 0 keep their bytes."""
    keys = turned(decode(stored, scale, format, np.float32), deltas, frequency, style)
    new, new_scale = encode(keys, format)
    still = np.asarray(deltas) == 0
    new[still] = stored[still]
    if scale is not None:
        new_scale[still] = scale[still]
    return new, new_scale


def packed(stored: np.ndarray, format: CacheFormat) -> np.ndarray:
    """Stored rows as a cache holds them: of int4 two in a byte, the first in the low nibble."""
    if format.cache_type != INT4:
        return stored
    nibbles = stored.astype(np.uint8) & 15
    return nibbles[..., 0::2] | nibbles[..., 1::2] << 4


def unpacked(rows: np.ndarray, format: CacheFormat) -> np.ndarray:
    """The inverse of `packed`."""
    if format.cache_type != INT4:
        return rows
    nibbles = np.stack([rows & 15, rows >> 4], axis=-1).reshape(*rows.shape[:-1], -1)
    return (nibbles.astype(np.int8) ^ 8) - 8
