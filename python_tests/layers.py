"""A model of several nodes, one for each layer, on one cache input."""

from __future__ import annotations

import numpy as np
import onnxruntime

from attention_node import Attention
from compare import Arrays
from graph import Graph
from kvcache import DOMAIN
from node import OPERATORS, run_node
from setting import Memory, Setting

ROWS = ("query", "current_key", "current_value")


def layers_model(node: Setting | Attention) -> bytes:
    """Layer i takes `current_key_i` and so on and gives out `key_i` and so on; the rest is shared."""
    names, results = OPERATORS[node.operator]
    types = node.types({})
    graph = Graph()
    given = {name: graph.input(name, types[name]) for name in names if name in types and name not in ROWS}
    for i, layer in enumerate(node.layers()):
        inputs = {name: graph.input(f"{name}_{i}", types[name]) for name in ROWS if name in names} | given
        ordered = [inputs[name] for name in names if name in types]
        outputs = graph.nodes(node.operator, len(results), *ordered, domain=DOMAIN, **layer.attributes)
        for name, output in zip(results, outputs):
            graph.output(f"{name}_{i}", output, node.cached.t1)
    return graph.serialize()


def run_layers(
    session: onnxruntime.InferenceSession, rows: list[Arrays], index: Arrays, memory: Memory
) -> list[tuple[np.ndarray, ...]]:
    """One call of a model of layers, on the memory itself: the outputs of each layer."""
    feeds = {f"{name}_{i}": x for i, layer in enumerate(rows) for name, x in layer.items()}
    outputs = run_node(session, feeds | index | memory.arrays, memory.int4_shape)
    each = len(outputs) // len(rows)
    return [tuple(outputs[i : i + each]) for i in range(0, len(outputs), each)]


def run_layers_one_by_one(
    node: Setting | Attention, rows: list[Arrays], index: Arrays, memory: Memory
) -> list[list[np.ndarray]]:
    """The same by a model of one node for each layer, one after another."""
    return [layer.run(own | index, memory) for layer, own in zip(node.layers(), rows, strict=True)]
