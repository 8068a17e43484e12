"""The cache emulated by standard ONNX operators, to the bit, for holding the operator against it inside a decoder.

A cache of a layer is a float32 graph input of shape (max_t, Hkv, Dh) that holds what the operator would load, and a
graph output that holds it after the call: ScatterND stores, Gather loads. Quantization is the specification's
arithmetic, each step of it rounded to T1 or T3 by a pair of Casts.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from decoder import Decoder
from graph import Graph
from kvcache import CacheFormat


class EmulatedKeyValues:
    """A source of keys and values for `build_decoder`, as `CachedKeyValues` is one."""

    def __init__(self, decoder: Decoder, format: CacheFormat, max_t: int):
        self._decoder = decoder
        self._format = format
        self._shape = [max_t, decoder.num_kv_heads, decoder.head_dim]

    def declare(self, graph: Graph, seqstarts: str) -> tuple[str, str]:
        """Inputs that name the slot of each stored and of each loaded token."""
        self._stored_slots = graph.input("stored_slots", TensorProto.INT64, ["tokens"])
        self._loaded_slots = graph.input("loaded_slots", TensorProto.INT64, ["kv_tokens"])
        start_pos = graph.input("start_pos", TensorProto.INT64, ["B"])
        return start_pos, graph.input("kvstarts", TensorProto.INT64, ["B+1"])

    def __call__(self, graph: Graph, layer: int, current_key: str, current_value: str) -> tuple[str, str]:
        """Stores, loads and repeats with standard operators."""
        head = graph.constant(np.arange(self._decoder.num_heads) // self._decoder.num_repeat)
        loaded = []
        for name, current in (("keys", current_key), ("values", current_value)):
            before = graph.input(f"{name}_{layer}", TensorProto.FLOAT, self._shape)
            slots = graph.node("Unsqueeze", self._stored_slots, graph.int64(1))
            after = graph.node("ScatterND", before, slots, self._stored_and_loaded(graph, current))
            graph.output(f"{name}_{layer}_after", after, TensorProto.FLOAT)
            loaded.append(graph.node("Gather", graph.node("Gather", after, self._loaded_slots), head, axis=1))
        return loaded[0], loaded[1]

    def _stored_and_loaded(self, graph: Graph, current: str) -> str:
        """What comes out of the cache for what goes in."""
        t1, t2, t3 = self._format.current_type, self._format.cache_type, self._format.scale_type
        current = rounded(graph, current, t1)
        if not self._format.quant_bit:
            return rounded(graph, rounded(graph, current, t2), t1)
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
        return graph.node("Reshape", rounded(graph, product, t1), graph.int64(0, *self._shape[1:]))


def rounded(graph: Graph, x: str, element_type: int) -> str:
    """A float32 tensor rounded to the type, as float32."""
    if element_type == TensorProto.FLOAT:
        return x
    return graph.node("Cast", graph.node("Cast", x, to=element_type), to=TensorProto.FLOAT)
