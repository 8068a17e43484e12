"""Which layers of a model share a cache, those that see as many tokens; and what its graph has of each cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from onnx import NodeProto, TensorProto

from kvcache_ops import _native
from kvcache_ops.ops._cache_spec import ONNX_TYPES, CacheSpec
from kvcache_ops.ops._indices import AttentionIndices
from kvcache_ops.ops._nodes import make_node
from kvcache_ops.ops._operators import node_attributes

INDICES = tuple(AttentionIndices.__annotations__)
"""The operators' index inputs, as a step of the manager has them."""


@dataclass(frozen=True)
class LayerGroups:
    """`windows`: how many tokens the layers of each group see, the most first, None for all; `of`: each layer's group.

    The graph has `cache`, `scale` and `cachestarts` of each group: the first's by these names, another's with its
    number after a dot. All other inputs are the same for all groups.
    """

    windows: tuple[int | None, ...]
    of: tuple[int, ...]

    @classmethod
    def one(cls, num_layers: int) -> LayerGroups:
        """One cache of all layers, which keeps all tokens."""
        return cls((None,), (0,) * num_layers)

    @classmethod
    def of_metadata(cls, given: dict[str, Any] | None, num_layers: int) -> LayerGroups:
        """As a model has them; one that was built before there were any has one cache."""
        return cls.one(num_layers) if given is None else cls(tuple(given["windows"]), tuple(given["of"]))

    @classmethod
    def by_window(cls, windows: Sequence[int | None], context: int) -> LayerGroups:
        """Layers of one window together; a window as long as the context, or 0, is none."""
        kept = [max(window, 2) if window and window < context else None for window in windows]  # a manager's least
        order = sorted(set(kept), key=lambda window: window or context, reverse=True)
        return cls(tuple(order), tuple(order.index(window) for window in kept))

    def spec(self, group: int, whole: CacheSpec) -> CacheSpec:
        """The cache of a group, of the one of all layers."""
        return replace(whole, num_layers=self.of.count(group))

    def index(self, layer: int) -> int:
        """The number of a layer in its group's cache."""
        return self.of[:layer].count(self.of[layer])

    def inputs(self, group: int) -> dict[str, str]:
        """The graph's names of the inputs that groups have of their own."""
        return {name: f"{name}.{group}" if group else name for name in ("cachestarts", "cache", "scale")}

    def graph_inputs(self, whole: CacheSpec, masked: bool) -> Iterator[tuple[str, int, list[str | int]]]:
        """Names, types and shapes of the inputs of a graph over a cache for each group."""
        for name in ("token_ids", "positions"):
            yield name, TensorProto.INT64, ["T"]
        shapes: dict[str, list[str | int]] = {"seqstarts": ["B+1"], "kvstarts": ["B+1"], "start_pos": ["B"]}
        shapes["cachestarts"] = ["B", "MaxP"] if whole.cache_mode == 1 else ["B"]
        for name in INDICES:
            yield name, TensorProto.INT64, shapes.get(name, [1])
        yield "logit_rows", TensorProto.INT64, ["R"]
        if masked:
            yield "attn_mask", TensorProto.FLOAT, ["T or 0", "W"]
        for group in range(len(self.windows)):
            names, spec = self.inputs(group), self.spec(group, whole)
            if group:
                yield names["cachestarts"], TensorProto.INT64, shapes["cachestarts"]
            slots = f"MaxT.{group}" if group else "MaxT"
            of_cache = ("cache", spec.cache_dtype, spec.cache_shape), ("scale", spec.scale_dtype, spec.scale_shape)
            for name, dtype, shape in of_cache:
                if shape is not None:
                    dims = [slots if axis == "MaxT" else length for axis, length in zip(spec.axes, shape)]
                    yield names[name], ONNX_TYPES[str(dtype)], dims

    def attention_nodes(
        self,
        layer: int,
        whole: CacheSpec,
        kind: str,
        inputs: Mapping[str, str],
        names: tuple[str, str, str],
        sizes: Mapping[str, float],
    ) -> Iterator[NodeProto]:
        """The nodes that store keys and values of a layer and attend: a "fused" operator, or two, "packed".

        inputs: beside the indices and the cache. names: of the output, and of all keys and values between two
        operators. sizes: further attributes of attention.
        """
        output, *rows = names
        group, index = self.of[layer], {"layer_idx": self.index(layer)}
        spec = self.spec(group, whole)
        given = {name: name for name in INDICES} | self.inputs(group) | dict(inputs) | dict(zip(("key", "value"), rows))
        if whole.scale_dtype is None:
            del given["scale"]
        operators: list[tuple[str, list[str], Mapping[str, float]]] = [
            ("KeyValueCache", rows, index),
            ("MultiHeadAttention", [output], sizes),
        ]
        if kind == "fused":
            operators = [("MultiHeadCacheAttention", [output], {**index, **sizes})]
        for op_type, outputs, attributes in operators:
            taken = {name: given[name] for name in _native.input_names(op_type) if name in given}
            yield make_node(op_type, taken, outputs, node_attributes(op_type, spec, attributes), name=outputs[0])
