"""The same work by standard operators in the same ONNX Runtime, as well as they allow.

ScatterND writes the current rows in place, as its output is bound to the memory of its input; Gather reads all rows;
Expand repeats the heads; DequantizeLinear and elementary arithmetic quantize as the specification says. Neither
ScatterND nor Gather takes int4, so its bytes are moved as uint8, and the bit operators pack and unpack them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from cases import HEAD_DIM, INT4, NUM_HEADS, Case
from graph import IR_VERSION, OPSET
from kvcache import NUMPY_TYPES
from measure import Contender
from rows import rows_of
from runtime import Run, bound, session_of, timed
from tensors import Tensors

STANDARD = "standard ONNX operators"


@dataclass
class Nodes:
    """The nodes and constants of a graph in the making; every method adds a node and gives its output."""

    nodes: list[NodeProto] = field(default_factory=list)
    constants: list[TensorProto] = field(default_factory=list)

    def add(self, op_type: str, *inputs: str, output: str | None = None, **attributes) -> str:
        """A node of one output."""
        output = output or f"{op_type}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, list(inputs), [output], **attributes))
        return output

    def constant(self, value: np.ndarray) -> str:
        """A constant."""
        self.constants.append(numpy_helper.from_array(value, f"constant_{len(self.constants)}"))
        return self.constants[-1].name

    def reshape(self, x: str, *shape: int) -> str:
        """`x` in another shape; 0 keeps an axis."""
        return self.add("Reshape", x, self.constant(np.array(shape, np.int64)))


def quantized(nodes: Nodes, x: str, case: Case) -> tuple[str, str]:
    """Codes and scales of current tokens, by the specification's arithmetic in T1."""
    form, t1, qmax = case.format, NUMPY_TYPES[case.format.t1], case.format.qmax
    groups = HEAD_DIM // form.quant_group

    def number(value: float) -> str:
        return nodes.constant(np.array(value, t1))

    x = nodes.reshape(x, 0, NUM_HEADS, groups, form.quant_group)
    axes = nodes.constant(np.array([-1], np.int64))
    amax = nodes.add("ReduceMax", nodes.add("Abs", x), axes, keepdims=1)
    s = nodes.add("Max", nodes.add("Div", amax, number(qmax)), number(1e-5))
    q = nodes.add("Round", nodes.add("Div", x, s))
    q = nodes.add("Cast", nodes.add("Clip", q, number(-qmax), number(qmax)), to=TensorProto.INT8)
    scale = nodes.add("Cast", s, to=form.t3) if form.t3 != form.t1 else s
    q = packed(nodes, q) if form.t2 == INT4 else nodes.reshape(q, 0, NUM_HEADS, HEAD_DIM)
    return q, nodes.reshape(scale, 0, NUM_HEADS, groups)


def byte(nodes: Nodes, value: int) -> str:
    """A constant byte."""
    return nodes.constant(np.array(value, np.uint8))


