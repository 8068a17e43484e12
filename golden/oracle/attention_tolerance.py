"""How far a result may be from the exact one. Derived from the number formats and the lengths of the sums alone.

Every rounding to nearest is an error of its own, uniform in half a unit in the last place: its standard deviation is
u / sqrt(3) of the value at hand, u = 2^-24 for float32. A sum of n terms has n of them, each of a partial sum; the
order is the implementation's, so the mean over all orders counts. To first order:

- an error d_j of score j moves the weight p_j between v_j and the others: it changes the output by p_j d_j (v_j - o);
- an error of weight j, relative to it, of e_j changes it as much: p_j e_j (v_j - o); exp is good to 4 ulp;
- the sums of weights and of weighted values have the errors of their m partial sums, and the division has one;
- a soft cap c is a quotient, a tanh, good to 4 ulp, and a product: an error before it counts (1 - tanh^2) times;
- a rotated query has an error for each addition, which reaches what follows from it, and for the last product;
- a sink is a key with a score of its own and a value of zeros.

Where T1 has 16 bits, an implementation may also round to it the scores (after the product, the division by sqrt(Dh),
each step of a soft cap and each mask) and the weights, as the public reference does. There the weights are rounded
after they were divided by their sum, which nothing makes up for: an error e_j changes the output by p_j e_j v_j.

Errors are independent, so variances add up. Eight deviations are allowed, plus half a unit of T1 for the last rounding.

The attention's mass is a sum of weights over queries, in float32. A weight has the tolerance of an output over unit
vectors as values, and their sum has in addition the errors of its partial sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from .portable import square, tanh, total
from .rotation import butterfly, distances, factor

DEVIATIONS = 8
EXP_ULPS = TANH_ULPS = 4


@dataclass
class Row:
    """One query's computation in float64, over the keys that it sees."""

    query: np.ndarray  # (Dh)
    q: np.ndarray  # (Dh): the query, rotated as the keys are
    order: int  # of the blocks that are rotated
    keys: np.ndarray  # (m, Dh), as the cache has them; a sink is one of zeros
    values: np.ndarray  # (m, Dh)
    masks: list[np.ndarray]  # each (m): causal, ALiBi, attn_mask, as far as there are
    scores: np.ndarray  # (m)
    weights: np.ndarray  # (m)
    output: np.ndarray  # (Dh)
    divisor: float  # of the products
    softcap: float


def unit(element: type[np.floating]) -> float:
    """u: half of the distance from 1 to the next number."""
    return float(ml_dtypes.finfo(element).eps) / 2


def rounding(element: type[np.floating]) -> float:
    """The standard deviation of one rounding, relative to the value."""
    return unit(element) / math.sqrt(3)


def tolerance(row: Row, T1: type[np.floating], output_type: type[np.floating]) -> np.ndarray:
    """The largest legal difference of each element (Dh) of the output, which is given in a type of its own."""
    r = rounding(np.float32)
    moved = row.weights[:, None] * (row.values - row.output)  # (m, Dh): what a relative error of weight j changes
    exp = EXP_ULPS * 2 * unit(np.float32)  # an ulp is at most 2u of the value
    relative = score_variance(row, r) + exp * exp
    if T1 is not np.float32:
        relative = relative + narrow_variance(row, T1)
    variance = total(square(moved) * relative[:, None])
    terms = row.weights[:, None] * row.values
    if T1 is not np.float32:
        variance = variance + total(square(terms * narrow_weights(row, T1)[:, None]))
    variance = variance + r * r * (total(square(terms)) + partial_sums(terms))  # the products, and their sum
    variance = variance + square(r * row.output) * (partial_sums(row.weights) + 1)  # the sum of weights, the division
    smallest = float(np.finfo(np.float32).smallest_normal)  # weights below it may become zero
    rounded = last_rounding(row.output, output_type)
    return DEVIATIONS * np.sqrt(variance) + rounded + smallest * total(np.abs(row.values))


