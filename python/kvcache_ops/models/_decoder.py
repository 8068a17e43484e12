"""The graph of a decoder over a KV cache: takes ragged tokens, returns logits of the requested rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from kvcache_ops.models._centering import MEAN
from kvcache_ops.models._config import Config
from kvcache_ops.models._graph_writer import MICROSOFT, Graph
from kvcache_ops.models._layer_groups import LayerGroups
from kvcache_ops.models._weights import Dense, Weight
from kvcache_ops.ops._cache_spec import CacheSpec


def balanced(query: NDArray[np.float32], key: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The weights (head_dim) of the norms of a layer's queries and keys, with the same inner products.

    A quantized key has one error for all channels of a group. So each pair of channels that are rotated together is
    divided by sqrt(g_key / g_query) in keys, and multiplied by it in queries, where g is the root mean square of the
    pair's two weights: then both are equally large in every channel, and no channel's error meets large queries. A
    pair with a g of 0 gets the ratio of the layer's medians.
    """
    g_query, g_key = (np.sqrt((np.float64(w).reshape(2, -1) ** 2).mean(axis=0)) for w in (query, key))
    median = np.median(g_key) / np.median(g_query) if np.median(g_query) else 1.0
    used = (g_query > 0) & (g_key > 0)
    ratio = np.divide(g_key, g_query, out=np.full_like(g_key, median or 1.0), where=used)
    factor = np.tile(np.sqrt(ratio), 2)
    return (query * factor).astype(np.float32), (key / factor).astype(np.float32)


