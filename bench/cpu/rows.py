"""A case in the words of the peers: the cache as rows, and which of them a call writes and reads.

The peers get the row numbers for free. Where keys and values are rows of one tensor, the layer and the head are part
of the number, so that one gather serves every layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from cases import HEAD_DIM, NUM_HEADS
from tensors import Tensors


@dataclass(frozen=True)
class Rows:
    """One layer of a case; `cache` and `scale` are the memory of all layers."""

    cache: np.ndarray
    scale: np.ndarray | None
    write: tuple[np.ndarray, np.ndarray]  # rows of the current keys and values
    read: tuple[np.ndarray, np.ndarray]  # rows of all keys and values


def rows_of(tensors: Tensors, layer_idx: int) -> Rows:
    """A row is a token's key or value, in layout 3 that of one head; then the row numbers are (tokens, H).

    Two int4 elements are one byte.
    """
    by_head = tensors.case.cache_layout == 3
    outer = () if by_head else (NUM_HEADS,)
    number = prod(tensors.cache_shape) // prod((*outer, HEAD_DIM))
    cache, scale = tensors.inputs["cache"], tensors.inputs.get("scale")
    slots = tensors.all_slots
    read = tuple(numbers(tensors, layer_idx, kv, slots) for kv in range(2))
    write = tuple(rows[tensors.current_rows] for rows in read)
    if scale is not None:
        scale = scale.reshape(number, *outer, -1)
    return Rows(cache.reshape(number, *outer, -1), scale, write, read)


def numbers(tensors: Tensors, layer_idx: int, kv: int, slots: np.ndarray) -> np.ndarray:
    """The row of each slot, or of each head of each slot."""
    shape = tensors.cache_shape
    match tensors.case.cache_layout:
        case 0:
            rows = (slots * shape[1] + layer_idx) * 2 + kv
        case 1:
            rows = (layer_idx * shape[1] + slots) * 2 + kv
        case 2:
            rows = (layer_idx * 2 + kv) * shape[2] + slots
        case _:
            heads = (layer_idx * 2 + kv) * NUM_HEADS + np.arange(NUM_HEADS)
            rows = heads * shape[3] + slots[:, None]
    return np.ascontiguousarray(rows, np.int64)
