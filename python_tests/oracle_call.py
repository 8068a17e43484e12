"""The golden oracle on the tests' own operands."""

from __future__ import annotations

import numpy as np

from node import INPUTS
from oracle.call import Attributes, Inputs, Types
from oracle.key_value_cache import key_value_cache
from setting import TYPE_NAMES, Memory, Setting


def oracle_call(setting: Setting, inputs: dict[str, np.ndarray], memory: Memory) -> tuple[np.ndarray, np.ndarray]:
    """What the oracle makes of a call: key and value; cache and scale change in the memory."""
    t3 = None if setting.t3 is None else TYPE_NAMES[setting.t3]
    types = Types(TYPE_NAMES[setting.t1], TYPE_NAMES[setting.t2], t3)
    operands = Inputs(**{name: inputs[name] for name in INPUTS if name not in ("cache", "scale")})
    cache = memory.cache if memory.int4_shape is None else unpack_int4(memory.cache, memory.int4_shape)
    key, value = key_value_cache(operands, cache, memory.scale, Attributes(**setting.attributes), types)
    if memory.int4_shape is not None:
        memory.cache[:] = pack_int4(cache, memory.cache)
    return key, value


def unpack_int4(packed: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The int4 values of packed bytes, one int8 each."""
    nibbles = np.stack([packed & 15, packed >> 4], axis=-1).reshape(-1)[: np.prod(shape, dtype=int)]
    return ((nibbles.astype(np.int8) ^ 8) - 8).reshape(shape)


def pack_int4(values: np.ndarray, before: np.ndarray) -> np.ndarray:
    """The bytes of int4 values; a half byte behind the last one is as before."""
    nibbles = np.stack([before & 15, before >> 4], axis=-1).reshape(-1)
    nibbles[: values.size] = values.reshape(-1).astype(np.uint8) & 15
    return nibbles[0::2] | nibbles[1::2] << 4