def tolerance_of_sums(weights: np.ndarray, tolerances: np.ndarray) -> np.ndarray:
    """The largest legal difference of the sums over all queries of (n, ...) weights that have these tolerances."""
    if len(weights) == 0:
        return np.zeros(weights.shape[1:])
    allowed = total(square(tolerances)) + square(DEVIATIONS * rounding(np.float32)) * partial_sums(weights)
    return np.where(np.isfinite(allowed), np.sqrt(allowed), 0.0)


def partial_sums(terms: np.ndarray) -> np.ndarray:
    """The sum of the squares of all partial sums of n terms (n, ...), in the mean over their orders.

    A partial sum of k terms is k/n of the whole, with the variance of a choice of k terms out of n.
    """
    n = len(terms)
    whole, squares = total(terms), total(square(terms))
    scatter = np.maximum(squares - square(whole) / n, 0.0)
    return square(whole) * (n + 1) * (2 * n + 1) / (6 * n) + scatter * (n + 1) / 6


def score_variance(row: Row, r: float) -> np.ndarray:
    """The variance of each score (m) in float32."""
    terms = (row.keys * row.q).T / row.divisor  # (Dh, m)
    products = total(terms)
    variance = r * r * (total(square(terms)) + partial_sums(terms))
    variance = variance + 2 * square(r * products)  # 1 / sqrt(Dh), and the product with it
    if row.q is not row.query:
        variance = variance + rotation_variance(row, r)
    sums, variance = capped(row, products, variance, r, TANH_ULPS * 2 * unit(np.float32))
    for mask in row.masks:
        # A mask that is computed has a slope and a product; then it is added, and masks may be added first.
        sums = sums + mask
        variance = variance + 3 * square(r * mask) + square(r * sums)
    return variance + square(r * (row.scores - row.scores.max()))  # the difference from the largest score


def rotation_variance(row: Row, r: float) -> np.ndarray:
    """The variance that rotating the query adds to each score (m): its additions, as far as each reaches, and a product
    of each element."""
    x, left = row.query, distances(row.order)
    variance = total(square(row.keys * row.q), axis=1)
    while left:
        x, reach = butterfly(x, left.pop(0)), row.keys * factor(row.order).astype(np.float64)
        for distance in left:
            reach = butterfly(reach, distance)
        variance = variance + total(square(reach * x), axis=1)
    return square(r / row.divisor) * variance


def capped(row: Row, products: np.ndarray, variance: np.ndarray, r: float, tanh_error: float) -> tuple[np.ndarray, ...]:
    """The scores (m) after the softcap, and their variance: of the quotient and of the product by it, and of tanh."""
    if row.softcap == 0:
        return products, variance
    quotients = products / row.softcap
    bent = tanh(quotients)
    moved = square(1 - square(bent)) * (variance + square(r * products))
    variance = np.where(np.isinf(products), 0.0, moved)  # an infinite product is capped exactly
    return row.softcap * bent, variance + square(row.softcap * bent) * (r * r + tanh_error * tanh_error)


def narrow_variance(row: Row, T1: type[np.floating]) -> np.ndarray:
    """The variance of each score and weight (m) where they are rounded to T1, of 16 bits."""
    r = rounding(T1)
    products = total(row.keys * row.q, axis=1)
    variance = 2 * square(r * products) / square(row.divisor)
    sums, variance = capped(row, products / row.divisor, variance, r, r)
    for mask in row.masks:
        sums = sums + mask
        variance = variance + square(r * mask) + square(r * sums)
    return variance + square(narrow_weights(row, T1))


def narrow_weights(row: Row, T1: type[np.floating]) -> np.ndarray:
    """The deviation of each weight (m), relative to it, where it is rounded to T1, of 16 bits; 0 for a number of T1."""
    # A weight is rounded in units of at least the smallest number of T1.
    smallest = float(ml_dtypes.finfo(T1).smallest_subnormal) / (2 * math.sqrt(3))
    deviations = rounding(T1) + smallest / np.maximum(row.weights, smallest)
    return np.where(row.weights == row.weights.astype(T1).astype(np.float64), 0.0, deviations)


def last_rounding(output: np.ndarray, T1: type[np.floating]) -> np.ndarray:
    """Half a unit in the last place of T1 at each element."""
    finite = np.where(np.isfinite(output), output, 0.0)
    return np.spacing(np.abs(finite).astype(T1)).astype(np.float64) / 2
