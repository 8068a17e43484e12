"""Arithmetic that gives the same bits on every machine.

numpy leaves the order of a sum to the BLAS and to the vectors of the processor, and an exponential to a C library. The
oracle's files may depend on none of these, so it has its own: what is left is rounded as IEEE 754 says (sums of two,
products, quotients, square roots, conversions).
"""

from __future__ import annotations

import math
from decimal import Context, Decimal

import numpy as np

DIGITS = Context(prec=40)  # more than twice a float64's: its nearest float64 is the exact result's


def total(terms: np.ndarray, axis: int = 0) -> np.ndarray:
    """The sum over an axis, one term after the other."""
    terms = np.moveaxis(terms, axis, 0)
    return np.add.accumulate(terms, axis=0)[-1] if len(terms) else np.zeros(terms.shape[1:])


def square(values: np.ndarray | np.float64) -> np.ndarray | np.float64:
    """Each value times itself: `**` of a number is a function of the C library."""
    return values * values


def exp(values: np.ndarray) -> np.ndarray:
    """e to the power of each of (n) float64 values, none of which is above 0, correctly rounded."""
    return np.array([float(DIGITS.exp(Decimal(value))) for value in values.tolist()])


def tanh(values: np.ndarray) -> np.ndarray:
    """The hyperbolic tangent of each of (n) float64 values, correctly rounded."""

    def rounded(x: float) -> float:
        if abs(x) < 1e-9:
            return x  # x - x^3 / 3 rounds to x, and the difference below would lose its digits
        power = DIGITS.exp(Decimal(-2 * abs(x)))
        return math.copysign(DIGITS.divide(DIGITS.subtract(1, power), DIGITS.add(1, power)), x)

    return np.array([rounded(x) for x in values.tolist()])


def power_of_two(numerator: int, denominator: int) -> float:
    """2 to the power of a fraction, correctly rounded."""
    return float(DIGITS.power(2, DIGITS.divide(numerator, denominator)))


def plain_nan(values: np.ndarray) -> np.ndarray:
    """The values. A NaN becomes positive and without payload: arithmetic leaves these to the processor."""
    return np.where(np.isnan(values), values.dtype.type(np.nan), values)


def converted(values: np.ndarray, element: type[np.generic]) -> np.ndarray:
    """The values as another type; of the same type, they keep their bits."""
    if values.dtype == element:
        return values
    with np.errstate(over="ignore", invalid="ignore"):  # float32 beyond float16 becomes Inf; NaN stays NaN
        return plain_nan(values.astype(element))
