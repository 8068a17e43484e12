"""The K-shift in numpy: what a cache manager makes of keys whose positions have changed, to the bit.

Rotary embeddings turn pair i of a key by position * f_i, so a key that was stored for one position serves another after
a turn by delta * f_i. Cosine and sine are computed in float64 and rounded to float32; every product and every sum is
rounded to float32. What is stored in a type narrower than float32 is then rounded once more, which is left to callers.
"""

from __future__ import annotations

import numpy as np


def frequencies(n_rot: int, base: float = 10000.0, scale: float = 1.0) -> np.ndarray:
    """The n_rot / 2 frequencies of rotary embeddings, float64."""
    return scale * np.float64(base) ** (-2.0 * np.arange(n_rot // 2) / n_rot)


def turned(keys: np.ndarray, deltas: np.ndarray, frequency: np.ndarray, style: str = "neox") -> np.ndarray:
    """Keys (rows, ..., Dh), float32, turned by a delta of positions for each row; a row of delta 0 stays as it is."""
    half = len(frequency)
    first, second = {
        "neox": (slice(0, half), slice(half, 2 * half)),  # pairs (i, i + half)
        "gptj": (slice(0, 2 * half, 2), slice(1, 2 * half, 2)),  # pairs (2i, 2i + 1)
    }[style]
    angles = np.asarray(deltas, np.float64).reshape(-1, *[1] * (keys.ndim - 1)) * frequency
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    a, b = keys[..., first], keys[..., second]
    result = keys.copy()
    result[..., first] = a * cos - b * sin
    result[..., second] = a * sin + b * cos
    result[np.asarray(deltas) == 0] = keys[np.asarray(deltas) == 0]  # 0 * -inf is no number
    return result
