"""The operator: scalar loops in the order of the specification."""

from __future__ import annotations

import numpy as np

from .call import NUMPY_TYPES, STATIC_SCALES, Attributes, Inputs, Types
from .layouts import head_index, static_scale
from .portable import converted
from .quantize import dequantize, quantize, static_codes
from .rotation import order_of, rotated

KEY, VALUE = 0, 1


def key_value_cache(
    inputs: Inputs, cache: np.ndarray, scale: np.ndarray | None, attributes: Attributes, types: Types
) -> tuple[np.ndarray, np.ndarray]:
    """Stores the call's tokens in cache and scale, in place; gives key and value (kvstarts[B], H * num_repeat, Dh).

    The call must be legal.
    """
    order = order_of(attributes, inputs.current_key.shape[-1])
    for b in range(len(inputs.start_pos)):
        for t in range(seqlen(inputs, b)):
            token = int(inputs.seqstarts[b]) + t
            slot = cache_slot(inputs, attributes, b, int(inputs.start_pos[b]) + t)
            key = inputs.current_key[token]
            key = rotated(key, order) if attributes.quant_rotation == 1 else key
            for key_or_value, current in ((KEY, key), (VALUE, inputs.current_value[token])):
                for h, x in enumerate(current):
                    row = head_index(attributes.cache_layout, slot, attributes.layer_idx, key_or_value, h)
                    if attributes.quant_type == STATIC_SCALES:
                        cache[row] = static_codes(x, static_scale(scale, attributes.layer_idx, key_or_value, h))
                        continue
                    store_head(x, cache, scale, row, attributes.quant_bit, attributes.quant_group)
    key, value = loaded(inputs, cache, scale, attributes, NUMPY_TYPES[types.T1])
    return rotated(key, order) if attributes.quant_rotation == 1 else key, value


def loaded(
    inputs: Inputs, cache: np.ndarray, scale: np.ndarray | None, attributes: Attributes, element: type[np.generic]
) -> tuple[np.ndarray, np.ndarray]:
    """All tokens of each sequence, as the cache has them, rotated or not: key and value (kvstarts[B], H * num_repeat,
    Dh) of T1, or of float64 unrounded."""
    _, num_heads, head_dim = inputs.current_key.shape
    output_shape = (int(inputs.kvstarts[-1]), num_heads * attributes.num_repeat, head_dim)
    key, value = np.zeros(output_shape, element), np.zeros(output_shape, element)
    for b in range(len(inputs.start_pos)):
        for t in range(kvlen(inputs, b)):
            token = int(inputs.kvstarts[b]) + t
            slot = cache_slot(inputs, attributes, b, t)
            for key_or_value, output in ((KEY, key), (VALUE, value)):
                for repeated, x in enumerate(output[token]):
                    h = repeated // attributes.num_repeat
                    row = head_index(attributes.cache_layout, slot, attributes.layer_idx, key_or_value, h)
                    if attributes.quant_type == STATIC_SCALES:
                        of_head = static_scale(scale, attributes.layer_idx, key_or_value, h)
                        x[:] = dequantize(cache[row], of_head, x.dtype.type)
                        continue
                    load_head(x, cache, scale, row, attributes.quant_bit, attributes.quant_group)
    return key, value


def seqlen(inputs: Inputs, b: int) -> int:
    """How many tokens sequence b stores."""
    return int(inputs.seqstarts[b + 1]) - int(inputs.seqstarts[b])


def kvlen(inputs: Inputs, b: int) -> int:
    """How many tokens sequence b loads: all it has."""
    return int(inputs.kvstarts[b + 1]) - int(inputs.kvstarts[b])


def cache_slot(inputs: Inputs, attributes: Attributes, b: int, t: int) -> int:
    """The index in MaxT of token t of sequence b."""
    if attributes.cache_mode == 0:
        return int(inputs.cachestarts[b]) + t
    page = int(inputs.cachestarts[b, t // attributes.page_size])
    return page + t % attributes.page_size


def store_head(
    x: np.ndarray, cache: np.ndarray, scale: np.ndarray | None, row: tuple[int, ...], quant_bit: int, quant_group: int
) -> None:
    """Stores the head x (Dh) of T1 in a row of cache and scale."""
    if quant_bit == 0:
        cache[row] = converted(x, cache.dtype.type)
        return
    for d in range(0, len(x), quant_group):
        codes, step = quantize(x[d : d + quant_group], quant_bit, cache.dtype.type)
        cache[row][d : d + quant_group] = codes
        scale[row][d // quant_group] = converted(step, scale.dtype.type)


def load_head(
    x: np.ndarray, cache: np.ndarray, scale: np.ndarray | None, row: tuple[int, ...], quant_bit: int, quant_group: int
) -> None:
    """Loads the head x (Dh) of T1 from a row of cache and scale."""
    if quant_bit == 0:
        x[:] = converted(cache[row], x.dtype.type)
        return
    for d in range(0, len(x), quant_group):
        group = slice(d, d + quant_group)
        x[group] = dequantize(cache[row][group], scale[row][d // quant_group], x.dtype.type)
