"""Bit for bit comparison, with a message that names the first difference."""

from __future__ import annotations

import numpy as np


def assert_same_bits(name: str, got: np.ndarray, expected: np.ndarray, any_nan: bool = False) -> None:
    """The arrays have one type, one shape and the same bytes; with `any_nan` a NaN equals every other NaN."""
    assert got.dtype == expected.dtype, f"{name}: expected {expected.dtype}, got {got.dtype}"
    assert got.shape == expected.shape, f"{name}: expected shape {expected.shape}, got {got.shape}"
    bits = np.dtype(f"u{got.dtype.itemsize}")
    same = np.atleast_1d(got).view(bits) == np.atleast_1d(expected).view(bits)
    if any_nan and got.dtype.kind == "f":
        same |= np.atleast_1d(np.isnan(got) & np.isnan(expected))
    if not same.all():
        first = tuple(int(i) for i in np.argwhere(~same)[0])
        difference = f"expected {np.atleast_1d(expected)[first]!r}, got {np.atleast_1d(got)[first]!r}"
        raise AssertionError(f"{name}: {(~same).sum()} of {same.size} differ, first at {first}: {difference}")


def assert_within(name: str, got: np.ndarray, expected: np.ndarray, tolerance: np.ndarray) -> None:
    """Each finite element is as far from the expected one as its tolerance says, at most; others are the same."""
    assert got.shape == expected.shape, f"{name}: expected shape {expected.shape}, got {got.shape}"
    got, expected, tolerance = (np.asarray(x, np.float64) for x in (got, expected, tolerance))
    with np.errstate(invalid="ignore"):
        near = np.abs(got - expected) <= tolerance
    near = np.where(np.isfinite(expected), near, (got == expected) | (np.isnan(got) & np.isnan(expected)))
    if not near.all():
        first = tuple(int(i) for i in np.argwhere(~near)[0])
        difference = f"expected {expected[first]} within {tolerance[first]}, got {got[first]}"
        raise AssertionError(f"{name}: {(~near).sum()} of {near.size} differ, first at {first}: {difference}")


def assert_same_arrays(got: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """Named arrays hold the same bits."""
    assert got.keys() == expected.keys()
    for name in expected:
        assert_same_bits(name, got[name], expected[name])


def assert_same_outputs(
    got: list[tuple[np.ndarray, np.ndarray]], expected: list[tuple[np.ndarray, np.ndarray]]
) -> None:
    """Lists of (key, value), of steps or of layers, hold the same bits."""
    assert len(got) == len(expected)
    for i, (got_both, expected_both) in enumerate(zip(got, expected)):
        for name, a, b in zip(("key", "value"), got_both, expected_both):
            assert_same_bits(f"{name} {i}", a, b)
