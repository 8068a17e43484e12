"""Bit for bit comparison, with a message that names the first difference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Arrays = dict[str, np.ndarray]


def assert_same_bits(name: str, got: np.ndarray, expected: np.ndarray, any_nan: bool = False) -> None:
    """The arrays have one type, one shape and the same bytes; with `any_nan` a NaN equals every other NaN."""
    assert got.dtype == expected.dtype, f"{name}: expected {expected.dtype}, got {got.dtype}"
    assert got.shape == expected.shape, f"{name}: expected shape {expected.shape}, got {got.shape}"
    got, expected = np.atleast_1d(got), np.atleast_1d(expected)
    bits = np.dtype(f"u{got.dtype.itemsize}")
    same = got.view(bits) == expected.view(bits)
    if any_nan and got.dtype.kind in "fV":  # V: bfloat16
        same |= np.isnan(got) & np.isnan(expected)
    _assert_all(name, same, got, expected)


def assert_within(name: str, got: np.ndarray, *pairs: Sequence[np.ndarray]) -> None:
    """Of one of the pairs of an expected array and its tolerance: each finite element is as far from the expected one
    as its tolerance says, at most; others are the same. The message is of the first pair."""
    assert all(got.shape == expected.shape for expected, _ in pairs), f"{name}: got shape {got.shape}"
    got, results = np.asarray(got, np.float64), []
    for expected, tolerance in pairs:
        expected = np.asarray(expected, np.float64)
        with np.errstate(invalid="ignore"):
            near = np.abs(got - expected) <= tolerance
        same = (got == expected) | (np.isnan(got) & np.isnan(expected))
        results.append((np.where(np.isfinite(expected), near, same), expected))
    if not any(same.all() for same, _ in results):
        same, expected = results[0]
        _assert_all(name, same, got, expected)


def _assert_all(name: str, same: np.ndarray, got: np.ndarray, expected: np.ndarray) -> None:
    if not same.all():
        first = tuple(int(i) for i in np.argwhere(~same)[0])
        difference = f"expected {expected[first]!r}, got {got[first]!r}"
        raise AssertionError(f"{name}: {(~same).sum()} of {same.size} differ, first at {first}: {difference}")


def assert_same_arrays(got: Arrays, expected: Arrays, any_nan: bool = False) -> None:
    """Named arrays hold the same bits."""
    assert got.keys() == expected.keys()
    for name in expected:
        assert_same_bits(name, got[name], expected[name], any_nan)


def assert_same_outputs(got: Sequence[Sequence[np.ndarray]], expected: Sequence[Sequence[np.ndarray]]) -> None:
    """The outputs of several calls, or of several layers, hold the same bits."""
    assert len(got) == len(expected)
    for i, (some, others) in enumerate(zip(got, expected)):
        for position, (a, b) in enumerate(zip(some, others, strict=True)):
            assert_same_bits(f"output {position} of {i}", a, b)
