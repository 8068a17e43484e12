"""A small transformer decoder as an ONNX graph, for a packed ragged batch.

RMSNorm, rotary positions, grouped-query attention, SwiGLU; standard operators throughout. Where its attention takes
keys and values from is a choice: `CachedKeyValues` (one `KeyValueCache` node in each layer, one cache for all of
them) or `RecomputedKeyValues` (none but this call's own tokens, to compare the cached decoder with full
recomputation).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from onnx import TensorProto

from graph import Graph
from kvcache import DOMAIN, LAYOUT_AXES, CacheFormat


@dataclass(frozen=True)
class Decoder:
    """The sizes of a decoder, and the seed of its weights."""

    num_layer: int = 6
    num_heads: int = 8
    num_kv_heads: int = 2
    head_dim: int = 64
    ffn_dim: int = 1376
    vocab_size: int = 256
    max_positions: int = 1024
    seed: int = 2

    @property
    def hidden(self) -> int:
        """The width of the residual stream."""
        return self.num_heads * self.head_dim

    @property
    def num_repeat(self) -> int:
        """How many query heads share a cache head."""
        return self.num_heads // self.num_kv_heads


@lru_cache(maxsize=2)
def _weights(decoder: Decoder) -> dict[str, np.ndarray]:
    """Random weights of unit gain, by name; the layer's weights stacked along the first axis."""
    random = np.random.default_rng(decoder.seed)

    def matrix(*shape: int) -> np.ndarray:
        return random.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[-2]))

    layers, hidden, ffn = decoder.num_layer, decoder.hidden, decoder.ffn_dim
    kv = decoder.num_kv_heads * decoder.head_dim
    return {
        "embedding": random.standard_normal((decoder.vocab_size, hidden), np.float32),
        "query": matrix(layers, hidden, hidden),
        "key": matrix(layers, hidden, kv),
        "value": matrix(layers, hidden, kv),
        "attention_out": matrix(layers, hidden, hidden),
        "gate": matrix(layers, hidden, ffn),
        "up": matrix(layers, hidden, ffn),
        "down": matrix(layers, ffn, hidden),
        "head": matrix(hidden, decoder.vocab_size),
    }


class KeyValueSource(Protocol):
    """Where attention takes its keys and values from."""

    def declare(self, graph: Graph, seqstarts: str) -> tuple[str, str]:
        """Adds the graph inputs it needs; returns the names of `start_pos` and `kvstarts`."""

    def __call__(self, graph: Graph, layer: int, current_key: str, current_value: str) -> tuple[str, str]:
        """From this call's (tokens, Hkv, Dh) float32 to all keys and values, (kvstarts[B], H, Dh) float32."""


class CachedKeyValues:
    """Keys and values live in a cache that all layers share: each layer's node stores this call's and loads all."""

    def __init__(self, decoder: Decoder, format: CacheFormat, *, domain: str = DOMAIN, **attributes: int):
        """`attributes` are those of the node that say where things lie: cache_mode, cache_layout, page_size."""
        self._format = format
        self._domain = domain
        self._attributes = attributes | dict(
            num_layer=decoder.num_layer,
            num_repeat=decoder.num_repeat,
            quant_bit=format.quant_bit,
            quant_group=format.quant_group,
        )

    def declare(self, graph: Graph, seqstarts: str) -> tuple[str, str]:
        """The operator's index inputs, and the cache that all layers share."""
        paged = self._attributes.get("cache_mode", 0) == 1
        axes = list(LAYOUT_AXES[self._attributes.get("cache_layout", 0)])
        kvstarts = graph.input("kvstarts", TensorProto.INT64, ["B+1"])
        start_pos = graph.input("start_pos", TensorProto.INT64, ["B"])
        self._inputs = [
            seqstarts,
            kvstarts,
            graph.input("cachestarts", TensorProto.INT64, ["B", "MaxP"] if paged else ["B"]),
            start_pos,
            graph.input("max_seqlen", TensorProto.INT64, []),
            graph.input("max_kvlen", TensorProto.INT64, []),
            graph.input("cache", self._format.cache_type, axes),
        ]
        if self._format.scale_type is not None:
            self._inputs.append(graph.input("scale", self._format.scale_type, [*axes[:4], "Dh/quant_group"]))
        return start_pos, kvstarts

    def __call__(self, graph: Graph, layer: int, current_key: str, current_value: str) -> tuple[str, str]:
        """The layer's node; the rest of the decoder computes in float32."""
        current = [graph.node("Cast", x, to=self._format.current_type) for x in (current_key, current_value)]
        both = graph.nodes(
            "KeyValueCache", 2, *current, *self._inputs, domain=self._domain, layer_idx=layer, **self._attributes
        )
        key, value = (graph.node("Cast", x, to=TensorProto.FLOAT) for x in both)
        return key, value


