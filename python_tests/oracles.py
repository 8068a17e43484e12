"""The golden oracles in numpy as implementations for the conformance kit. Their int4 caches are unpacked."""

from __future__ import annotations

from typing import Any

import numpy as np
from kvcache_ops.conformance import Int4Array

from compare import Arrays
from oracle import attention, key_value_cache
from oracle.attention_call import AttentionAttributes, CacheAttentionInputs
from oracle.attention_rules import broken_cache_attention_rules
from oracle.call import Attributes, Inputs, Types
from oracle.rules import broken_rules
from oracle.static_batching import StaticAttributes, StaticInputs, static_key_value_cache
from oracle.static_rules import broken_static_rules


class Refused(Exception):
    """What the oracle refuses."""

    def __init__(self, kinds: list[str]) -> None:
        self.kind = kinds[0]


def types_of(inputs: Arrays, cache: np.ndarray, scale: np.ndarray | None) -> Types:
    """The element types of a call."""
    t2 = "int4" if isinstance(cache, Int4Array) else cache.dtype.name.replace("_", "")  # float8_e4m3fn
    return Types(inputs["current_key"].dtype.name, t2, None if scale is None else scale.dtype.name)


def cache_oracle(attributes: dict[str, int], inputs: Arrays, cache: np.ndarray, scale: np.ndarray | None) -> Any:
    """KeyValueCache."""
    call, types = (Inputs(**inputs), cache, scale, Attributes(**attributes)), types_of(inputs, cache, scale)
    if kinds := broken_rules(*call, types):
        raise Refused(kinds)
    return key_value_cache.key_value_cache(*call, types)


def attention_oracle(op_type: str, attributes: dict[str, int], inputs: Arrays, cache: Any, scale: Any) -> np.ndarray:
    """MultiHeadCacheAttention."""
    if op_type != "MultiHeadCacheAttention":
        raise NotImplementedError(op_type)
    given = CacheAttentionInputs(**inputs), cache, scale, AttentionAttributes(**attributes)
    if kinds := broken_cache_attention_rules(*given, types_of(inputs, cache, scale)):
        raise Refused(kinds)
    result = attention.multi_head_cache_attention(*given, types_of(inputs, cache, scale))
    return result.attn_output.astype(inputs["query"].dtype)


def static_oracle(attributes: dict[str, int], inputs: Arrays, cache: np.ndarray, scale: np.ndarray | None) -> Any:
    """KeyValueCache of static batching."""
    call = StaticInputs(**inputs), cache, scale, StaticAttributes(**attributes), types_of(inputs, cache, scale)
    if kinds := broken_static_rules(*call):
        raise Refused(kinds)
    return static_key_value_cache(*call)
