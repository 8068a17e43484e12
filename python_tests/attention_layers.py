"""A model of several `MultiHeadCacheAttention` nodes, one for each layer, on one cache input."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnxruntime

from attention_node import Arrays, Attention
from graph import Graph
from kvcache import DOMAIN
from node import FUSED_INPUTS, bind_inputs
from setting import Memory

ROWS = FUSED_INPUTS[:3]


def layers(attention: Attention) -> list[Attention]:
    """The node once for each layer of its cache."""
    return [replace(attention, cached=cached) for cached in attention.cached.layers()]


def layers_model(attention: Attention) -> bytes:
    """Layer i takes `query_i`, `current_key_i` and `current_value_i` and gives `attn_output_i`; the rest is shared."""
    types = attention.types(FUSED_INPUTS, {})
    graph = Graph()
    shared = [graph.input(name, types[name]) for name in FUSED_INPUTS[3:] if name in types]
    for i, layer in enumerate(layers(attention)):
        rows = [graph.input(f"{name}_{i}", attention.cached.t1) for name in ROWS]
        output = graph.node("MultiHeadCacheAttention", *rows, *shared, domain=DOMAIN, **layer.attributes)
        graph.output(f"attn_output_{i}", output, attention.cached.t1)
    return graph.serialize()


def run_layers(
    session: onnxruntime.InferenceSession, rows: list[Arrays], index: Arrays, memory: Memory
) -> list[np.ndarray]:
    """One call of a model of layers, on the memory itself: attn_output of each layer."""
    binding = session.io_binding()
    feeds = {f"{name}_{i}": x for i, layer in enumerate(rows) for name, x in layer.items()}
    bind_inputs(binding, feeds | index | memory.arrays, memory.int4_shape)
    for output in session.get_outputs():
        binding.bind_output(output.name, "cpu")
    session.run_with_iobinding(binding)
    return binding.copy_outputs_to_cpu()
