"""A model of several `KeyValueCache` nodes, one for each layer, on one cache input."""

from __future__ import annotations

import numpy as np
import onnxruntime

from graph import Graph
from kvcache import DOMAIN
from node import INPUTS, bind_inputs, node_types
from setting import Memory, Setting


def layers_model(setting: Setting) -> bytes:
    """Layer i stores `current_key_i` and `current_value_i` and gives out `key_i` and `value_i`; the rest is shared."""
    types = node_types(setting.t1, setting.t2, setting.t3)
    graph = Graph()
    shared = [graph.input(name, types[name]) for name in INPUTS[2:] if name in types]
    for layer, one in enumerate(setting.layers()):
        current = [graph.input(f"current_{name}_{layer}", setting.t1) for name in ("key", "value")]
        both = graph.nodes("KeyValueCache", 2, *current, *shared, domain=DOMAIN, **one.attributes)
        for name, output in zip(("key", "value"), both):
            graph.output(f"{name}_{layer}", output, setting.t1)
    return graph.serialize()


def run_layers(
    session: onnxruntime.InferenceSession,
    currents: list[dict[str, np.ndarray]],
    index: dict[str, np.ndarray],
    memory: Memory,
) -> list[tuple[np.ndarray, np.ndarray]]:
    """One call of a model of layers, on the memory itself: (key, value) of each layer."""
    binding = session.io_binding()
    feeds = {f"{name}_{layer}": x for layer, current in enumerate(currents) for name, x in current.items()}
    bind_inputs(binding, feeds | index | memory.arrays, memory.int4_shape)
    for output in session.get_outputs():
        binding.bind_output(output.name, "cpu")
    session.run_with_iobinding(binding)
    outputs = binding.copy_outputs_to_cpu()
    return list(zip(outputs[::2], outputs[1::2]))


def run_layers_one_by_one(
    setting: Setting, currents: list[dict[str, np.ndarray]], index: dict[str, np.ndarray], memory: Memory
) -> list[tuple[np.ndarray, np.ndarray]]:
    """The same by a model of one node for each layer, one after another."""
    return [one.run(current | index, memory) for one, current in zip(setting.layers(), currents)]
