"""Attention by the library's own operators, over a cache that all layers share.

`MultiHeadCacheAttention` stores this call's keys and values and attends straight over the cache. In its place may stand
`KeyValueCache`, which writes all keys and values out, and a `MultiHeadAttention` that reads those: the same bits.
"""

from __future__ import annotations

from onnx import TensorProto

from decoder import Decoder
from graph import Graph
from key_values import cache_inputs
from kvcache import DOMAIN, CacheFormat


class OperatorAttention:
    """The attention of each layer: one node, or with `fused` False two."""

    def __init__(
        self,
        decoder: Decoder,
        format: CacheFormat,
        *,
        fused: bool = True,
        mode: str = "paged",
        page_size: int = 128,
        cache_layout: int = 0,
    ):
        self._format = format
        self._fused = fused
        self._mode = mode
        self._cache = dict(
            num_layer=decoder.num_layer,
            quant_bit=format.quant_bit,
            quant_group=format.quant_group,
            cache_mode=int(mode == "paged"),
            cache_layout=cache_layout,
            page_size=page_size,
        )
        heads = dict(num_heads=decoder.num_heads, num_kv_heads=decoder.num_kv_heads)
        self._attention = heads | dict(head_dim=decoder.head_dim)

    def declare(self, graph: Graph, seqstarts: str) -> None:
        """The operators' index inputs and the cache. A sequence with one new token needs no mask, the others a causal
        one, so that no sequence need be counted as decoding."""
        inputs = cache_inputs(graph, self._format, self._mode, self._cache["cache_layout"], seqstarts)
        self._starts, self._places, self._bounds, self._memory = inputs[:2], inputs[2:4], inputs[4:6], inputs[6:]
        self._decoding = graph.int64(0)

    def attend(self, graph: Graph, layer: int, query: str, current_key: str, current_value: str) -> str:
        """The layer's nodes: (tokens, Hq, Dh) float32 to the same; the rest of the decoder computes in float32."""
        rows = [graph.node("Cast", x, to=self._format.current_type) for x in (query, current_key, current_value)]
        cache = dict(domain=DOMAIN, layer_idx=layer, **self._cache)
        last = [self._decoding, *self._bounds]
        if self._fused:
            inputs = [*rows, *self._starts, *self._places, *last, *self._memory]
            output = graph.node("MultiHeadCacheAttention", *inputs, **cache, **self._attention)
        else:
            inputs = [*rows[1:], *self._starts, *self._places, *self._bounds, *self._memory]
            both = graph.nodes("KeyValueCache", 2, *inputs, **cache)
            inputs = [rows[0], *both, *self._starts, *last]
            output = graph.node("MultiHeadAttention", *inputs, domain=DOMAIN, **self._attention)
        return graph.node("Cast", output, to=TensorProto.FLOAT)
