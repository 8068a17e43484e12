"""How many bytes of keys and values a decoder moves between cache and attention, counted from formats and shapes."""

from __future__ import annotations

import numpy as np

from decoder import Decoder
from kvcache import NUMPY_TYPES, CacheFormat

HOW = """MB moved, counted by formats and shapes: what the nodes between cache and attention read and write of keys,
values and scores, for each token. MultiHeadCacheAttention reads each row of the cache once. Behind KeyValueCache all
rows are written in the graph's type and read again; standard operators have them repeated for the query heads,
converted to float32 and transposed, and score every token against the keys of the whole batch."""

SCORE_BYTES = 40  # MatMul writes 4, Mul, Where, Softmax and Where read and write 8 each, MatMul reads 4


def bytes_moved(
    decoder: Decoder, format: CacheFormat, row_bytes: float, attention: str, tokens: int, keys: int
) -> float:
    """By one step of `tokens` new tokens over `keys` rows; `row_bytes`: a row of the cache, in all layers."""
    number = np.dtype(NUMPY_TYPES[format.current_type]).itemsize
    row = 2 * decoder.num_layer * decoder.num_kv_heads * decoder.head_dim  # numbers
    moved = (tokens + keys) * row_bytes  # stored, and read
    if attention == "packed":
        moved += keys * row * number * 2
    elif attention == "standard":
        repeated = keys * row * decoder.num_repeat
        converted = 0 if number == 4 else number + 4
        moved += repeated * (number + converted + 8 + 4)  # written; converted; transposed; read by the product
        moved += tokens * keys * decoder.num_layer * decoder.num_heads * SCORE_BYTES
    return moved
