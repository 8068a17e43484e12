"""Attention in float64, row by row: what the operator is, and how far a float32 computation may be from it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .attention_call import AttentionAttributes, AttentionInputs, CacheAttentionInputs
from .attention_tolerance import Row, tolerance, tolerance_of_sums
from .call import NUMPY_TYPES, Types
from .key_value_cache import key_value_cache, loaded
from .portable import exp, plain_nan, power_of_two, tanh, total
from .rotation import order_of, rotated


@dataclass
class Result:
    """The outputs of a call: its values and how far each may be from what an implementation gives.

    Over a quantized cache these are of products of code and scale that are rounded as KeyValueCache rounds them, and
    `unrounded` of the products themselves; an implementation's whole output is near one or the other.
    """

    attn_output: np.ndarray  # (seqstarts[B], Hq, Dh), float64
    tolerance: np.ndarray  # (seqstarts[B], Hq, Dh), float64; 0 where the output is not finite
    attention_mass: np.ndarray | None = None  # (Hq, kvstarts[B]), float64, if it is asked for
    mass_tolerance: np.ndarray | None = None  # likewise
    unrounded: Result | None = None

    def pairs(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Each legal attn_output with its tolerance."""
        return [(self.attn_output, self.tolerance), *(self.unrounded.pairs() if self.unrounded else [])]


def multi_head_cache_attention(
    inputs: CacheAttentionInputs,
    cache: np.ndarray,
    scale: np.ndarray | None,
    attributes: AttentionAttributes,
    types: Types,
    *,
    has_mass: bool = False,
) -> Result:
    """Stores the call's tokens in cache and scale, in place, then attends over all tokens of each sequence.

    The call must be legal.
    """
    key_value_cache(inputs, cache, scale, attributes, types)
    key, value = loaded(inputs, cache, scale, attributes, NUMPY_TYPES[types.T1])
    result = attention(inputs, key, value, attributes, has_mass)
    if attributes.quant_bit != 0:
        key, value = loaded(inputs, cache, scale, attributes, np.float64)
        result.unrounded = attention(inputs, key, value, attributes, has_mass)
    return result


def multi_head_attention(inputs: AttentionInputs, attributes: AttentionAttributes, *, has_mass: bool = False) -> Result:
    """Attends over packed keys and values. The call must be legal."""
    return attention(inputs, inputs.key, inputs.value, attributes, has_mass)


def attention(
    inputs: AttentionInputs | CacheAttentionInputs,
    key: np.ndarray,
    value: np.ndarray,
    attributes: AttentionAttributes,
    has_mass: bool,
) -> Result:
    """The queries of each sequence over its rows of key and value (kvstarts[B], Hk, Dh), as a cache has them."""
    mask, sinks = given(inputs.attn_mask), given(inputs.head_sink)
    output = np.zeros(inputs.query.shape)
    tolerances = np.zeros(inputs.query.shape)
    mass, mass_tolerance = np.zeros((2, attributes.num_heads, len(key)))
    slope = alibi_slopes(attributes.num_heads)
    for b in range(len(inputs.seqstarts) - 1):
        queries = range(int(inputs.seqstarts[b]), int(inputs.seqstarts[b + 1]))
        keys = slice(int(inputs.kvstarts[b]), int(inputs.kvstarts[b + 1]))
        n, m = len(queries), keys.stop - keys.start
        weights = np.zeros((2, n, attributes.num_heads, m))  # and their tolerances
        causal = attributes.is_causal == 1 and n > 1 and b >= inputs.decoding_batches.item()
        for i, token in enumerate(queries):
            distance = np.arange(m) - (m - n + i)
            for h in range(attributes.num_heads):
                kv_head = h // (attributes.num_heads // attributes.kv_heads)
                masks = []
                if causal or attributes.local_window_size != -1:
                    window = m + n if attributes.local_window_size == -1 else attributes.local_window_size
                    is_seen = (distance > -window) & ((distance <= 0) | (not causal))
                    masks.append(np.where(is_seen, 0.0, -np.inf))
                if attributes.is_alibi == 1:
                    masks.append(np.where(distance <= 0, slope[h] * distance, -np.inf))
                if mask is not None:
                    row = mask[token] if mask.ndim == 2 else mask[h, token]
                    masks.append(row[keys].astype(np.float64))
                sink = -np.inf if sinks is None else float(sinks[h])
                of_row = (inputs.query[token, h], key[keys, kv_head], masks, sink, attributes)
                output[token, h], tolerances[token, h] = attend(*of_row, value[keys, kv_head])
                if has_mass:
                    weights[:, i, h] = attend(*of_row)
        mass[:, keys] = plain_nan(total(weights[0]))
        mass_tolerance[:, keys] = tolerance_of_sums(*weights)
    return Result(output, tolerances, *((mass, mass_tolerance) if has_mass else ()))


