"""Attention nodes of ONNX Runtime, with a cache of their own each, become ours over one cache of all layers.

    [split q, k, v] -> [norms of the heads] -> [rotation at the step's positions] -> attention -> the node's output

GroupQueryAttention has its tokens as (batch, sequence), and PagedAttention in a row. Both compute each token from its
own row but for attention, so all tokens of a step, of whatever sequences, are one row of a batch of one.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from onnx import NodeProto, helper, numpy_helper

from kvcache_ops.models._graph_reader import Values, attributes, called, shape_of, unsupported
from kvcache_ops.models._graph_writer import MICROSOFT
from kvcache_ops.models._layer_groups import LayerGroups
from kvcache_ops.ops._cache_spec import CacheSpec

# The inputs in their order.
_QKV_AND_PAST = ("query", "key", "value", "past_key", "past_value")
INPUTS = {
    "GroupQueryAttention": (
        *_QKV_AND_PAST,
        *("seqlens_k", "total_sequence_length", "cos_cache", "sin_cache", "position_ids", "attention_bias"),
        *("head_sink", "k_scale", "v_scale", "q_norm_weight", "k_norm_weight", "query_seqlens"),
    ),
    "PagedAttention": (
        *_QKV_AND_PAST,
        *("cumulative_sequence_length", "past_seqlens", "block_table", "cos_cache", "sin_cache", "slot_mapping"),
        *("head_sink", "q_norm_weight", "k_norm_weight", "k_scale", "v_scale", "attention_metadata"),
    ),
}
_REFUSED_INPUTS = ("attention_bias", "k_scale", "v_scale", "query_seqlens")

# Attributes that are read, with their defaults; that must have a value; and that belong to a cache that goes.
_READ = {
    "num_heads": 0,
    "kv_num_heads": 0,
    "scale": 0.0,
    "softcap": 0.0,
    "do_rotary": 0,
    "rotary_interleaved": 0,
    "local_window_size": -1,
    "smooth_softmax": 0,
    "qk_norm_epsilon": 1e-6,
    "q_norm_epsilon": 0.0,  # which is qk_norm_epsilon
    "k_norm_epsilon": 0.0,
}
_FLAGS = ("do_rotary", "rotary_interleaved", "smooth_softmax")
_FIXED = {
    "causal": 1,
    "is_causal": 1,
    "qk_output": 0,
    "k_quant_type": "NONE",
    "v_quant_type": "NONE",
    "kv_cache_layout": "SEPARATE",
    "rotary_offset": 0,
    "v_head_size": 0,
    "k_cache_dtype": "",
    "v_cache_dtype": "",
}
_OF_THE_CACHE = ("sliding_window_cache", "kv_cache_bit_width")


@dataclass(frozen=True)
class Rotation:
    """The tables of cosines and sines of a rotary embedding, and which elements of a head are a pair."""

    cos: str
    sin: str
    interleaved: bool


class Attention:
    """An attention node: its inputs and attributes by name.

    Raises KvCacheError "graph_unsupported" for what has no place in ours.
    """

    def __init__(self, node: NodeProto, values: Values) -> None:
        self.node, self._values = node, values
        names = INPUTS[node.op_type]
        if len(node.input) > len(names):
            raise unsupported(f"{called(node)} has {len(node.input)} inputs, expected at most {len(names)}")
        self.inputs = {name: value for name, value in zip(names, node.input) if value}
        for name in _REFUSED_INPUTS:
            if name in self.inputs:
                raise unsupported(f"{called(node)} has {name} {self.inputs[name]}, expected none: export without it")
        self.given = {**_READ, **(found := attributes(node))}
        for name, value in found.items():
            kind = type(_READ.get(name, value))
            if not isinstance(value, kind) or (name in _FLAGS and value not in (0, 1)):
                expected = "0 or 1" if name in _FLAGS else f"a value of the type {kind.__name__}"
                raise unsupported(f"{called(node)} has {name} {value!r}, expected {expected}")
            if value != _FIXED.get(name, value) or name not in {*_READ, *_FIXED, *_OF_THE_CACHE}:
                expected = f"{_FIXED[name]!r}" if name in _FIXED else "no such attribute"
                raise unsupported(f"{called(node)} has {name} {value!r}, expected {expected}")
        if "query" not in self.inputs:
            raise unsupported(f"{called(node)} has no query, expected it")
        for name in ("past_key", "past_value"):
            if self.inputs.get(name) not in values.inputs:
                got = self.inputs.get(name, "absent")
                raise unsupported(f"{name} of {called(node)} is {got}, expected an input of the graph: a decoder's")
        heads, kv_heads = self.heads
        if heads < 1 or kv_heads < 1 or heads % kv_heads:
            raise unsupported(f"{called(node)} has {heads} heads on {kv_heads}, expected a multiple")
        pairs = [("key", "value"), ("q_norm_weight", "k_norm_weight"), ("cos_cache", "sin_cache")]
        for one, other in pairs:
            if (one in self.inputs) != (other in self.inputs):
                raise unsupported(f"{called(node)} has one of {one} and {other}, expected both or none")
        if self.given["do_rotary"] and "cos_cache" not in self.inputs:
            raise unsupported(f"{called(node)} has do_rotary and no cos_cache, expected it")

    @property
    def heads(self) -> tuple[int, int]:
        """Heads of queries, and of keys."""
        return self.given["num_heads"], self.given["kv_num_heads"]

    @property
    def window(self) -> int | None:
        """How many tokens a query sees, its own included."""
        return self.given["local_window_size"] if self.given["local_window_size"] > 0 else None

    @property
    def rotation(self) -> Rotation | None:
        """What queries and keys are rotated by, if they are."""
        if not self.given["do_rotary"]:
            return None
        tables = (self.inputs["cos_cache"], self.inputs["sin_cache"])
        for table in tables:
            if self._values.constant(table) is None:
                raise unsupported(f"{table}, which {called(self.node)} rotates by, is computed, expected a constant")
        return Rotation(*tables, bool(self.given["rotary_interleaved"]))

    def head_dim(self) -> int | None:
        """Elements of a head, if the graph says it."""
        past = self._values.inputs[self.inputs["past_key"]]
        found = (shape_of(past) or [None])[-1]
        heads, kv_heads = self.heads
        named = {value.name: value for value in self._values.graph.value_info}
        query = named.get(self.inputs["query"])
        width = (shape_of(query) or [None])[-1] if query is not None else None
        parts = heads if "key" in self.inputs else heads + 2 * kv_heads
        if width is None:
            return found
        if width % parts or (found is not None and width != parts * found):
            message = f"the query of {called(self.node)} has {width} elements, expected {parts} heads"
            raise unsupported(f"{message} of {found or 'equal size'}")
        return width // parts


class Replacement:
    """Writes the nodes that do what an attention node does, but over `cache`."""

    def __init__(
        self, values: Values, spec: CacheSpec, groups: LayerGroups, kind: str, paged: bool, position_ids: str
    ) -> None:
        self._values, self._spec, self._groups, self._kind, self._paged = values, spec, groups, kind, paged
        self._position_ids = position_ids  # the export's input
        self._nodes: list[NodeProto] = []
        self._made: set[str] = set()

    def attention(self, attention: Attention, layer: int) -> list[NodeProto]:
        """The nodes of a layer."""
        self._nodes = []
        name = f"kvcache/layers.{layer}"
        inputs, (heads, kv_heads), head_dim = attention.inputs, attention.heads, self._spec.head_dim
        sizes = [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim]
        parts = [f"{name}/{part}" for part in ("query", "key", "value")]
        if "key" in inputs:
            packed = [inputs[part] for part in ("query", "key", "value")]
        else:
            packed = [f"{part}/packed" for part in parts]
            split = self.constant("qkv_sizes", np.array(sizes))
            self._nodes.append(helper.make_node("Split", [inputs["query"], split], packed, name, axis=-1))
        rows = []
        for part, x, count, letter in zip(parts, packed, (heads, kv_heads, kv_heads), "qkv"):
            by_heads = self.constant(f"{count}_heads", np.array([-1, count, head_dim]))
            if letter != "v" and "q_norm_weight" in inputs:
                x = self._node("Reshape", [x, by_heads], f"{part}/unscaled")
                epsilon = attention.given[f"{letter}_norm_epsilon"] or attention.given["qk_norm_epsilon"]
                norm = [x, inputs[f"{letter}_norm_weight"]]
                x = self._node("SimplifiedLayerNormalization", norm, f"{part}/normal", axis=-1, epsilon=epsilon)
            if letter != "v" and attention.rotation is not None:
                flat = self.constant(f"{count}_heads_in_a_row", np.array([1, -1, count * head_dim]))
                x = self._node("Reshape", [x, flat], f"{part}/flat")
                x = self._rotated(x, attention, part, count)
            rows.append(self._node("Reshape", [x, by_heads], part))
        mixed = self._operators(name, attention, layer, *rows)
        shape = [-1, heads * head_dim] if self._paged else [1, -1, heads * head_dim]
        flat = self.constant("mixed_heads", np.array(shape))
        self._nodes.append(helper.make_node("Reshape", [mixed, flat], attention.node.output[:1], f"{name}/mixed"))
        return self._nodes

    def rotary(self, node: NodeProto) -> list[NodeProto]:
        """ONNX Runtime's RotaryEmbedding at the step's positions, whose number may exceed its tables' rows."""
        self._nodes = []
        cos, sin = self._tables(node.input[2], node.input[3], "positions")
        node.input[:] = [node.input[0], self.constant("first_row", np.array([0])), cos, sin]
        return [*self._nodes, node]

    def constant(self, name: str, array: Any) -> str:
        """A small array; an equal one of that name is the same."""
        name = f"kvcache/{name}"
        if name not in self._made:
            self._made.add(name)
            self._values.graph.initializer.append(numpy_helper.from_array(array, name))
        return name

    def _node(self, op_type: str, inputs: list[str], name: str, domain: str = "", **given: Any) -> str:
        self._nodes.append(helper.make_node(op_type, inputs, [name], name, domain=domain, **given))
        return name

    def _tables(self, cos: str, sin: str, positions: str) -> list[str]:
        """The rows of cosines and sines of the step's tokens, which layers share."""
        names = []
        for table in (cos, sin):
            names.append(name := f"kvcache/{table}/{positions}")
            if name not in self._made:
                self._made.add(name)
                self._node("Gather", [table, positions], name, axis=0)
        return names

    def _rotated(self, x: str, attention: Attention, part: str, count: int) -> str:
        rotation, positions = attention.rotation, "positions"
        assert rotation is not None
        if (given := attention.inputs.get("position_ids", self._position_ids)) != self._position_ids:
            positions = self._node("Reshape", [given, self.constant("row", np.array([-1]))], f"{part}/positions")
        tables = self._tables(rotation.cos, rotation.sin, positions)
        table = self._values.constant(rotation.cos)
        assert table is not None  # as `rotation` has it
        return self._node(
            "RotaryEmbedding",
            [x, self.constant("first_row", np.array([0])), *tables],
            f"{part}/rotated",
            MICROSOFT,
            num_heads=count,
            rotary_embedding_dim=2 * table.dims[-1],
            interleaved=int(rotation.interleaved),
        )

    def _operators(self, name: str, attention: Attention, layer: int, query: str, key: str, value: str) -> str:
        """Stores keys and values and attends, (T, num_heads, head_dim)."""
        given, spec = attention.given, self._spec
        sizes: dict[str, int | float] = {"num_heads": given["num_heads"]}
        if given["scale"] and np.float32(given["scale"]) != np.float32(1 / sqrt(spec.head_dim)):
            sizes["scale"] = given["scale"]
        if given["softcap"]:
            sizes["softcap"] = given["softcap"]
        if attention.window is not None:
            sizes["local_window_size"] = attention.window
        inputs = {"query": query, "current_key": key, "current_value": value}
        if "head_sink" in attention.inputs:
            inputs["head_sink"] = attention.inputs["head_sink"]
        elif given["smooth_softmax"]:
            inputs["head_sink"] = self.constant("head_sink", np.zeros(given["num_heads"], spec.dtype))
        names = (f"{name}/attention", f"{name}/keys", f"{name}/values")
        self._nodes.extend(self._groups.attention_nodes(layer, spec, self._kind, inputs, names, sizes))
        return names[0]
