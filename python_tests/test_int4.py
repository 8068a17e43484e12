"""Packed int4: which nibble is whose."""

from __future__ import annotations

import numpy as np
import pytest
from kvcache_ops import pack_int4, unpack_int4

from compare import refused


def test_the_first_element_is_in_the_low_nibble() -> None:
    """Two's complement, as ONNX has it."""
    np.testing.assert_array_equal(pack_int4(np.array([1, -2, 7, -8])), np.array([0xE1, 0x87], np.uint8))
    np.testing.assert_array_equal(unpack_int4(np.array([0xE1, 0x87], np.uint8)), np.array([1, -2, 7, -8], np.int8))


def test_every_byte_there_and_back() -> None:
    """Arrays of any shape, contiguous or not, survive packing and unpacking."""
    packed = np.arange(256, dtype=np.uint8).reshape(4, 8, 8)
    values = unpack_int4(packed)
    assert values.shape == (4, 8, 16) and values.dtype == np.int8
    np.testing.assert_array_equal(pack_int4(values), packed)
    np.testing.assert_array_equal(
        unpack_int4(packed[::2, :, ::2]), values.reshape(4, 8, 8, 2)[::2, :, ::2].reshape(2, 8, 8)
    )
    np.testing.assert_array_equal(pack_int4(values.astype(np.int64)[::-1]), packed[::-1])
    assert pack_int4(np.empty((3, 0), np.int8)).shape == (3, 0) == unpack_int4(np.empty((3, 0), np.uint8)).shape


@pytest.mark.parametrize(
    ("function", "array", "kind", "text"),
    [
        (pack_int4, np.array([0, 8]), "int4_range", "value 8 (element 1)"),
        (pack_int4, np.array([-9, 0], np.int8), "int4_range", "value -9 (element 0)"),
        (pack_int4, np.array([0, 2**40 + 1]), "int4_range", "element 1"),
        (pack_int4, np.array([0, 2**63], np.uint64), "int4_range", "element 1"),
        (pack_int4, np.array([1.0, 2.0]), "type_mismatch", "values are of type float64"),
        (pack_int4, np.array([1, 2, 3]), "int4_shape", "an even last axis"),
        (pack_int4, np.array(1), "int4_shape", "an even last axis"),
        (unpack_int4, np.array([1], np.int8), "type_mismatch", "packed bytes are of type int8"),
        (unpack_int4, np.array(1, np.uint8), "int4_shape", "at least one axis"),
    ],
)
def test_what_is_refused(function, array: np.ndarray, kind: str, text: str) -> None:
    """Nothing is wrapped around or cut off."""
    with refused(kind, text):
        function(array)
