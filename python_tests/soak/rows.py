"""The rows that sequences are made of: few and known, so that every loaded row can be checked in every step."""

from __future__ import annotations

import numpy as np

from attention_node import random_rows
from codec import decode, encode
from kvcache import NUMPY_TYPES, CacheFormat
from soak.lane_node import Node

COUNT = 64


def row_ids(tokens: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Which row a token at a position is."""
    return (tokens + 7 * positions) % COUNT


class Rows:
    """`COUNT` rows: as they are given to the operator, and as numpy says that it loads them from the cache."""

    def __init__(self, node: Node):
        setting = node.setting
        random = np.random.default_rng(17)
        t1 = NUMPY_TYPES[setting.t1]
        shape = (COUNT, setting.num_heads, setting.head_dim)
        format = CacheFormat(setting.t1, setting.t2, setting.t3, setting.quant_bit, setting.quant_group)
        self.query = random_rows(random, (COUNT, node.attention.num_heads, setting.head_dim), setting.t1)
        self.key, self.value = (random_rows(random, shape, setting.t1) for _ in range(2))
        self.loaded_key, self.loaded_value = (decode(*encode(x, format), format, t1) for x in (self.key, self.value))

    def inputs(self, ids: np.ndarray, fused: bool) -> dict[str, np.ndarray]:
        """The operator's inputs for the new rows of a step."""
        query = {"query": self.query[ids]} if fused else {}
        return query | {"current_key": self.key[ids], "current_value": self.value[ids]}