def packed(nodes: Nodes, codes: str) -> str:
    """Bytes of two int4 codes, the first in the low nibble."""
    pairs = nodes.reshape(nodes.add("Cast", codes, to=TensorProto.UINT8), 0, NUM_HEADS, HEAD_DIM // 2, 2)
    low, high = (nodes.add("Gather", pairs, nodes.constant(np.array(i)), axis=3) for i in range(2))
    high = nodes.add("BitShift", high, byte(nodes, 4), direction="LEFT")
    return nodes.add("BitwiseOr", nodes.add("BitwiseAnd", low, byte(nodes, 0xF)), high)


def unpacked(nodes: Nodes, x: str, scale: str) -> tuple[str, str]:
    """The codes of packed int4, each with 8 added, and the zero points that take it away again."""
    x = nodes.add("BitwiseXor", x, byte(nodes, 0x88))
    low = nodes.add("BitwiseAnd", x, byte(nodes, 0xF))
    high = nodes.add("BitShift", x, byte(nodes, 4), direction="RIGHT")
    last = nodes.constant(np.array([-1], np.int64))
    pairs = nodes.add("Concat", *(nodes.add("Unsqueeze", nibble, last) for nibble in (low, high)), axis=-1)
    eight = helper.make_tensor("eight", TensorProto.UINT8, [1], [8])
    zero_point = nodes.add("ConstantOfShape", nodes.add("Shape", scale), value=eight)
    return nodes.reshape(pairs, 0, NUM_HEADS, HEAD_DIM), zero_point


def model_of(case: Case) -> bytes:
    """The graph; each of its inputs comes once for keys and once for values."""
    form, nodes = case.format, Nodes()
    inputs, outputs = [], []

    def declare(values: list, name: str, element_type: int) -> str:
        values.append(helper.make_tensor_value_info(name, element_type, None))
        return name

    for kv in ("key", "value"):
        current = declare(inputs, f"current_{kv}", form.t1)
        write, read = (declare(inputs, f"{rows}_{kv}", TensorProto.INT64) for rows in ("write", "read"))
        held_type = TensorProto.UINT8 if form.t2 == INT4 else form.t2
        new, types = {"cache": current}, {"cache": held_type, "scale": form.t3}
        if form.t3 is not None:
            new["cache"], new["scale"] = quantized(nodes, current, case)
        elif form.t1 != form.t2:
            new["cache"] = nodes.add("Cast", current, to=form.t2)
        gathered = {}
        for name, update in new.items():
            held = declare(inputs, f"{name}_{kv}", types[name])
            stored = declare(outputs, f"{name}_{kv}_stored", types[name])
            nodes.add("ScatterND", held, write, update, output=stored)
            gathered[name] = nodes.add("Gather", stored, read, axis=0)
        x, element_type = gathered["cache"], form.t2
        if form.t3 is not None:
            element_type = form.t3
            scale = gathered["scale"]
            codes = unpacked(nodes, x, scale) if form.t2 == INT4 else (x,)
            x = nodes.add("DequantizeLinear", codes[0], scale, *codes[1:], axis=2, block_size=form.quant_group)
        if element_type != form.t1:
            x = nodes.add("Cast", x, to=form.t1)
        if case.num_repeat > 1:
            x = nodes.add("Unsqueeze", x, nodes.constant(np.array([2], np.int64)))
            x = nodes.add("Expand", x, nodes.constant(np.array([1, 1, case.num_repeat, 1], np.int64)))
            x = nodes.reshape(x, 0, NUM_HEADS * case.num_repeat, HEAD_DIM)
        nodes.nodes[-1].output[0] = declare(outputs, kv, form.t1)
    graph = helper.make_graph(nodes.nodes, "standard", inputs, outputs, nodes.constants)
    opsets = [helper.make_opsetid("", OPSET)]
    return helper.make_model(graph, ir_version=IR_VERSION, opset_imports=opsets).SerializeToString()


def standard(tensors: Tensors, threads: int) -> tuple[Contender, Run]:
    """The graph on the case's memory, one session for all layers; and a run of the first layer."""
    session = session_of(model_of(tensors.case), threads)
    runs = []
    for layer_idx in tensors.layers:
        rows = rows_of(tensors, layer_idx)
        inputs, outputs = {}, dict(tensors.outputs)
        for kv, name in enumerate(("key", "value")):
            inputs[f"current_{name}"] = tensors.inputs[f"current_{name}"]
            inputs[f"write_{name}"], inputs[f"read_{name}"] = rows.write[kv][..., None], rows.read[kv]
            for held, array in (("cache", rows.cache), ("scale", rows.scale)):
                if array is not None:
                    inputs[f"{held}_{name}"] = outputs[f"{held}_{name}_stored"] = array
        runs.append(bound(session, inputs, outputs))
    return Contender(STANDARD, threads, timed(runs), cold=tensors.case.cold), runs[0]