class Decoder:
    """Writes the decoder of a Config into a graph, reading tensors as they are needed."""

    def __init__(
        self,
        graph: Graph,
        config: Config,
        spec: CacheSpec,
        groups: LayerGroups,
        attention: str,
        balance: bool,
        center: bool,
        tensor: Callable[[str], Weight],
    ) -> None:
        self._graph, self._config, self._spec, self._tensor = graph, config, spec, tensor
        self._groups, self._attention, self._balance, self._center = groups, attention, balance, center

    def write(self) -> None:
        """Writes the whole graph: inputs, layers, head."""
        graph, config = self._graph, self._config
        for value in self._groups.graph_inputs(self._spec, masked=config.window is not None):
            graph.input(*value)
        x = graph.embedding("embedding", "token_ids", self._tensor("token_embd.weight"))
        if config.gemma:
            x = graph.node(
                "Mul", [x, graph.constant("embedding.scale", config.hidden**0.5, np.float32)], "embedding.scaled"
            )
        self._rotation("rope", config.inv_freq, config.rope_scale)
        if config.local_inv_freq:
            self._rotation("rope.local", config.local_inv_freq, 1.0)
        normal = self._norm("layers.0.attention_norm", x, "blk.0.attn_norm.weight")
        for i in range(config.num_layers):
            name, last = f"layers.{i}", i + 1 == config.num_layers
            mixed = self._attend(name, i, normal)
            if last:  # nothing but attention needs the other tokens of the last layer
                mixed = graph.node("Gather", [mixed, "logit_rows"], f"{name}.rows")
                x = graph.node("Gather", [x, "logit_rows"], f"{name}.residual_rows")
            out = graph.linear(f"{name}.attention.out", mixed, [self._tensor(f"blk.{i}.attn_output.weight")])
            if config.gemma:
                out = self._norm(f"{name}.attention.out_norm", out, f"blk.{i}.post_attention_norm.weight")
            normal, x = self._skip_norm(f"{name}.ffn_norm", x, out, f"blk.{i}.ffn_norm.weight")
            out = self._feed_forward(name, i, normal)
            if config.gemma:
                out = self._norm(f"{name}.ffn_out_norm", out, f"blk.{i}.post_ffw_norm.weight")
            following = "output_norm.weight" if last else f"blk.{i + 1}.attn_norm.weight"
            normal, x = self._skip_norm("norm" if last else f"layers.{i + 1}.attention_norm", x, out, following)
        name = "logits.uncapped" if config.logit_softcap else "logits"
        if config.tied:
            logits = graph.tied(name, normal, "embedding", self._tensor("token_embd.weight"))
        else:
            logits = graph.linear(name, normal, [self._tensor("output.weight")])
        if config.logit_softcap:
            cap = graph.constant("logits.cap", config.logit_softcap, np.float32)
            part = graph.node("Tanh", [graph.node("Div", [logits, cap], "logits.over_cap")], "logits.tanh")
            logits = graph.node("Mul", [part, cap], "logits")
        graph.output(logits, TensorProto.FLOAT, ["R", config.vocab_size])

    def _rotation(self, rope: str, inv_freq: tuple[float, ...], rope_scale: float) -> None:
        """cos and sin (T, Dh / 2) of the tokens' angles; these are float64, for late positions to be exact."""
        graph = self._graph
        column = graph.node("Unsqueeze", ["positions", graph.constant("second_axis", [1])], f"{rope}.column")
        exact = graph.node("Cast", [column], f"{rope}.positions", to=TensorProto.DOUBLE)
        angles = graph.node(
            "Mul", [exact, graph.constant(f"{rope}.inv_freq", [inv_freq], np.float64)], f"{rope}.angles"
        )
        # Two sines: ONNX Runtime 1.24 has no cosine of float64.
        quarter = graph.constant("rope.quarter_turn", np.pi / 2, np.float64)
        shifted = graph.node("Add", [angles, quarter], f"{rope}.cos.angles")
        for name, of in ((f"{rope}.cos", shifted), (f"{rope}.sin", angles)):
            value = graph.node("Sin", [of], f"{name}.float64")
            if rope_scale != 1:
                scale = graph.constant("rope.scale", rope_scale, np.float64)
                value = graph.node("Mul", [value, scale], f"{name}.scaled")
            graph.node("Cast", [value], name, to=TensorProto.FLOAT)

    def _norm(self, name: str, x: str, weight: str) -> str:
        return self._graph.node(
            "RMSNormalization",
            [x, self._vector(f"{name}.weight", weight)],
            name,
            axis=-1,
            epsilon=self._config.norm_eps,
        )

    def _skip_norm(self, name: str, x: str, skip: str, weight: str) -> tuple[str, str]:
        """The norm of a sum, and the sum: both (T, hidden)."""
        normal, _, _, total = self._graph.nodes(
            "SkipSimplifiedLayerNormalization",
            [x, skip, self._vector(f"{name}.weight", weight)],
            [name, "", "", f"{name}.sum"],
            domain=MICROSOFT,
            epsilon=self._config.norm_eps,
        )
        return normal, total

    def _attend(self, name: str, i: int, normal: str) -> str:
        """Attention of layer i, without its output projection: (T, num_heads * head_dim)."""
        graph, config = self._graph, self._config
        name = f"{name}.attention"
        heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        parts = [f"blk.{i}.attn_{part}" for part in "qkv"]
        bias = None
        if config.biases:
            bias = np.concatenate([self._float32(f"{part}.bias") for part in parts])
        qkv = graph.linear(f"{name}.qkv", normal, [self._tensor(f"{part}.weight") for part in parts], bias)
        sizes = graph.constant("qk_and_v", [(heads + kv_heads) * head_dim, kv_heads * head_dim])
        qk, v = graph.nodes("Split", [qkv, sizes], [f"{name}.qk", f"{name}.v"], axis=1)
        if config.head_norms:
            qk = self._head_norms(name, i, qk)
        packed = graph.node("Unsqueeze", [qk, graph.constant("first_axis", [0])], f"{name}.batch")
        first = graph.constant("first_row", [0])
        rope = "rope.local" if config.local_inv_freq and config.windows[i] else "rope"
        rotated = graph.node(
            "RotaryEmbedding", [packed, first, f"{rope}.cos", f"{rope}.sin"], f"{name}.rotated", domain=MICROSOFT
        )
        rotated = graph.node(
            "Reshape", [rotated, graph.constant("heads", [-1, heads + kv_heads, head_dim])], f"{name}.heads"
        )
        sizes = graph.constant("q_and_k", [heads, kv_heads])
        query, key = graph.nodes("Split", [rotated, sizes], [f"{name}.query", f"{name}.key"], axis=1)
        value = graph.node("Reshape", [v, graph.constant("kv_heads", [-1, kv_heads, head_dim])], f"{name}.value")
        if self._center:
            mean = graph.constant(f"{key}{MEAN}", np.zeros((kv_heads, head_dim)), np.float32)
            key = graph.node("Sub", [key, mean], f"{name}.centered_key")
        mixed = self._operators(name, i, query, key, value)
        return graph.node("Reshape", [mixed, graph.constant("rows", [0, -1])], f"{name}.mixed")

    def _head_norms(self, name: str, i: int, qk: str) -> str:
        """Each head of q and k over its root mean square, times the layer's weights."""
        graph, config = self._graph, self._config
        heads = graph.constant("heads", [-1, config.num_heads + config.num_kv_heads, config.head_dim])
        ones = graph.constant("ones", np.ones(config.head_dim), np.float32)
        qk = graph.node("Reshape", [qk, heads], f"{name}.unscaled_heads")
        qk = graph.node("RMSNormalization", [qk, ones], f"{name}.unit_heads", axis=-1, epsilon=config.norm_eps)
        query, key = (self._float32(f"blk.{i}.attn_{part}_norm.weight") for part in "qk")
        if self._balance:
            query, key = balanced(query, key)
        weights = np.concatenate([np.tile(query, (config.num_heads, 1)), np.tile(key, (config.num_kv_heads, 1))])
        qk = graph.node("Mul", [qk, graph.weight(f"{name}.head_norms.weight", weights)], f"{name}.normal_heads")
        return graph.node("Reshape", [qk, graph.constant("rows", [0, -1])], f"{name}.head_norms")

    def _operators(self, name: str, i: int, query: str, key: str, value: str) -> str:
        """Stores keys and values and attends, (T, num_heads, head_dim)."""
        config = self._config
        inputs = {"query": query, "current_key": key, "current_value": value}
        if config.window is not None:
            inputs["attn_mask"] = "attn_mask"
        sizes: dict[str, int | float] = {"num_heads": config.num_heads}
        sizes |= {name: getattr(config, name) for name in ("scale", "softcap") if getattr(config, name)}
        if config.windows and config.windows[i]:
            sizes["local_window_size"] = config.windows[i]
        names = (f"{name}.heads_mixed", f"{name}.keys", f"{name}.values")
        for node in self._groups.attention_nodes(i, self._spec, self._attention, inputs, names, sizes):
            self._graph.add(node)
        return names[0]

    def _feed_forward(self, name: str, i: int, normal: str) -> str:
        """down(silu(gate(x)) * up(x)), or GELU in its place, (T, hidden)."""
        parts = [self._tensor(f"blk.{i}.ffn_{part}.weight") for part in ("gate", "up")]
        both = self._graph.linear(f"{name}.gate_and_up", normal, parts)
        gate = "gelu" if self._config.gemma else "silu"
        return self._graph.gated(f"{name}.down", both, self._tensor(f"blk.{i}.ffn_down.weight"), gate)

    def _vector(self, name: str, tensor: str) -> str:
        return self._graph.weight(name, self._float32(tensor))

    def _float32(self, tensor: str) -> np.ndarray:
        weight = self._tensor(tensor)
        assert isinstance(weight, Dense)  # a vector, which no file may quantize
        return weight.values.astype(np.float32)
