"""Bit for bit comparison, with a message that names the first difference."""

from __future__ import annotations

import numpy as np


def assert_same_bits(name: str, found: np.ndarray, wanted: np.ndarray, any_nan: bool = False) -> None:
    """The arrays have one type, one shape and the same bytes; with `any_nan` a NaN equals every other NaN."""
    assert found.dtype == wanted.dtype, f"{name}: {found.dtype} instead of {wanted.dtype}"
    assert found.shape == wanted.shape, f"{name}: shape {found.shape} instead of {wanted.shape}"
    bits = np.dtype(f"u{found.dtype.itemsize}")
    same = np.atleast_1d(found).view(bits) == np.atleast_1d(wanted).view(bits)
    if any_nan and found.dtype.kind == "f":
        same |= np.atleast_1d(np.isnan(found) & np.isnan(wanted))
    if not same.all():
        first = tuple(int(i) for i in np.argwhere(~same)[0])
        difference = f"{np.atleast_1d(found)[first]!r} instead of {np.atleast_1d(wanted)[first]!r}"
        raise AssertionError(f"{name}: {(~same).sum()} of {same.size} differ, first at {first}: {difference}")


def assert_same_arrays(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    """Named arrays hold the same bits."""
    assert found.keys() == wanted.keys()
    for name in wanted:
        assert_same_bits(name, found[name], wanted[name])


def assert_same_outputs(
    found: list[tuple[np.ndarray, np.ndarray]], wanted: list[tuple[np.ndarray, np.ndarray]]
) -> None:
    """Lists of (key, value), of steps or of layers, hold the same bits."""
    assert len(found) == len(wanted)
    for i, (found_both, wanted_both) in enumerate(zip(found, wanted)):
        for name, a, b in zip(("key", "value"), found_both, wanted_both):
            assert_same_bits(f"{name} {i}", a, b)
