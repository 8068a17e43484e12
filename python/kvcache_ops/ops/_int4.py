"""Packed int4, which numpy does not have: two elements in a byte, the first in the low nibble."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcache_ops import _native
from kvcache_ops._errors import KvCacheError


def pack_int4(values: NDArray[np.integer[Any]]) -> NDArray[np.uint8]:
    """The bytes of int4 values, -8 to 7: (..., n) becomes (..., n / 2), element 2i in the low nibble of byte i.

    Raises KvCacheError: "int4_range" for other values, "int4_shape" for an odd or missing last axis, "type_mismatch"
    for anything but an array of integers.
    """
    values = np.asarray(values)
    if values.dtype.kind not in "iu":
        raise KvCacheError(f"values are of type {values.dtype}, expected integers", "type_mismatch")
    if values.ndim == 0 or values.shape[-1] % 2:
        raise KvCacheError(f"values have shape {values.shape}, expected an even last axis", "int4_shape")
    # What leaves int8 leaves int4 too.
    within = np.clip(values, -128, 127).astype(np.int8)
    return _native.pack_int4(within.reshape(-1)).reshape(*values.shape[:-1], values.shape[-1] // 2)


def unpack_int4(packed: NDArray[np.uint8]) -> NDArray[np.int8]:
    """The int4 values of packed bytes, one int8 each: (..., n) becomes (..., 2n).

    Raises KvCacheError of kind "type_mismatch" for anything but an array of uint8, "int4_shape" for a scalar.
    """
    packed = np.asarray(packed)
    if packed.dtype != np.uint8:
        raise KvCacheError(f"packed bytes are of type {packed.dtype}, expected uint8", "type_mismatch")
    if packed.ndim == 0:
        raise KvCacheError("packed bytes are a scalar, expected at least one axis", "int4_shape")
    return _native.unpack_int4(packed.reshape(-1)).reshape(*packed.shape[:-1], 2 * packed.shape[-1])
