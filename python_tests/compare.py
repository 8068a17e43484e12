"""Comparisons: bit for bit, with a message that names the first difference; and refusals by their kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
from kvcache_ops import KvCacheError
from kvcache_ops.manager import ManagerError

Arrays = dict[str, np.ndarray]


def assert_same_bits(name: str, got: np.ndarray, expected: np.ndarray) -> None:
    """The arrays have one type, one shape and the same bytes."""
    assert got.dtype == expected.dtype, f"{name}: expected {expected.dtype}, got {got.dtype}"
    assert got.shape == expected.shape, f"{name}: expected shape {expected.shape}, got {got.shape}"
    got, expected = np.atleast_1d(got), np.atleast_1d(expected)
    bits = np.dtype(f"u{got.dtype.itemsize}")
    same = got.view(bits) == expected.view(bits)
    _assert_all(name, same, got, expected)


def _assert_all(name: str, same: np.ndarray, got: np.ndarray, expected: np.ndarray) -> None:
    if not same.all():
        first = tuple(int(i) for i in np.argwhere(~same)[0])
        difference = f"expected {expected[first]!r}, got {got[first]!r}"
        raise AssertionError(f"{name}: {(~same).sum()} of {same.size} differ, first at {first}: {difference}")


def assert_same_arrays(got: Arrays, expected: Arrays) -> None:
    """Named arrays hold the same bits."""
    assert got.keys() == expected.keys()
    for name in expected:
        assert_same_bits(name, got[name], expected[name])


def assert_same_outputs(got: Sequence[Sequence[np.ndarray]], expected: Sequence[Sequence[np.ndarray]]) -> None:
    """The outputs of several calls, or of several layers, hold the same bits."""
    assert len(got) == len(expected)
    for i, (some, others) in enumerate(zip(got, expected)):
        for position, (a, b) in enumerate(zip(some, others, strict=True)):
            assert_same_bits(f"output {position} of {i}", a, b)


@contextmanager
def refused(kind: str, text: str = "", **details: object) -> Iterator[pytest.ExceptionInfo[KvCacheError]]:
    """Expects a `KvCacheError` of this kind, with this text, and of the manager with these numbers."""
    with pytest.raises(KvCacheError) as refusal:
        yield refusal
    assert refusal.value.kind == kind and text in str(refusal.value), repr(refusal.value)
    if details:
        assert type(refusal.value) is ManagerError
        assert {name: refusal.value.details.get(name, "absent") for name in details} == details
