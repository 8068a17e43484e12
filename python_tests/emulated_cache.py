"""The cache emulated by standard ONNX operators, to the bit, for holding the operator against it inside a decoder.

A cache of a layer is a float32 graph input of shape (slots, Hkv, Dh) that holds what is stored, and a graph output that
holds it after the call: ScatterND stores, Gather loads. Quantization is the specification's arithmetic, each step of it
rounded to T1 or T3 by a pair of Casts; of codes and scales the emulation keeps the products, which is what both loading
and the K-shift see of them.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from codec import decode, encode
from decoder import Decoder
from graph import Graph
from key_shift import frequencies, turned
from kvcache import CacheFormat


class EmulatedKeyValues:
    """A source of keys and values for `build_decoder`, as `CachedKeyValues` is one."""

    def __init__(self, decoder: Decoder, format: CacheFormat, *, key_form: str = "roped"):
        self.key_form = key_form
        self._decoder = decoder
        self._format = format

    def declare(self, graph: Graph, seqstarts: str, positions: str) -> tuple[str, str]:
        """Inputs that name the slot of each stored token and of each key, its position, and who sees it."""
        self._stored_slots = graph.input("stored_slots", TensorProto.INT64, ["tokens"])
        self._loaded_slots = graph.input("loaded_slots", TensorProto.INT64, ["keys"])
        key_positions = graph.input("key_positions", TensorProto.INT64, ["keys"])
        return key_positions, graph.input("visible", TensorProto.BOOL, ["tokens", "keys"])

    def __call__(self, graph: Graph, layer: int, current_key: str, current_value: str) -> tuple[str, str]:
        """Stores, loads and repeats with standard operators."""
        decoder = self._decoder
        shape = ["slots", decoder.num_kv_heads, decoder.head_dim]
        head = graph.constant(np.arange(decoder.num_heads) // decoder.num_repeat)
        loaded = []
        for name, current in (("keys", current_key), ("values", current_value)):
            before = graph.input(f"{name}_{layer}", TensorProto.FLOAT, shape)
            slots = graph.node("Unsqueeze", self._stored_slots, graph.int64(1))
            after = graph.node("ScatterND", before, slots, self._stored(graph, current))
            graph.output(f"{name}_{layer}_after", after, TensorProto.FLOAT)
            gathered = graph.node("Gather", graph.node("Gather", after, self._loaded_slots), head, axis=1)
            loaded.append(rounded(graph, gathered, self._format.current_type))
        return loaded[0], loaded[1]

    def _stored(self, graph: Graph, current: str) -> str:
        """What a cache holds of what goes in: values of T2, or products of codes and scales, which are of T3."""
        t1, t2, t3 = self._format.current_type, self._format.cache_type, self._format.scale_type
        current = rounded(graph, current, t1)
        if not self._format.quant_bit:
            return rounded(graph, current, t2)
        qmax = 2 ** (self._format.quant_bit - 1) - 1
        groups = graph.node("Reshape", current, graph.int64(0, 0, -1, self._format.quant_group))
        amax = graph.node("ReduceMax", graph.node("Abs", groups), graph.int64(-1))
        divided = rounded(graph, graph.node("Div", amax, graph.constant(np.float32(qmax))), t1)
        floor = np.float32(np.float16(1e-5) if t1 == TensorProto.FLOAT16 else 1e-5)
        scale = graph.node("Max", divided, graph.constant(floor))
        codes = graph.node("Round", rounded(graph, graph.node("Div", groups, scale), t1))
        codes = graph.node("Clip", codes, graph.constant(np.float32(-qmax)), graph.constant(np.float32(qmax)))
        codes = graph.node("Cast", graph.node("Cast", codes, to=TensorProto.INT8), to=TensorProto.FLOAT)  # no -0
        product = rounded(graph, graph.node("Mul", codes, rounded(graph, scale, t3)), t3)
        return graph.node("Reshape", product, graph.int64(0, self._decoder.num_kv_heads, self._decoder.head_dim))


def shifted_key(key: np.ndarray, delta: int, decoder: Decoder, format: CacheFormat) -> np.ndarray:
    """A stored key (L, Hkv, Dh), as the emulation keeps it, after the K-shift: decoded, turned, encoded."""
    frequency = frequencies(decoder.head_dim, decoder.rope_base)
    stored, scale = encode(turned(key[None], np.array([delta]), frequency), format)
    return decode(stored, scale, format, np.float32)[0]


def rounded(graph: Graph, x: str, element_type: int) -> str:
    """A float32 tensor rounded to the type, as float32."""
    if element_type == TensorProto.FLOAT:
        return x
    return graph.node("Cast", graph.node("Cast", x, to=element_type), to=TensorProto.FLOAT)
