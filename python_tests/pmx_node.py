"""One PMX operator by itself: a model of one node, lowered and run."""

from __future__ import annotations

import numpy as np
from kvcache_pmx import lower
from onnx import ModelProto, helper, numpy_helper

from kvcache import ELEMENT_TYPES, create_session
from node import quiet_options

ELEMENT_TYPES = ELEMENT_TYPES | {np.dtype(np.int32): 6}


def node_model(
    op_type: str,
    inputs: dict[str, np.ndarray],
    attributes: dict[str, object],
    outputs: list[str],
    *,
    domain: str = "opmx",
    weights: tuple[str, ...] = (),
) -> ModelProto:
    """The node named /it in the exporter's opset; `weights` are initializers, the other inputs graph inputs."""
    node = helper.make_node(op_type, list(inputs), outputs, "/it", domain=domain, **attributes)
    given = [
        helper.make_tensor_value_info(name, ELEMENT_TYPES[x.dtype], [f"{name}_{axis}" for axis in range(x.ndim)])
        for name, x in inputs.items()
        if name and name not in weights
    ]
    # Their types are the runtime's to infer.
    results = [helper.make_empty_tensor_value_info(name) for name in outputs]
    held = [numpy_helper.from_array(inputs[name], name) for name in weights]
    graph = helper.make_graph([node], "graph", given, results, held)
    opsets = [helper.make_opsetid("", 11), helper.make_opsetid(domain, 1)]
    return helper.make_model(graph, ir_version=6, opset_imports=opsets)


def run_node(
    op_type: str,
    inputs: dict[str, np.ndarray],
    outputs: int = 1,
    *,
    domain: str = "opmx",
    weights: tuple[str, ...] = (),
    **attributes: object,
) -> list[np.ndarray]:
    """The results of the lowered node."""
    names = [f"y{i}" for i in range(outputs)]
    model = lower(node_model(op_type, inputs, attributes, names, domain=domain, weights=weights))
    session = create_session(model.SerializeToString(), quiet_options())
    return session.run(None, {name: x for name, x in inputs.items() if name and name not in weights})
