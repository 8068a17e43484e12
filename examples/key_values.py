"""Where the decoder's attention takes its keys and values from: a cache, or nothing but this call's own tokens.

Which keys a token sees follows from positions: those of its own sequence at its own position or before. `Cells`, where
a key may belong to several sequences at once, and windows take the mask that the cache manager makes.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from decoder import Decoder
from graph import Graph
from kvcache import DOMAIN, LAYOUT_AXES, CacheFormat


class CachedKeyValues:
    """Keys and values live in a cache that all layers share: each layer's node stores this call's and loads all.

    In mode "cells" the step has two batch entries: the first stores n tokens, the second is a view of the first n_kv
    cells, which all sequences share. Attention takes the view alone, rows n..n + n_kv of what the operator returns.
    """

    def __init__(
        self,
        decoder: Decoder,
        format: CacheFormat,
        *,
        mode: str = "paged",
        page_size: int = 128,
        cache_layout: int = 0,
        key_form: str = "roped",
        given_mask: bool = False,
    ):
        """With `given_mask` (always in mode "cells") who sees which key is the input `mask`, 0 or -inf."""
        self.key_form = key_form
        self._format = format
        self._mode = mode
        self._given_mask = given_mask or mode == "cells"
        self._attributes = dict(
            num_layer=decoder.num_layer,
            num_repeat=decoder.num_repeat,
            quant_bit=format.quant_bit,
            quant_group=format.quant_group,
            cache_mode=int(mode == "paged"),
            cache_layout=cache_layout,
            page_size=page_size,
        )

    def declare(self, graph: Graph, seqstarts: str, positions: str) -> tuple[str, str]:
        """The operator's index inputs, the cache that all layers share, `key_positions`, and `mask` if it is given."""
        self._inputs = cache_inputs(graph, self._format, self._mode, self._attributes["cache_layout"], seqstarts)
        kvstarts = self._inputs[1]
        self._num_tokens = graph.node("Shape", positions)
        key_positions = self._attended(graph, graph.input("key_positions", TensorProto.INT64, ["kv_tokens"]))
        if not self._given_mask:
            return key_positions, visible_by_position(graph, seqstarts, positions, kvstarts, key_positions)
        mask = graph.input("mask", TensorProto.FLOAT, ["rows", "columns"])  # padded on both axes
        sizes = graph.node("Concat", self._num_tokens, graph.node("Shape", key_positions), axis=0)
        mask = graph.node("Slice", mask, graph.int64(0, 0), sizes)
        return key_positions, graph.node("Equal", mask, graph.constant(np.float32(0)))

    def __call__(self, graph: Graph, layer: int, current_key: str, current_value: str) -> tuple[str, str]:
        """The layer's node; the rest of the decoder computes in float32."""
        current = [graph.node("Cast", x, to=self._format.current_type) for x in (current_key, current_value)]
        both = graph.nodes(
            "KeyValueCache", 2, *current, *self._inputs, domain=DOMAIN, layer_idx=layer, **self._attributes
        )
        key, value = (self._attended(graph, graph.node("Cast", x, to=TensorProto.FLOAT)) for x in both)
        return key, value

    def _attended(self, graph: Graph, keys: str) -> str:
        """What attention takes of Σkvlen rows: all, or in mode "cells" those of the view."""
        if self._mode != "cells":
            return keys
        return graph.node("Slice", keys, self._num_tokens, graph.int64(2**31 - 1), graph.int64(0))


def cache_inputs(graph: Graph, format: CacheFormat, mode: str, cache_layout: int, seqstarts: str) -> list[str]:
    """Declares what `KeyValueCache` takes behind the current keys and values; all names, in its order."""
    axes = list(LAYOUT_AXES[cache_layout])
    inputs = [
        seqstarts,
        graph.input("kvstarts", TensorProto.INT64, ["B+1"]),
        graph.input("cachestarts", TensorProto.INT64, ["B", "MaxP"] if mode == "paged" else ["B"]),
        graph.input("start_pos", TensorProto.INT64, ["B"]),
        graph.input("max_seqlen", TensorProto.INT64, []),
        graph.input("max_kvlen", TensorProto.INT64, []),
        graph.input("cache", format.cache_type, axes),
    ]
    if format.scale_type is not None:
        inputs.append(graph.input("scale", format.scale_type, [*axes[:4], "Dh/quant_group"]))
    return inputs


class RecomputedKeyValues:
    """No cache: a call holds whole sequences. Keys and values are rounded to the type that the cached decoder uses."""

    def __init__(self, decoder: Decoder, format: CacheFormat, *, key_form: str = "roped"):
        self.key_form = key_form
        self._decoder = decoder
        self._type = format.current_type

    def declare(self, graph: Graph, seqstarts: str, positions: str) -> tuple[str, str]:
        """No inputs: the keys are those of this call's tokens."""
        return positions, visible_by_position(graph, seqstarts, positions, seqstarts, positions)

    def __call__(self, graph: Graph, layer: int, current_key: str, current_value: str) -> tuple[str, str]:
        """This call's own, rounded, each head repeated."""
        head = graph.constant(np.arange(self._decoder.num_heads) // self._decoder.num_repeat)
        key, value = (
            graph.node("Gather", graph.node("Cast", rounded, to=TensorProto.FLOAT), head, axis=1)
            for rounded in (graph.node("Cast", x, to=self._type) for x in (current_key, current_value))
        )
        return key, value


def visible_by_position(graph: Graph, seqstarts: str, positions: str, kvstarts: str, key_positions: str) -> str:
    """(tokens, keys): whether a token sees a key, one of its own sequence and not of its future."""
    sequence = graph.node("Unsqueeze", _sequence(graph, seqstarts), graph.int64(1))
    same = graph.node("Equal", sequence, _sequence(graph, kvstarts))
    past = graph.node("GreaterOrEqual", graph.node("Unsqueeze", positions, graph.int64(1)), key_positions)
    return graph.node("And", same, past)


def _sequence(graph: Graph, starts: str) -> str:
    """For each packed token the batch entry that it belongs to."""
    ends = graph.node("Slice", starts, graph.int64(1), graph.int64(2**31 - 1))
    total = graph.node("Gather", starts, graph.constant(np.int64(-1)))
    index = graph.node("Range", graph.constant(np.int64(0)), total, graph.constant(np.int64(1)))
    ended = graph.node("GreaterOrEqual", graph.node("Unsqueeze", index, graph.int64(1)), ends)
    return graph.node("ReduceSum", graph.node("Cast", ended, to=TensorProto.INT64), graph.int64(1), keepdims=0)
