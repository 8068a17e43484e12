"""Groups of values for which a wrong order of roundings gives other codes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from .bits import random_integers, random_values

GROUP = 8

# From the values x, their group's amax and its step s (all T1): the quotient that a wrong kernel would round.
WrongQuotient = Callable[[np.ndarray, np.floating, np.floating], np.ndarray]


def step(amax: np.floating, qmax: int) -> np.floating:
    """The step s of a group, a T1."""
    T1 = type(amax)
    return np.maximum(amax / T1(qmax), T1(1e-5))


def rows(values: np.ndarray, amax: float) -> np.ndarray:
    """The values in groups (n, GROUP) that begin with amax each; a last short group is filled with zeros."""
    beside = GROUP - 1
    padded = np.append(values, np.zeros(-len(values) % beside, values.dtype)).reshape(-1, beside)
    return np.insert(padded, 0, amax, axis=1)


def tokens(parts: Iterable[np.ndarray], head_dim: int) -> np.ndarray:
    """The groups of all parts as tokens (n, 1, head_dim) of one head; the last is filled with zeros."""
    values = np.concatenate(list(parts)).reshape(-1)
    return np.append(values, np.zeros(-len(values) % head_dim, values.dtype)).reshape(-1, 1, head_dim)


def ties(T1: type[np.floating], qmax: int) -> np.ndarray:
    """Groups (n, GROUP) of step 1/8 exactly, whose quotients are k + 1/2 for every k, both signs."""
    return rows(((np.arange(-qmax, qmax) + 0.5) / 8).astype(T1), qmax / 8)


def near_ties(T1: type[np.floating], qmax: int) -> np.ndarray:
    """As `ties`, one value of T1 below and one above each."""
    exact = ((np.arange(-qmax, qmax) + 0.5) / 8).astype(T1)
    both = np.stack([np.nextafter(exact, T1(-np.inf)), np.nextafter(exact, T1(np.inf))], axis=1)
    return rows(both.reshape(-1)[:: 1 if qmax == 8 else 3], qmax / 8)


def revealing(label: str, T1: type[np.floating], qmax: int, wrong_quotient: WrongQuotient) -> np.ndarray:
    """12 groups (12, GROUP) with values whose code is another one by the wrong quotient."""
    found: list[np.ndarray] = []
    for amax in amaxes(label, T1):
        s = step(amax, qmax)
        middle = (s * (np.arange(qmax).astype(T1) + T1(0.5))).astype(T1)
        x = np.concatenate([np.nextafter(middle, T1(0)), middle, np.nextafter(middle, T1(np.inf))])
        right, wrong = np.rint(x / s), np.rint(wrong_quotient(x, amax, s))
        telling = x[(right != wrong) & (x < amax)][: GROUP - 1]
        if len(telling):
            found.append(rows(telling, amax)[0])
        if len(found) == 12:
            return np.stack(found)
    raise AssertionError(f"{label}: too few groups show a difference")


def amaxes(label: str, T1: type[np.floating]) -> Iterator[np.floating]:
    """Positive values of T1 with full mantissas, from 1/64 to 8."""
    element = np.dtype(T1).name
    for amax in np.abs(random_values(label, (2000, 1), element)).reshape(-1):
        if amax > 1 / 64:
            yield amax


def sweep(label: str, T1: type[np.floating], low: int, high: int) -> np.ndarray:
    """Groups (high - low, GROUP) of random values, one for every power of two as its magnitude."""
    element = np.dtype(T1).name
    values = random_values(label, (high - low, GROUP), "float16").astype(np.float64) / 8
    last = random_integers(f"{label} sign", (high - low, 1), 0, 2) * 2 - 1
    values = np.where(np.arange(GROUP) == 5, last * 0.99, values)
    return np.ldexp(values, np.arange(low, high).reshape(-1, 1)).astype(element)


def around_eps(T1: type[np.floating], qmax: int) -> np.ndarray:
    """Groups (9, GROUP) whose amax / qmax lies up to four values of T1 below and above the constant 1e-5."""
    amax = T1(qmax) * T1(1e-5)
    for _ in range(4):
        amax = np.nextafter(amax, T1(0))
    groups = []
    for _ in range(9):
        factors = np.array([1, -1, 0.5, -0.5, 1.5 / qmax, -2.5 / qmax, 0.5 / qmax, 0], np.float64)
        groups.append((factors * np.float64(amax)).astype(T1))
        amax = np.nextafter(amax, T1(np.inf))
    return np.stack(groups)


def ends(label: str, T1: type[np.floating]) -> np.ndarray:
    """Groups (6, GROUP) of nothing but their largest value and the float before it, of both signs."""
    amax = np.abs(sweep(f"ends {label}", T1, -3, 3)).max(axis=1)
    before = np.nextafter(amax, T1(0))
    return np.stack([amax, -amax, before, -before] * 2, axis=1)
