"""KeyValueCache of static batching: what a call is given, and scalar loops in the order of the specification."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .call import NUMPY_TYPES, StaticAttributes, Types
from .key_value_cache import KEY, VALUE, load_head, store_head

STATIC_INPUTS = ("current_key", "current_value", "start_pos")

# The outer axes by cache_layout, outermost first; the innermost is Dh for cache and Dh / quant_group for scale.
STATIC_LAYOUTS = {0: ("MaxB", "L", "2", "MaxS", "H"), 1: ("L", "MaxB", "2", "H", "MaxS")}


@dataclass
class StaticInputs:
    """The inputs of one call that are only read; cache and scale are passed beside them."""

    current_key: np.ndarray  # (B, S, H, Dh) of T1
    current_value: np.ndarray  # (B, S, H, Dh) of T1
    start_pos: np.ndarray  # () or (1)


def static_cache_shape(
    cache_layout: int, max_b: int, max_s: int, num_layer: int, num_heads: int, last: int
) -> tuple[int, ...]:
    """The shape of cache (last is Dh) and of scale (last is Dh / quant_group)."""
    lengths = {"MaxB": max_b, "MaxS": max_s, "L": num_layer, "2": 2, "H": num_heads}
    return (*(lengths[axis] for axis in STATIC_LAYOUTS[cache_layout]), last)


def static_key_value_cache(
    inputs: StaticInputs, cache: np.ndarray, scale: np.ndarray | None, attributes: StaticAttributes, types: Types
) -> tuple[np.ndarray, np.ndarray]:
    """Stores the call's tokens in cache and scale, in place; gives key and value (B, start_pos + S, heads, Dh).

    The call must be legal.
    """
    batch, seqlen, num_heads, head_dim = inputs.current_key.shape
    start_pos = inputs.start_pos.item()
    quant_bit, quant_group, num_repeat = attributes.quant_bit, attributes.quant_group, attributes.num_repeat

    def row(b: int, position: int, key_or_value: int, h: int) -> tuple[int, ...]:
        index = {"MaxB": b, "MaxS": position, "L": attributes.layer_idx, "2": key_or_value, "H": h}
        return tuple(index[axis] for axis in STATIC_LAYOUTS[attributes.cache_layout])

    for key_or_value, current in ((KEY, inputs.current_key), (VALUE, inputs.current_value)):
        for b, t, h in np.ndindex(batch, seqlen, num_heads):
            store_head(current[b, t, h], cache, scale, row(b, start_pos + t, key_or_value, h), quant_bit, quant_group)

    outputs = []
    for key_or_value in (KEY, VALUE):
        output = np.zeros((batch, start_pos + seqlen, num_heads * num_repeat, head_dim), NUMPY_TYPES[types.T1])
        for b, t, h in np.ndindex(output.shape[:3]):
            load_head(output[b, t, h], cache, scale, row(b, t, key_or_value, h // num_repeat), quant_bit, quant_group)
        outputs.append(output)
    key, value = outputs
    return key, value