def attend(
    query: np.ndarray,
    keys: np.ndarray,
    masks: list[np.ndarray],
    sink: float,
    attributes: AttentionAttributes,
    values: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """One query (Dh) over keys and values (m, Dh): its output and the tolerance of each element.

    Without values it is the weight of each key, in float32: what unit vectors as values give.
    """
    T1, size = query.dtype.type, len(keys) if values is None else len(query)
    divisor = 1 / attributes.scale if attributes.scale != 0 else math.sqrt(len(query))
    with np.errstate(invalid="ignore", over="ignore"):  # values that are not finite reach who sees them
        query, keys = query.astype(np.float64), keys.astype(np.float64)
        order = order_of(attributes, len(query)) if attributes.quant_rotation == 1 else 1
        q = rotated(query, order) if attributes.quant_rotation == 1 else query
        scores = total(keys * q, axis=1) / divisor
        if attributes.softcap != 0:
            scores = attributes.softcap * tanh(scores / attributes.softcap)
        for mask in masks:
            scores = np.where(mask == -np.inf, -np.inf, scores + mask)  # what is hidden does not matter, if NaN or not
        seen = scores != -np.inf
        if not seen.any():
            return np.zeros(size), np.zeros(size)
        scores, keys, masks = scores[seen], keys[seen], [mask[seen] for mask in masks]
        values_seen = np.eye(len(keys)) if values is None else values[seen].astype(np.float64)
        if sink != -np.inf:  # it is as good as a key with this score and a value of zeros
            scores, masks = np.append(scores, sink), [np.append(mask, 0.0) for mask in masks]
            keys, values_seen = (np.vstack([rows, np.zeros(rows.shape[1:])]) for rows in (keys, values_seen))
        weights = exp(scores - scores.max())
        weights /= total(weights)
        output = total(weights[:, None] * values_seen)
        output = np.where(np.isinf(output.astype(T1)), np.copysign(np.inf, output), output)  # beyond T1
        row = Row(query, q, order, keys, values_seen, masks, scores, weights, output, divisor, attributes.softcap)
        allowed = tolerance(row, T1, np.float32 if values is None else T1)
    of_row = np.array([plain_nan(output), np.where(np.isfinite(output), allowed, 0.0)])
    if values is None:
        of_row, of_seen = np.zeros((2, size)), of_row
        of_row[:, seen] = of_seen
    return of_row[0], of_row[1]


def alibi_slopes(num_heads: int) -> list[float]:
    """The slope of each query head."""
    c = 2 ** (num_heads.bit_length() - 1) if num_heads > 0 else 1
    slopes = [power_of_two(-8 * k, c) for k in range(1, c + 1)]
    return slopes + [power_of_two(-4 * k, c) for k in range(1, 2 * (num_heads - c), 2)]


def given(optional: np.ndarray | None) -> np.ndarray | None:
    """An optional input; none where it has no elements."""
    return None if optional is None or optional.size == 0 else optional
