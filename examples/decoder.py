"""A small transformer decoder as an ONNX graph, for a packed ragged batch.

RMSNorm, rotary positions, grouped-query attention, SwiGLU. Rotation goes by `positions`, an input: once a sequence has
been edited, a token's position is not its row. Standard operators attend over the keys and values of a source, of which
key_values.py has two. (A graph whose attention is an operator of ours is `kvcache_ops.models`'.)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from onnx import TensorProto

from graph import Graph


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
    rope_base: float = 10000.0
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
    """Where attention by standard operators takes its keys and values from."""

    key_form: str
    """"roped": keys come and go rotated by their positions; "raw": they do so as projected, and are rotated behind."""

    def declare(self, graph: Graph, seqstarts: str, positions: str) -> tuple[str, str]:
        """Adds the graph inputs it needs; names `key_positions` (keys) and which keys a token sees, (tokens, keys)."""

    def __call__(self, graph: Graph, layer: int, current_key: str, current_value: str) -> tuple[str, str]:
        """From this call's (tokens, Hkv, Dh) float32 to all keys and values, (keys, H, Dh) float32."""


def build_decoder(decoder: Decoder, source: KeyValueSource) -> bytes:
    """The decoder as a model: `token_ids`, `positions`, `seqstarts` (what `source` needs) to the tokens' `logits`."""
    weights = _weights(decoder)
    graph = Graph()
    token_ids = graph.input("token_ids", TensorProto.INT64, ["tokens"])
    positions = graph.input("positions", TensorProto.INT64, ["tokens"])
    seqstarts = graph.input("seqstarts", TensorProto.INT64, ["B+1"])
    rotate = _rotary(graph, decoder, positions)
    key_positions, visible = source.declare(graph, seqstarts, positions)
    raw = source.key_form == "raw"
    rotate_keys = _rotary(graph, decoder, key_positions) if raw else None  # an empty cell's -1: the last angles

    x = graph.node("Gather", graph.constant(weights["embedding"]), token_ids)
    for layer in range(decoder.num_layer):
        linear = _linear(graph, {name: stacked[layer] for name, stacked in weights.items() if stacked.ndim == 3})
        normal = _rms_norm(graph, x)
        query = rotate(_heads(graph, linear("query", normal), decoder.num_heads))
        current_key = _heads(graph, linear("key", normal), decoder.num_kv_heads)
        current_value = _heads(graph, linear("value", normal), decoder.num_kv_heads)
        if not raw:
            current_key = rotate(current_key)
        key, value = source(graph, layer, current_key, current_value)
        if raw:
            key = rotate_keys(key)
        mixed = _attention(graph, decoder, query, key, value, visible)
        x = graph.node("Add", x, linear("attention_out", graph.node("Reshape", mixed, graph.int64(0, -1))))
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


def _rotary(graph: Graph, decoder: Decoder, positions: str):
    """The function that rotates (tokens, heads, Dh) by the tokens' positions; its angles come from a table."""
    half = decoder.head_dim // 2
    angles = np.outer(np.arange(decoder.max_positions), decoder.rope_base ** (-np.arange(half) / half))
    cos, sin = (
        graph.node("Gather", graph.constant(f(angles)[:, None].astype(np.float32)), positions) for f in (np.cos, np.sin)
    )

    def rotate(x: str) -> str:
        a, b = graph.nodes("Split", 2, x, axis=-1, num_outputs=2)
        left = graph.node("Sub", graph.node("Mul", a, cos), graph.node("Mul", b, sin))
        right = graph.node("Add", graph.node("Mul", b, cos), graph.node("Mul", a, sin))
        return graph.node("Concat", left, right, axis=-1)

    return rotate


def _attention(graph: Graph, decoder: Decoder, query: str, key: str, value: str, visible: str) -> str:
    """Attention of a packed ragged batch, (tokens, Hq, Dh): a key that is not visible gets a weight of exactly zero."""
    query = graph.node("Transpose", query, perm=[1, 0, 2])
    key = graph.node("Transpose", key, perm=[1, 2, 0])
    value = graph.node("Transpose", value, perm=[1, 0, 2])
    scores = graph.node("Mul", graph.node("MatMul", query, key), graph.constant(np.float32(decoder.head_dim**-0.5)))
    masked = graph.node("Where", visible, scores, graph.constant(np.float32(-np.inf)))
    zero = graph.constant(np.float32(0))
    probabilities = graph.node("Where", visible, graph.node("Softmax", masked, axis=-1), zero)
    return graph.node("Transpose", graph.node("MatMul", probabilities, value), perm=[1, 0, 2])
