"""A builder of the bodies of model-local functions: every method adds a node and returns the name of its result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, TensorProto, helper, numpy_helper

from kvcache_pmx._call import Refusal

FLOAT = int(TensorProto.FLOAT)
INT64 = int(TensorProto.INT64)
# What a Slice takes for "to the end".
END = 2**63 - 1


@dataclass(frozen=True)
class Function:
    """What a node stands for: its inputs by position, those that it leaves out included, its outputs, and the nodes."""

    inputs: list[str]
    outputs: list[str]
    nodes: list[NodeProto]


class Body:
    """The nodes of one function, in the operators of ONNX's default domain as they are from opset 18 on."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self._names = 0

    def node(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Adds a node of one output."""
        return self.multiple(op_type, 1, *inputs, **attributes)[0]

    def multiple(self, op_type: str, outputs: int, *inputs: str, **attributes: Any) -> list[str]:
        """Adds a node of several outputs."""
        names = []
        for _ in range(outputs):
            names.append(f"{op_type}_{self._names}")
            self._names += 1
        # With names, as ONNX Runtime 1.20 may make two nodes of one name of nodes without any.
        self.nodes.append(helper.make_node(op_type, list(inputs), names, names[0], **attributes))
        return names

    def constant(self, value: npt.NDArray[np.generic]) -> str:
        """A tensor."""
        return self.node("Constant", value=numpy_helper.from_array(np.asarray(value)))

    def integers(self, *values: int) -> str:
        """A list of integers, as axes and shapes need it."""
        return self.constant(np.array(values, np.int64))

    def integer(self, value: int) -> str:
        """A scalar integer."""
        return self.constant(np.array(value, np.int64))

    def number(self, value: float) -> str:
        """A scalar float32."""
        return self.constant(np.array(value, np.float32))

    def float32(self, x: str) -> str:
        """The tensor in float32."""
        return self.node("Cast", x, to=FLOAT)

    def unsqueeze(self, x: str, *axes: int) -> str:
        """The tensor with further axes of length 1."""
        return self.node("Unsqueeze", x, self.integers(*axes))

    def slice(self, x: str, start: int, end: int, axis: int, step: int = 1) -> str:
        """A range of one axis."""
        return self.node("Slice", x, self.integers(start), self.integers(end), self.integers(axis), self.integers(step))

    def dimension(self, x: str, axis: int) -> str:
        """The length of an axis, as a scalar."""
        return self.node("Gather", self.node("Shape", x), self.integer(axis))

    def count_up(self, length: str) -> str:
        """The integers from 0 up to `length`, a scalar."""
        return self.node("Range", self.integer(0), length, self.integer(1))

    def halves(self, x: str) -> list[str]:
        """The halves of the last axis."""
        return self.multiple("Split", 2, x, axis=-1, num_outputs=2)

    def returns(self, inputs: list[str], *outputs: str) -> Function:
        """The finished function. An output that is one of the inputs goes through an Identity.

        Raises a Refusal if it needs an input that is not among `inputs`.
        """
        names = [self.node("Identity", name) if name in inputs else name for name in outputs]
        known = set(inputs)
        for node in self.nodes:
            for name in node.input:
                if name not in known:
                    raise Refusal(f"input {name} is missing")
            known.update(node.output)
        return Function(inputs, names, self.nodes)
