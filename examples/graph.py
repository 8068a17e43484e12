"""A small builder of ONNX graphs: every method adds something and returns its name."""

from __future__ import annotations

import kvcache_ops
import numpy as np
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from kvcache import DOMAIN

OPSET = 21
IR_VERSION = 10  # what ONNX Runtime 1.20 reads


class Graph:
    """The nodes, inputs, outputs and constants of one model."""

    def __init__(self) -> None:
        self._nodes: list[NodeProto] = []
        self._inputs: list[ValueInfoProto] = []
        self._outputs: list[ValueInfoProto] = []
        self._constants: list[TensorProto] = []

    def input(self, name: str, element_type: int, shape: list | None = None) -> str:
        """Declares a graph input; without a shape its rank is open."""
        self._inputs.append(helper.make_tensor_value_info(name, element_type, shape))
        return name

    def output(self, name: str, value: str, element_type: int, shape: list | None = None) -> None:
        """Outputs `value` under `name`."""
        self._nodes.append(helper.make_node("Identity", [value], [name]))
        self._outputs.append(helper.make_tensor_value_info(name, element_type, shape))

    def constant(self, value: np.ndarray) -> str:
        """Puts an array into the model."""
        name = f"constant_{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def int64(self, *values: int) -> str:
        """Puts a list of integers into the model, as axes and shapes need it."""
        return self.constant(np.array(values, np.int64))

    def node(self, op_type: str, *inputs: str, **attributes) -> str:
        """Adds a node of one output."""
        return self.nodes(op_type, 1, *inputs, **attributes)[0]

    def nodes(self, op_type: str, outputs: int, *inputs: str, domain: str = "", **attributes) -> list[str]:
        """Adds a node of several outputs; those of the operators' domains are checked."""
        names = [f"{op_type}_{len(self._nodes)}_{i}" for i in range(outputs)]
        make = kvcache_ops.make_node if domain else helper.make_node
        self._nodes.append(make(op_type, inputs, names, domain=domain, name=names[0], **attributes))
        return names

    def serialize(self, domain: str = DOMAIN) -> bytes:
        """The finished model; `domain` is that of the operators."""
        graph = helper.make_graph(self._nodes, "graph", self._inputs, self._outputs, self._constants)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(domain, 1)]
        return helper.make_model(graph, ir_version=IR_VERSION, opset_imports=opsets).SerializeToString()
