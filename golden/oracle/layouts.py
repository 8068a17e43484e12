"""The order of the axes of cache and scale: the one place of the oracle that knows the layouts."""

from __future__ import annotations

import numpy as np

# The outer axes by cache_layout, outermost first; the innermost is Dh for cache and Dh / quant_group for scale.
LAYOUTS = {
    0: ("MaxT", "L", "2", "H"),
    1: ("L", "MaxT", "2", "H"),
    2: ("L", "2", "MaxT", "H"),
    3: ("L", "2", "H", "MaxT"),
}


def head_index(cache_layout: int, slot: int, layer_idx: int, key_or_value: int, h: int) -> tuple[int, ...]:
    """Where, in cache and in scale, the row of head h lies: every axis but the last."""
    index = {"MaxT": slot, "L": layer_idx, "2": key_or_value, "H": h}
    return tuple(index[axis] for axis in LAYOUTS[cache_layout])


def cache_shape(cache_layout: int, max_t: int, num_layer: int, num_heads: int, last: int) -> tuple[int, ...]:
    """The shape of cache (last is Dh) and of scale (last is Dh / quant_group)."""
    lengths = {"MaxT": max_t, "L": num_layer, "2": 2, "H": num_heads}
    return (*(lengths[axis] for axis in LAYOUTS[cache_layout]), last)


def static_scale(scale: np.ndarray, layer_idx: int, key_or_value: int, h: int) -> np.floating:
    """The static scale of head h, of whichever slot."""
    place = zip((layer_idx, key_or_value, h), scale.shape, strict=True)
    return scale[tuple(index if length != 1 else 0 for index, length in place)]