class RecomputedKeyValues:
    """No cache: a call holds whole sequences. Keys and values are rounded to the type that the cached decoder uses."""

    def __init__(self, decoder: Decoder, format: CacheFormat):
        self._decoder = decoder
        self._type = format.current_type

    def declare(self, graph: Graph, seqstarts: str) -> tuple[str, str]:
        """No inputs: every sequence starts at 0 and has no keys but this call's."""
        firsts = graph.node("Slice", seqstarts, graph.int64(0), graph.int64(-1))
        return graph.node("Sub", firsts, firsts), seqstarts

    def __call__(self, graph: Graph, layer: int, current_key: str, current_value: str) -> tuple[str, str]:
        """This call's own, rounded, each head repeated."""
        head = graph.constant(np.arange(self._decoder.num_heads) // self._decoder.num_repeat)
        key, value = (
            graph.node("Gather", graph.node("Cast", rounded, to=TensorProto.FLOAT), head, axis=1)
            for rounded in (graph.node("Cast", x, to=self._type) for x in (current_key, current_value))
        )
        return key, value


def build_decoder(decoder: Decoder, source: KeyValueSource, *, expose: bool = False) -> bytes:
    """The decoder as a model: `token_ids` and `seqstarts` (and what `source` needs) to `logits` of every token.

    With `expose` each layer's `current_key_i`, `current_value_i`, `key_i` and `value_i` are outputs as well.
    """
    weights = _weights(decoder)
    graph = Graph()
    token_ids = graph.input("token_ids", TensorProto.INT64, ["tokens"])
    seqstarts = graph.input("seqstarts", TensorProto.INT64, ["B+1"])
    start_pos, kvstarts = source.declare(graph, seqstarts)

    sequence, offset = _places(graph, seqstarts)
    position = graph.node("Add", offset, graph.node("Gather", start_pos, sequence))
    allowed = _allowed(graph, sequence, position, *_places(graph, kvstarts))
    rotate = _rotary(graph, decoder, position)

    x = graph.node("Gather", graph.constant(weights["embedding"]), token_ids)
    for layer in range(decoder.num_layer):
        linear = _linear(graph, {name: stacked[layer] for name, stacked in weights.items() if stacked.ndim == 3})
        normal = _rms_norm(graph, x)
        query = rotate(_heads(graph, linear("query", normal), decoder.num_heads))
        current_key = rotate(_heads(graph, linear("key", normal), decoder.num_kv_heads))
        current_value = _heads(graph, linear("value", normal), decoder.num_kv_heads)
        key, value = source(graph, layer, current_key, current_value)
        if expose:
            for name, exposed in dict(
                current_key=current_key, current_value=current_value, key=key, value=value
            ).items():
                graph.output(f"{name}_{layer}", exposed, TensorProto.FLOAT)
        x = graph.node("Add", x, linear("attention_out", _attention(graph, decoder, query, key, value, allowed)))
        normal = _rms_norm(graph, x)
        gate = linear("gate", normal)
        gated = graph.node("Mul", graph.node("Mul", gate, graph.node("Sigmoid", gate)), linear("up", normal))
        x = graph.node("Add", x, linear("down", gated))
    logits = graph.node("MatMul", _rms_norm(graph, x), graph.constant(weights["head"]))
    graph.output("logits", logits, TensorProto.FLOAT, ["tokens", decoder.vocab_size])
    return graph.serialize()


def _linear(graph: Graph, matrices: dict[str, np.ndarray]):
    """The function that multiplies by a named matrix."""
    return lambda name, x: graph.node("MatMul", x, graph.constant(matrices[name]))


def _heads(graph: Graph, x: str, heads: int) -> str:
    """(tokens, heads * Dh) to (tokens, heads, Dh)."""
    return graph.node("Reshape", x, graph.int64(0, heads, -1))


def _rms_norm(graph: Graph, x: str) -> str:
    """x over its root mean square, along the last axis."""
    mean = graph.node("ReduceMean", graph.node("Mul", x, x), graph.int64(-1))
    return graph.node("Div", x, graph.node("Sqrt", graph.node("Add", mean, graph.constant(np.float32(1e-5)))))


def _places(graph: Graph, starts: str) -> tuple[str, str]:
    """For each packed token the sequence that it belongs to and its offset in there."""
    ends = graph.node("Slice", starts, graph.int64(1), graph.int64(2**31 - 1))
    total = graph.node("Gather", starts, graph.constant(np.int64(-1)))
    zero, one = graph.constant(np.int64(0)), graph.constant(np.int64(1))
    index = graph.node("Range", zero, total, one)
    ended = graph.node("GreaterOrEqual", graph.node("Unsqueeze", index, graph.int64(1)), ends)
    sequence = graph.node("ReduceSum", graph.node("Cast", ended, to=TensorProto.INT64), graph.int64(1), keepdims=0)
    return sequence, graph.node("Sub", index, graph.node("Gather", starts, sequence))


def _allowed(graph: Graph, sequence: str, position: str, kv_sequence: str, kv_position: str) -> str:
    """(tokens, kvstarts[B]): whether a token sees a key, one of its own sequence and not of its future."""
    sequence, position = (graph.node("Unsqueeze", x, graph.int64(1)) for x in (sequence, position))
    same = graph.node("Equal", sequence, kv_sequence)
    return graph.node("And", same, graph.node("GreaterOrEqual", position, kv_position))


def _rotary(graph: Graph, decoder: Decoder, position: str):
    """The function that rotates (tokens, heads, Dh) by position; its angles come from a table."""
    half = decoder.head_dim // 2
    angles = np.outer(np.arange(decoder.max_positions), 10000.0 ** (-np.arange(half) / half))
    cos, sin = (
        graph.node("Gather", graph.constant(f(angles)[:, None].astype(np.float32)), position) for f in (np.cos, np.sin)
    )

    def rotate(x: str) -> str:
        a, b = graph.nodes("Split", 2, x, axis=-1, num_outputs=2)
        left = graph.node("Sub", graph.node("Mul", a, cos), graph.node("Mul", b, sin))
        right = graph.node("Add", graph.node("Mul", b, cos), graph.node("Mul", a, sin))
        return graph.node("Concat", left, right, axis=-1)

    return rotate


def _attention(graph: Graph, decoder: Decoder, query: str, key: str, value: str, allowed: str) -> str:
    """Attention of a packed ragged batch: what is not allowed gets a weight of exactly zero."""
    query = graph.node("Transpose", query, perm=[1, 0, 2])
    key = graph.node("Transpose", key, perm=[1, 2, 0])
    value = graph.node("Transpose", value, perm=[1, 0, 2])
    scores = graph.node("Mul", graph.node("MatMul", query, key), graph.constant(np.float32(decoder.head_dim**-0.5)))
    masked = graph.node("Where", allowed, scores, graph.constant(np.float32(-np.inf)))
    zero = graph.constant(np.float32(0))
    probabilities = graph.node("Where", allowed, graph.node("Softmax", masked, axis=-1), zero)
    mixed = graph.node("Transpose", graph.node("MatMul", probabilities, value), perm=[1, 0, 2])
    return graph.node("Reshape", mixed, graph.int64(0, -1))
